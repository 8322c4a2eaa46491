"""Memory that is locked page by page when it is used (mlock2 with MLOCK_ONFAULT)."""

from __future__ import annotations

import os

from jupyter_gpuckpt.host import processes

#: An ordinary user may lock 8 MB by default.
SIZE = 64 << 20 if os.geteuid() == 0 else 4 << 20
#: Locks so much memory and uses one page of it.
PROGRAM = f"""
    import ctypes, mmap, time
    libc = ctypes.CDLL(None, use_errno=True)
    area = mmap.mmap(-1, {SIZE}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert libc.syscall(325, ctypes.c_long(start), ctypes.c_long(len(area)), 1) == 0
    area[:5] = b"Used."
    while True:
        print(bytes(area[:5]), flush=True)
        time.sleep(0.05)
"""


def facts(program):
    status = processes.status(program.tree.kernel_pid)
    flagged = processes.flagged_areas(program.tree.kernel_pid, "lf")
    return status["VmLck"], flagged


def test_it_is_not_filled_by_a_resume_and_stays_locked(run):
    program = run(PROGRAM)
    program.lines(more_than=0)
    before = facts(program)
    assert before[0] == f"{SIZE >> 10} kB"
    assert before[1]
    for stop in (False, True):
        snapshot_id = program.save(stop=stop).manifest.info.snapshot_id
    resumed = program.resume(snapshot_id)
    assert program.fresh_line() == "b'Used.'"
    assert facts(program) == before
    if SIZE > 48 << 20:
        assert processes.resident_bytes(program.tree.kernel_pid) < 48 << 20
    assert not resumed.warnings
