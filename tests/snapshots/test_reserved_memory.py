"""A process that has reserved more addresses than this machine has memory comes back, also where its children use a part of them."""

from __future__ import annotations

import json

import pytest

from jupyter_gpuckpt.engine.memory import reservations
from jupyter_gpuckpt.engine.tree.launch import pids
from jupyter_gpuckpt.errors import HostIncompatible, KernelNotCheckpointable
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.host.overcommit import Overcommit, overcommit
from jupyter_gpuckpt.snapshots import room
from jupyter_gpuckpt.snapshots.stored_images import MEMORY, PROCESSES, write_images
from tests import smaps

#: A reservation of which the child of a fork uses a little, memory that both share copy-on-write, and memory of the parent's that was
#: mapped in parts, each of which Linux allows, while it would not allow all at once. Linux makes one area of the parts.
PROGRAM = """
    import ctypes, json, os, time
    libc = ctypes.CDLL(None, use_errno=True)
    PAGE, MB, PRIVATE, FIXED = 4096, 1 << 20, 0x22, 0x10
    [total] = [int(line.split()[1]) << 10 for line in open("/proc/meminfo") if line.startswith("MemTotal")]
    huge = (total * 2 >> 21) << 21
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def mapped(address, length, protection, flags=PRIVATE, file=-1):
        found = libc.mmap(address, length, protection, flags, file, 0)
        assert found != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
        return found

    reserved = mapped(None, huge, 0)
    with open("sparse", "w+b") as file:
        file.truncate(huge)
        file.write(b"file")
        file.flush()
        of_file = mapped(None, huge, 1, 2, file.fileno())
    heap = mapped(None, 3 * MB + 2 * PAGE, 0) + PAGE
    assert mapped(heap, 3 * MB, 3, PRIVATE | FIXED) == heap
    ctypes.memset(heap, 7, 3 * MB)

    def flags(address):
        inside = False
        for line in open("/proc/self/smaps"):
            bounds = line.split(" ", 1)[0]
            if "-" in bounds:
                start, end = (int(text, 16) for text in bounds.split("-"))
                inside = start <= address < end
            elif inside and line.startswith("VmFlags"):
                return line.split()[1:]

    child = os.fork()
    if child == 0:
        assert libc.mprotect(reserved + 5 * MB, PAGE, 3) == 0
        ctypes.memmove(reserved + 5 * MB, b"little", 6)
        libc.prctl(1, 9)
    else:
        parts = mapped(None, huge + 2 * PAGE, 0) + PAGE
        for at in range(0, huge, huge // 4):
            mapped(parts + at, huge // 4, 3, PRIVATE | FIXED)
        ctypes.memmove(parts + huge // 4 - 2, b"part", 4)
    name = "child" if child == 0 else "parent"
    count = 0
    while True:
        count += 1
        said = {
            "who": name,
            "count": count,
            "heap": ctypes.string_at(heap + MB, 3).hex(),
            "heap is accounted": "ac" in flags(heap),
            "file": ctypes.string_at(of_file, 4).decode(),
        }
        if child == 0:
            said["little"] = ctypes.string_at(reserved + 5 * MB, 6).decode()
        else:
            said["parts"] = ctypes.string_at(parts + huge // 4 - 2, 4).decode()
            said["their end"] = ctypes.string_at(parts + huge - 1, 1).hex()
        print(json.dumps(said), flush=True)
        time.sleep(0.05)
"""


def said(program, who: str) -> dict[str, object]:
    while True:
        line = json.loads(program.fresh_line())
        if line.pop("who") == who:
            return line


@pytest.fixture
def guessing():
    """Skip where Linux allows as much as is asked for, or counts it exactly."""
    if overcommit().area_bytes is None:
        pytest.skip("vm.overcommit_memory is not 0 here")


@pytest.mark.usefixtures("guessing")
def test_reservations_larger_than_memory_come_back_twice_in_parents_and_children(run):
    program = run(PROGRAM)
    for _ in range(2):
        before = {who: said(program, who) for who in ("parent", "child")}
        assert before["child"]["little"] == "little"
        snapshot = program.save(stop=True).manifest.info.snapshot_id
        program.resume(snapshot)
        for who, was in before.items():
            now = said(program, who)
            assert now.pop("count") > was.pop("count")
            assert now == was


#: Memory of which a child shares a part.
FORKED = """
    import os, time
    data = bytearray(os.urandom(8 << 20))
    child = os.fork()
    if child == 0:
        data[:3] = b"mine"
    count = 0
    while True:
        count += 1
        if child:
            print(count, flush=True)
        time.sleep(0.02)
"""


def accounted_bytes(tree) -> int:
    """Return for how much private memory of the processes Linux has counted a reservation."""
    return sum(
        area.end - area.start
        for pid in pids(tree)
        for area in processes.maps(pid)
        if area.private and "ac" in smaps.flags_at(pid, area.start)
    )


def counting_exactly(monkeypatch, free_bytes: int) -> None:
    """Linux would do so for the whole machine, and for the tests of others on it."""
    monkeypatch.setattr(room, "overcommit", lambda: Overcommit(None, free_bytes))


def test_where_linux_counts_exactly_a_suspend_whose_resume_it_would_refuse_is_refused(
    run, monkeypatch
):
    program = run(FORKED)
    program.fresh_line()
    counting_exactly(monkeypatch, 0)
    with pytest.raises(KernelNotCheckpointable, match=r"must be reserved.*overcommit_memory is 2"):
        program.save(stop=True)
    program.fresh_line()
    counting_exactly(monkeypatch, 1 << 40)
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    counting_exactly(monkeypatch, 1 << 20)
    with pytest.raises(HostIncompatible, match="must be reserved"):
        program.resume(snapshot)
    counting_exactly(monkeypatch, 1 << 40)
    program.resume(snapshot)
    program.fresh_line()


def test_what_is_counted_covers_what_linux_counts(run, tmp_path):
    program = run(FORKED)
    program.fresh_line()
    before = accounted_bytes(program.tree)
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    images = tmp_path / "images"
    images.mkdir()
    write_images(program.store.manifest(snapshot), program.store, images, {*MEMORY, *PROCESSES})
    needed, held = reservations.reserved_bytes(images)
    program.resume(snapshot)
    after = accounted_bytes(program.tree)
    assert 8 << 20 < held <= before
    assert max(before, after) <= needed < 4 * before
