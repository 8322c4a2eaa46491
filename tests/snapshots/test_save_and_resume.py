"""Save, suspend and resume of real process trees: what is back is what was there."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from jupyter_gpuckpt.engine.settings import EngineSettings
from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.errors import OperationCancelled
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.images import worker_processes
from jupyter_gpuckpt.wire.progress import Progress, ProgressRecord
from tests.conftest import PATIENCE, left_in, wait_for

COUNTER = """
    import os, time, subprocess, threading, mmap
    child = subprocess.Popen(["sleep", "1000"])
    shared = mmap.mmap(-1, 1 << 20)
    ticks = 0
    def tick():
        global ticks
        while True:
            ticks += 1
            time.sleep(0.001)
    threading.Thread(target=tick, daemon=True).start()
    n = 0
    while True:
        n += 1
        shared[:8] = n.to_bytes(8, "little")
        print(n, os.getpid(), child.poll(), ticks > 0, time.monotonic(), flush=True)
        time.sleep(0.01)
"""

#: Rewrites all its memory, `length` numbers of 4 bytes, again and again. At any moment a first part holds n and the rest n - 1; bytes
#: of any other moment in its memory end it with an AssertionError, before a block is written or at the end of the round.
REWRITER = """
    import numpy as np
    memory, step = np.zeros({length}, dtype=np.uint32), {length} >> 7
    n = 0
    while True:
        n += 1
        for start in range(0, len(memory), step):
            block = memory[start : start + step]
            assert int(block.min()) == int(block.max()) == n - 1, (n, start, block.min(), block.max())
            block[:] = n
            print(n, start, flush=True)
        assert int(memory.min()) == int(memory.max()) == n, (n, "at the end", memory.min())
