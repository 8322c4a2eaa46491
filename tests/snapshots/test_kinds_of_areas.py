"""Memory of every kind comes back, also what may not be written to and what has places without pages."""

from __future__ import annotations

import json

from jupyter_gpuckpt.engine.memory import page_plan

#: Says what each area holds, as /proc/self/mem has it: also what the program itself may not read. Some are far larger than a page,
#: because only such are hidden from CRIU in a dump.
PROGRAM = """
    import ctypes, hashlib, json, mmap, os, signal, tempfile, time
    libc = ctypes.CDLL(None, use_errno=True)
    PAGE, MB, PRIVATE = 4096, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    keep, places = [], {}

    def area(name, length, flags=PRIVATE, file=-1):
        # Between pages that may not be touched, so that no area is joined with the next.
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        base = libc.mmap(None, length + 2 * PAGE, 0, PRIVATE, -1, 0) + PAGE
        assert libc.mmap(base, length, 3, flags | 0x10, file, 0) == base
        places[name] = (base, length)
        return base

    def put(address, data):
        ctypes.memmove(address, data, len(data))

    def protect(name, rights):
        base, length = places[name]
        assert libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(length), rights) == 0

    put(area("plain", 3 * MB), os.urandom(3 * MB))
    code = area("code", 2 * MB)
    put(code, os.urandom(2 * MB))
    put(code, bytes.fromhex("b8 2a 00 00 00 c3"))  # mov eax, 42; ret
    protect("code", 5)
    put(area("read only", 5 * PAGE), os.urandom(5 * PAGE))
    protect("read only", 1)
    put(area("closed", 5 * PAGE), os.urandom(5 * PAGE))
    protect("closed", 0)
    put(area("mixed", 9 * PAGE), os.urandom(9 * PAGE))
    libc.mprotect(ctypes.c_void_p(places["mixed"][0] + 3 * PAGE), ctypes.c_size_t(2 * PAGE), 1)
    guarded = area("guarded", 2 * MB)
    put(guarded, os.urandom(2 * MB))
    guards = not libc.madvise(ctypes.c_void_p(guarded + 7 * PAGE), ctypes.c_size_t(PAGE), 102)
    if guards:
        places["guarded"] = (guarded, 7 * PAGE)
        places["behind the guard"] = (guarded + 8 * PAGE, 2 * MB - 8 * PAGE)
    put(area("locked", 4 * PAGE), os.urandom(4 * PAGE))
    assert libc.mlock(ctypes.c_void_p(places["locked"][0]), ctypes.c_size_t(4 * PAGE)) == 0
    put(area("stack", 64 * PAGE, PRIVATE | 0x100 | 0x20000), os.urandom(64 * PAGE))
    with tempfile.TemporaryFile(dir=".") as file:
        file.write(os.urandom(PAGE + 100))
        file.flush()
        put(area("of a file", 4 * PAGE, mmap.MAP_PRIVATE, os.dup(file.fileno())) + 10, b"changed")
        places["of a file"] = (places["of a file"][0], 2 * PAGE)
    sparse = area("sparse", 8 * MB)
    for at in range(0, 8 * MB, 5 * PAGE):
        put(sparse + at, os.urandom(64))
    call = ctypes.CFUNCTYPE(ctypes.c_int)(code)
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    count = 0
    while True:
        count += 1
        said = {name: hashlib.blake2b(os.pread(memory, length, base)).hexdigest() for name, (base, length) in places.items()}
        said["code runs"] = call()
        if guards:
            try:
                os.pread(memory, PAGE, guarded + 7 * PAGE)
                said["the guard"] = "gone"
            except OSError:
                said["the guard"] = "there"
        print(json.dumps(said), flush=True)
        time.sleep(0.05)
"""


def test_every_area_holds_what_it_held(run, monkeypatch):
    program = run(PROGRAM)
    before = json.loads(program.lines()[-1])
    assert len(before) >= 12
    snapshot_id = program.save(stop=True).manifest.info.snapshot_id
    plans = []
    plan = page_plan.plan
    monkeypatch.setattr(page_plan, "plan", lambda *told: plans.extend(plan(*told)) or plans)
    count = len(program.lines())
    program.resume(snapshot_id)
    assert json.loads(program.lines(more_than=count)[-1]) == before
    by_criu = sum(piece.length for plan in plans for piece in plan.by_criu)
    by_us = sum(piece.length for plan in plans for piece in plan.by_us)
    # The code, what is read only and what is closed; and not all of the others.
    assert 2 << 20 < by_criu < 4 << 20 < by_us
