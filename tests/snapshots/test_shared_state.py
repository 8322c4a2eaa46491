"""What processes of a kernel have in common: locks, pools, shared memory. A snapshot holds all of it as of one moment."""

from __future__ import annotations

import json
import os

import pytest

#: A spawn lock and queue (semaphores in /dev/shm), a loky pool, shared memory in which a process of its own keeps two counters
#: equal under a lock, a deleted open file that has another name on disk, an anonymous mapping shared with a forked child.
WORKSHOP = """
import json, mmap, multiprocessing, os, sys, time
from multiprocessing import shared_memory

sys.path.insert(0, os.getcwd())
import workers

spawn = multiprocessing.get_context("spawn")


def main():
    from joblib.externals.loky import ProcessPoolExecutor

    pool = ProcessPoolExecutor(2)
    lock, counters = spawn.Lock(), shared_memory.SharedMemory("counters", create=True, size=1 << 20)
    writer = spawn.Process(target=workers.write, args=(lock, "counters"), daemon=True)
    writer.start()
    anonymous = mmap.mmap(-1, 1 << 20)
    forked = os.fork()
    if not forked:
        while True:
            count = int.from_bytes(anonymous[:8], "little") + 1
            # Without a lock: the bytes of one moment have equal counts only if nothing ran while they were read.
            anonymous[:8] = anonymous[4096:4104] = count.to_bytes(8, "little")
            time.sleep(0.0001)
    with open("named", "w+") as deleted:
        deleted.write("kept")
        deleted.flush()
        os.link("named", "other")
        os.unlink("named")
        cycle = 0
        while True:
            cycle += 1
            with lock:
                pair = workers.read(counters)
            results = list(pool.map(workers.square, range(4)))
            told = {
                "cycle": cycle,
                "pair": pair,
                "pool": results,
                "pids": sorted(pool._processes),
                "deleted": os.pread(deleted.fileno(), 4, 0).decode(),
                "anonymous": int.from_bytes(anonymous[:8], "little"),
                "writer": writer.is_alive(),
            }
            print(json.dumps(told), flush=True)
            time.sleep(0.1)


if __name__ == "__main__":
    main()
"""

WORKERS = """
import time
from multiprocessing import shared_memory


def square(number):
    return number * number


def read(counters):
    return [int.from_bytes(counters.buf[at:at + 8], "little") for at in (0, 4096)]


def write(lock, name):
    counters = shared_memory.SharedMemory(name)
    count = 0
    while True:
        count += 1
        with lock:
            counters.buf[0:8] = count.to_bytes(8, "little")
            counters.buf[4096:4104] = count.to_bytes(8, "little")
        time.sleep(0.0001)
"""


def told(line: str) -> dict:
    found = json.loads(line)
    assert found["pair"][0] == found["pair"][1], "both are written under the lock"
    assert found["pool"] == [0, 1, 4, 9]
    assert (found["deleted"], found["writer"]) == ("kept", True)
    return found


@pytest.mark.slow
def test_locks_pools_and_shared_memory_come_back_from_older_and_newer_snapshots(
    run, tmp_path
) -> None:
    directory = tmp_path / "program-0"
    program = run(
        f"import os, runpy; os.chdir({str(directory)!r})\n"
        f"open('workers.py', 'w').write({WORKERS!r})\n"
        f"open('workshop.py', 'w').write({WORKSHOP!r})\n"
        "import sys; os.execv(sys.executable, [sys.executable, 'workshop.py'])"
    )
    program.lines(more_than=3)
    saved = []
    for _ in range(3):
        before = told(program.fresh_line())
        snapshot = program.save().manifest.info.snapshot_id
        after = told(program.fresh_line())
        assert after["pids"] == before["pids"]
        saved.append((snapshot, before["cycle"], after["cycle"]))
    last = program.save(stop=True).manifest.info.snapshot_id
    count = len(program.lines())
    program.resume(last)
    assert told(program.lines(more_than=count)[count])["pids"] == after["pids"]
    for snapshot, before_cycle, after_cycle in (saved[0], saved[2]):
        program.save(stop=True)
        count = len(program.lines())
        program.resume(snapshot)
        first = told(program.lines(more_than=count)[count])
        assert before_cycle <= first["cycle"] <= after_cycle + 1
        assert first["pids"] == after["pids"]
        later = told(program.lines(more_than=count + 3)[count + 3])
        assert later["pair"][0] > first["pair"][0]
        assert later["anonymous"] > first["anonymous"]
    assert [name for name in os.listdir(directory) if name.startswith("link_remap")] == []