"""

#: Changes one page in a hundred of its 64 MB at every SIGUSR1, and says how often and what all of them are.
SCATTERER = """
    import hashlib, random, signal, time
    draw = random.Random(1)
    memory, rounds = bytearray(draw.randbytes(64 << 20)), 0
    def change(*_):
        global rounds
        for page in draw.sample(range(len(memory) >> 12), len(memory) // 409_600):
            memory[page * 4096 + 8] ^= 1
        rounds += 1
    signal.signal(signal.SIGUSR1, change)
    while True:
        print(rounds, hashlib.sha256(memory).hexdigest(), flush=True)
        time.sleep(0.01)
"""


def number(line: str) -> int:
    return int(line.split(maxsplit=1)[0])


def test_a_saved_program_runs_on_and_its_snapshot_is_of_that_moment(run) -> None:
    program = run(COUNTER)
    before = number(program.fresh_line())
    saved = program.save()
    after = number(program.fresh_line())
    assert launch.alive(program.tree)
    assert after > before
    assert saved.manifest.info.frozen_seconds < saved.manifest.info.seconds
    launch.kill(program.tree)
    count = len(program.lines())
    program.resume(saved.manifest.info.snapshot_id)
    resumed = number(program.lines(more_than=count)[count])
    assert before < resumed <= after + 1


def test_a_suspended_program_is_gone_and_goes_on_where_it_was(run) -> None:
    program = run(COUNTER)
    began = time.monotonic()
    program.fresh_line()
    tree, members = program.tree, launch.pids(program.tree)
    saved = program.save(stop=True)
    assert not any(processes.exists(pid) for pid in [tree.init_pid, *members])
    last = program.lines()[-1].split()
    count = len(program.lines())
    ran = time.monotonic() - began
    time.sleep(1.5)
    began = time.monotonic()
    program.resume(saved.manifest.info.snapshot_id)
    following = program.lines(more_than=count)[count].split()
    ran += time.monotonic() - began
    assert int(following[0]) == int(last[0]) + 1
    assert following[1:4] == last[1:4]  # pid, child, thread
    assert 0 < float(following[4]) - float(last[4]) < ran  # the clock stood still meanwhile


def test_scattered_changes_are_stored_as_such_and_all_snapshots_come_back(run) -> None:
    program = run(SCATTERER)
    said = {0: program.fresh_line()}
    snapshots = [program.save().manifest]
    for change in (1, 2):
        os.kill(program.tree.kernel_pid, signal.SIGUSR1)
        wait_for(lambda wanted=change: number(program.lines()[-1]) == wanted)
        said[change] = program.fresh_line()
        snapshots.append(program.save(stop=change == 2).manifest)
    for manifest in snapshots[1:]:
        assert manifest.info.sizes.new_bytes < 0.05 * (64 << 20)
        assert any(chunk.parts for stream in manifest.streams for chunk in stream.chunks)
    for change in (2, 0, 1):
        count = len(program.lines())
        program.resume(snapshots[change].info.snapshot_id)
        assert program.lines(more_than=count)[count] == said[change]
        launch.kill(program.tree)


def place(line: str) -> tuple[int, int]:
    n, start = line.split()
    return int(n), int(start)


@pytest.mark.parametrize("length", [1 << 27, pytest.param(1 << 29, marks=pytest.mark.slow)])
def test_a_save_holds_the_bytes_of_its_moment_while_all_memory_is_rewritten(
    run, length: int
) -> None:
    program = run(REWRITER.format(length=length))
    program.lines(more_than=150)
    before = place(program.lines()[-1])
    saved = program.save()
    assert saved.manifest.info.sizes.raw_bytes > 4 * length
    # It ran on meanwhile and goes on for more than a whole round.
    count = len(program.lines())
    after = place(program.lines(more_than=count + 140, seconds=300)[-1])
    assert launch.alive(program.tree)
    launch.kill(program.tree)
    count = len(program.lines())
    program.resume(saved.manifest.info.snapshot_id)
    resumed = [place(line) for line in program.lines(more_than=count + 300, seconds=300)[count:]]
    assert before < resumed[0] < after
    assert resumed[-1][0] >= resumed[0][0] + 2
    assert launch.alive(program.tree)


def test_the_same_snapshot_can_be_resumed_again(run) -> None:
    program = run(COUNTER)
    program.fresh_line()
    saved = program.save(stop=True)
    firsts = []
    for _ in range(3):
        count = len(program.lines())
        program.resume(saved.manifest.info.snapshot_id)
        firsts.append(number(program.lines(more_than=count)[count]))
        launch.kill(program.tree)
    assert len(set(firsts)) == 1


def test_a_second_save_stores_little(run) -> None:
    program = run("""
        import time, numpy
        memory = numpy.random.default_rng(1).integers(0, 255, 100 << 20, dtype="u1")
        print("ready", flush=True)
        while True:
            time.sleep(1)
    """)
    program.lines()
    program.save()
    second = program.save().manifest.info.sizes
    assert second.new_bytes < second.stored_bytes / 20


@pytest.mark.parametrize("cycles", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_cycles_leave_nothing_over_and_the_clock_is_continuous(
    run, tmp_path: Path, cycles: int
) -> None:
    program = run(COUNTER)
    program.fresh_line()
    descriptors, zombies = _descriptors(), _zombies()
    mounts = _mounts(tmp_path)
    identity = program.lines()[-1].split()[1:4]
    for cycle in range(cycles):
        began = time.monotonic()
        program.fresh_line()
        saved = program.save(stop=True)
        last, count = program.lines()[-1].split(), len(program.lines())
        ran = time.monotonic() - began
        time.sleep(3 if cycle == 0 else 0)  # the clock must not see this
        began = time.monotonic()
        assert not launch.alive(program.tree)
        program.resume(saved.manifest.info.snapshot_id)
        following = program.lines(more_than=count)[count].split()
        ran += time.monotonic() - began
        assert int(following[0]) == int(last[0]) + 1
        assert following[1:4] == identity
        assert 0 < float(following[4]) - float(last[4]) < ran, (last, following)
        program.store.delete(saved.manifest.info.snapshot_id)
    launch.kill(program.tree)
    assert _descriptors().items() <= descriptors.items()
    wait_for(lambda: set(_zombies()) <= set(zombies))
    assert set(_mounts(tmp_path)) <= set(mounts)
    assert left_in(program.engine.spill_dir) == set()
    assert {path.name for path in tmp_path.iterdir()} <= {"store", "spill", "program-0"}


def _mounts(folder: Path) -> list[str]:
    """Return the lines of the mounts that a kernel could have left; others come and go with other tests."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    ours = [line for line in lines if "gpuckpt" in line or str(folder) in line]
    return [line for line in ours if "/engines/" not in line]  # images of the engines' tests


def _descriptors() -> dict[int, str]:
    return {
        fd: link
        for fd, link in processes.descriptors(os.getpid()).items()
        if "/fd" not in link and "catalog" not in link and "/packs/" not in link
    }


def _zombies() -> list[int]:
    return [pid for pid in processes.descendants(os.getpid()) if processes.state(pid) == "Z"]


def test_a_child_that_the_user_stopped_stays_stopped(run) -> None:
    program = run("""
        import os, signal, subprocess, time
        child = subprocess.Popen(["sleep", "1000"])
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(0.1)
        while True:
            state = open(f"/proc/{child.pid}/stat").read().split()[2]
            print(state, flush=True)
            time.sleep(0.01)
    """)
    wait_for(lambda: program.fresh_line() == "T")
    program.save()
    wait_for(lambda: program.fresh_line() == "T")
    saved = program.save(stop=True)
    count = len(program.lines())
    program.resume(saved.manifest.info.snapshot_id)
    # A task that is let go by its tracer shows R until it is in its stop again; `sleep` on its way would show S.
    assert set(program.lines(more_than=count + 3)[count:]) <= {"T", "R"}
    wait_for(lambda: program.fresh_line() == "T")


def test_shared_memory_and_its_hard_links_come_back(run) -> None:
    program = run("""
        import os, time
        with open("/dev/shm/table", "wb") as file:
            file.write(b"x" * 3_000_000)
        os.link("/dev/shm/table", "/dev/shm/other")
        os.mkdir("/dev/shm/folder")
        os.chmod("/dev/shm/table", 0o640)
        while True:
            status = os.stat("/dev/shm/table")
            same = os.path.samefile("/dev/shm/table", "/dev/shm/other")
            print(status.st_size, oct(status.st_mode), same, sorted(os.listdir("/dev/shm")), flush=True)
            time.sleep(0.01)
    """)
    before = program.fresh_line()
    for _ in range(2):
        saved = program.save(stop=True)
        count = len(program.lines())
        program.resume(saved.manifest.info.snapshot_id)
        assert program.lines(more_than=count)[count] == before
    assert not Path("/dev/shm/table").exists()


def test_a_save_can_be_cancelled_and_the_program_runs_on(run) -> None:
    program = run(REWRITER.format(length=1 << 26))
    program.lines(more_than=100)
    progress = Progress()

    def cancel_when_storing(record: ProgressRecord) -> None:
        if record.stage == "store":
            threading.Thread(target=progress.cancel).start()
            progress.cancelled.wait(PATIENCE)

    progress._listener = cancel_when_storing
    with pytest.raises(OperationCancelled):
        program.save(progress=progress)
    program.fresh_line()
    assert program.store.snapshots() == []
    assert program.save(stop=True)


def test_exit_status_is_the_programs_own(run) -> None:
    for code, status in (
        ("raise SystemExit(7)", 7 << 8),
        ("import os; os.kill(os.getpid(), 9)", 9),
    ):
        program = run(f"import time; time.sleep(0.2); {code}")
        path = Path(program.tree.exit_path)
        wait_for(path.exists)
        assert int(path.read_text()) == status


def test_no_descriptor_of_ours_is_in_the_program(run) -> None:
    program = run("""
        import os, time
        while True:
            print(sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if int(n) < 3 or True
                  if os.path.exists(f"/proc/self/fd/{n}")), flush=True)
            time.sleep(0.1)
    """)
    links = eval(program.fresh_line())
    assert set(links) <= {"/dev/null", str(program.log)}
    saved = program.save(stop=True)
    count = len(program.lines())
    program.resume(saved.manifest.info.snapshot_id)
    assert eval(program.lines(more_than=count)[count]) == links


def test_the_plain_fall_back_saves_and_resumes_as_well(run, engine: EngineSettings) -> None:
    program = run(COUNTER, engine=replace(engine, plain=True))
    program.fresh_line()
    saved = program.save()
    assert saved.manifest.method == "plain"
    program.fresh_line()
    saved = program.save(stop=True)
    last, count = program.lines()[-1].split(), len(program.lines())
    program.resume(saved.manifest.info.snapshot_id)
    following = program.lines(more_than=count)[count].split()
    assert int(following[0]) == int(last[0]) + 1
    assert following[1:4] == last[1:4]
    assert left_in(engine.spill_dir) == set()


def test_memory_is_stored_and_filled_by_several_processes(
    run, engine: EngineSettings, monkeypatch
) -> None:
    monkeypatch.setattr(worker_processes, "_MIN_BYTES", 1)
    program = run(
        """
        import hashlib, os, time, numpy as np
        data = np.random.default_rng(1).integers(0, 1 << 40, 1 << 21)
        child = os.fork()
        while True:
            print(os.getpid(), hashlib.sha256(data).hexdigest(), flush=True)
            data[:: 1 << 16] += 1
            data[:: 1 << 16] -= 1
            time.sleep(0.05)
        """,
        engine=replace(engine, threads=6),
    )
    program.lines(more_than=6)
    for stop in (True, False, True):
        saved = program.save(stop=stop)
        if not stop:
            launch.kill(program.tree)
        count = len(program.lines())
        program.resume(saved.manifest.info.snapshot_id)
        told = {tuple(line.split()) for line in program.lines(more_than=count + 4)}
        assert len({digest for _, digest in told}) == 1
        assert len({pid for pid, _ in told}) == 2
    assert not processes.children(worker_processes._fork_server.pid or 0)


def test_a_connection_that_nobody_has_accepted_yet_does_not_matter(run, tmp_path: Path) -> None:
    program = run("""
        import os, socket, time
        server = socket.create_server(("127.0.0.1", 0))
        print(server.getsockname()[1], flush=True)
        while not os.path.exists("accept"):
            print("waits", flush=True)
            time.sleep(0.01)
        print("accepted", server.accept()[0].recv(5), flush=True)
        while True:
            time.sleep(1)
    """)
    port = int(program.lines()[0])
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"hello")
        saved = program.save()
        (program.log.parent / "accept").touch()
        while program.lines()[-1] != "accepted b'hello'":
            time.sleep(0.01)
    (program.log.parent / "accept").unlink()
    program.save(stop=True)
    count = len(program.lines())
    program.resume(saved.manifest.info.snapshot_id)
    assert program.lines(more_than=count)[count] == "waits"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"again")
        (program.log.parent / "accept").touch()
        while program.lines()[-1] != "accepted b'again'":
            time.sleep(0.01)
