"""Pages that CRIU does not see in a dump are listed as it would list them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from msgspec.structs import replace

from jupyter_gpuckpt.engine.criu import hidden_pages
from jupyter_gpuckpt.engine.criu import images as criu_images
from jupyter_gpuckpt.engine.freeze import frozen
from jupyter_gpuckpt.engine.preflight import plan
from jupyter_gpuckpt.engine.settings import EngineSettings
from jupyter_gpuckpt.host import privileges
from jupyter_gpuckpt.wire.manifest_records import SaveOptions
from jupyter_gpuckpt.wire.progress import Progress

#: Areas of every kind that a program can have, and holes, zero pages and forked children in them; then it does nothing.
PROGRAM = """
    import ctypes, mmap, os, time
    libc = ctypes.CDLL(None, use_errno=True)
    PAGE, MB = 4096, 1 << 20

    def area(megabytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        return mmap.mmap(-1, megabytes * MB, flags=flags)

    def advise(memory, offset, length, advice):
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return libc.madvise(ctypes.c_void_p(base + offset), ctypes.c_size_t(length), advice)

    whole = area(40)
    for start in range(0, len(whole), PAGE):
        whole[start] = 1 + start // PAGE % 250
    holes = area(8)
    for start in range(0, len(holes), 3 * PAGE):
        holes[start] = 7
    only_read = area(4)
    read = sum(only_read[start] for start in range(0, len(only_read), PAGE))  # zero pages
    given_back = area(8)
    given_back[:] = b"x" * len(given_back)
    advise(given_back, 2 * MB, 3 * MB, mmap.MADV_DONTNEED)
    guarded = area(8)
    guarded[:] = b"y" * len(guarded)
    advise(guarded, MB, PAGE, 102)  # MADV_GUARD_INSTALL, where Linux has it
    huge = area(8)
    advise(huge, 0, 8 * MB, mmap.MADV_HUGEPAGE)
    huge[:] = b"z" * len(huge)
    shared = area(4, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    shared[:] = b"s" * len(shared)
    file = os.memfd_create("file")
    os.truncate(file, 4 * MB)
    of_file = mmap.mmap(file, 4 * MB, flags=mmap.MAP_PRIVATE)
    of_file[5 * PAGE] = 9
    if os.fork() == 0:
        whole[0] = 200
        time.sleep(10000)
    print("ready", flush=True)
    time.sleep(10000)
"""


def saved_pages(program, engine: EngineSettings) -> dict[int, dict[int, bool]]:
    """Return the addresses of all saved pages by process, and of each whether it is left to us."""
    chosen = plan(program.tree, engine, private_shm=True, stop=False, gpu_bytes=0)
    assert chosen.method == "skeleton"
    with frozen(program.tree, chosen, engine, SaveOptions(), progress=Progress()) as state:
        return {
            process.pid: {
                address: extent.lazy
                for extent in criu_images.pagemap(state.images, process.pid)
                for address in range(extent.address, extent.address + extent.length, 4096)
            }
            for process in state.processes
            if process.pages
        }


@pytest.mark.skipif(not privileges.suffice(), reason="CRIU alone needs rights to see all pages")
def test_they_are_those_that_criu_finds_itself(run, engine: EngineSettings, tmp_path: Path) -> None:
    program = run(PROGRAM)
    program.lines()
    hidden = hidden_pages.HiddenPages([program.tree.kernel_pid]).scan()
    assert sum(extent.length for extent in hidden[program.tree.kernel_nspid]) > 60 << 20
    ours = saved_pages(program, engine)
    # The library that hides them cannot be loaded: CRIU sees everything.
    theirs = saved_pages(program, replace(engine, criu_preload=tmp_path / "none.so"))
    assert len(ours) == 3
    assert {pid: set(pages) for pid, pages in ours.items()} == {
        pid: set(pages) for pid, pages in theirs.items()
    }
    # CRIU leaves to us what is of no file; we take what was changed of a private mapping of a file as well.
    assert not any(
        theirs[pid][at] and not lazy for pid, pages in ours.items() for at, lazy in pages.items()
    )
    of_file = [
        at
        for at, lazy in ours[program.tree.kernel_nspid].items()
        if lazy != theirs[program.tree.kernel_nspid][at]
    ]
    assert of_file


def test_a_program_comes_back_with_them(run) -> None:
    program = run("""
        import time, numpy as np
        memory = np.random.default_rng(1).integers(0, 1 << 62, 5 << 20)
        total = int(memory.sum())
        while True:
            print(int(memory.sum()) == total, flush=True)
            time.sleep(0.05)
    """)
    program.fresh_line()
    for _ in range(2):
        saved = program.save(stop=True)
        count = len(program.lines())
        program.resume(saved.manifest.info.snapshot_id)
        assert set(program.lines(more_than=count)[count:]) == {"True"}


def test_changed_pages_of_mapped_files_come_back(run) -> None:
    program = run("""
        import ctypes, hashlib, mmap, os, time
        from pathlib import Path
        MB = 1 << 20
        Path("file").write_bytes(os.urandom(40 * MB))
        Path("other").write_bytes(os.urandom(2 * MB))
        file, other = open("file", "r+b"), open("other", "r+b")
        of_file = mmap.mmap(file.fileno(), 40 * MB, flags=mmap.MAP_PRIVATE)
        closed = mmap.mmap(other.fileno(), 2 * MB, flags=mmap.MAP_PRIVATE)
        of_file[: 30 * MB] = os.urandom(30 * MB)
        closed[MB : MB + 9000] = os.urandom(9000)
        address = ctypes.addressof(ctypes.c_char.from_buffer(closed))
        assert not ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), 2 * MB, mmap.PROT_READ)
        number = 1
        if not os.fork():
            number = 2
            of_file[5 * MB] ^= 255
        while True:
            digest = hashlib.blake2b(of_file)
            digest.update(closed)
            print(number, digest.hexdigest(), flush=True)
            time.sleep(0.1)
    """)
    before = said(program, 0)
    for _ in range(2):
        saved = program.save(stop=True)
        count = len(program.lines())
        program.resume(saved.manifest.info.snapshot_id)
        assert said(program, count) == before


def said(program, after: int) -> dict[str, str]:
    """Return what each of the two processes prints from this line on."""
    count = after
    while (
        len(found := {line.split()[0]: line for line in program.lines(more_than=count)[after:]}) < 2
    ):
        count += 1
    return found


#: Reserves addresses, as CUDA does for GPU memory, of which none can be used.
RESERVES = """
    import ctypes, time
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    assert libc.mmap(None, 200 << 30, 0, 0x4022, -1, 0) != ctypes.c_void_p(-1).value
    print("ready", flush=True)
    time.sleep(10000)
"""
#: Without care CRIU would copy 800 MB.
MAX_CRIU_BYTES = 200 << 20


def test_reserved_addresses_take_no_memory_of_criu(run, engine: EngineSettings) -> None:
    program = run(RESERVES)
    # The largest child is that of this process only if no other test had one before.
    child = os.fork()
    if not child:
        try:
            saved_pages(program, engine)
            used, own = (
                resource.getrusage(who).ru_maxrss << 10
                for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)
            )
            # Before its exec a child has the memory of this process, which counts, too.
            os._exit(0 if used < own + MAX_CRIU_BYTES else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
