"""A save that fails leaves the program running and says why; a suspend that fails as well."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from jupyter_gpuckpt.engine.criu import command_lines as criu_options
from jupyter_gpuckpt.engine.tree import launch, standstill
from jupyter_gpuckpt.engine.tree.standstill import Standstill
from jupyter_gpuckpt.errors import (
    FreezeFailed,
    GpuCkptError,
    StoreFull,
)
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.progress import Progress, ProgressRecord
from tests.conftest import wait_for
from tests.parameters import some_slow
from tests.programs import COUNTER, NOISE

HOLDER = f"""
    {NOISE}; import time
    memory = noise(160 << 20)
    n = 0
    while True:
        n += 1
        print(n, memory[12345], flush=True)
        time.sleep(0.01)
"""

IO_URING = """
    import ctypes, time
    parameters = ctypes.create_string_buffer(120)
    assert ctypes.CDLL(None).syscall(425, 4, parameters) > 0  # io_uring_setup
    n = 0
    while True:
        n += 1
        print(n, flush=True)
        time.sleep(0.01)
"""


def assert_runs_on(program) -> None:
    first = int(program.fresh_line().split()[0])
    assert int(program.fresh_line().split()[0]) > first
    assert launch.alive(program.tree)
    assert not any(processes.state(pid) in ("T", "t") for pid in launch.pids(program.tree))
    images = program.tree.inside(criu_options.IMAGES)
    assert list(images.iterdir()) == []


def test_a_twin_that_no_thread_frees_is_freed_at_the_end(run, monkeypatch) -> None:
    program = run(COUNTER)
    original, refused = ThreadPoolExecutor.submit, []

    def submit(self, *given):
        if self._thread_name_prefix == "beside-save":
            refused.append(given)
            raise RuntimeError("can't start new thread")
        return original(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(ThreadPoolExecutor, "submit", submit)
        program.fresh_line()
        program.save()
    assert refused
    # CRIU's dump would fail while there is a twin.
    assert_runs_on(program)
    program.save()
    assert_runs_on(program)


@pytest.mark.parametrize("stop", some_slow([False, True], {True}), ids=["save", "suspend"])
def test_a_full_disk_leaves_the_program_running(run, small_disk: Path, *, stop: bool) -> None:
    store = LocalStore(small_disk / "store")
    program = run(HOLDER, store=store)
    program.lines(more_than=3)
    with pytest.raises(StoreFull) as caught:
        program.save(stop=stop)
    assert caught.value.hint
    assert_runs_on(program)
    assert store.snapshots() == []


@pytest.mark.parametrize("stop", some_slow([False, True], {True}), ids=["save", "suspend"])
def test_a_kernel_with_an_io_uring_is_refused_with_cause_and_hint(run, *, stop: bool) -> None:
    program = run(IO_URING, io_uring=True)
    program.lines(more_than=3)
    with pytest.raises(FreezeFailed, match="io_uring") as caught:
        program.save(stop=stop)
    assert caught.value.hint
    assert "Error (" in caught.value.details
    assert_runs_on(program)


STARTER = """
    import os, time
    os.mkfifo("pipe")
    if not os.fork():
        # As vfork does it: the child shares our memory, and waits for the pipe's other end before it executes its program.
        wait = (os.POSIX_SPAWN_OPEN, 9, "pipe", os.O_RDONLY, 0)
        os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[wait]), 0)
        os._exit(0)
    n = 0
    while True:
        n += 1
        print(n, flush=True)
        time.sleep(0.01)
"""


def test_a_child_that_never_executes_its_program_is_named_and_all_run_on(run, monkeypatch) -> None:
    program = run(STARTER)
    program.lines(more_than=3)
    monkeypatch.setattr(standstill, "_STOP_SECONDS", 0.5)
    with pytest.raises(FreezeFailed, match="is starting a program"):
        program.save()
    (program.log.parent / "pipe").open("w").close()
    [starter] = processes.children(program.tree.kernel_pid)
    wait_for(lambda: processes.state(starter) == "Z")
    assert_runs_on(program)
    program.save()


#: A child that starts another one and ends when the pipe has been opened by a writer.
SUCCESSION = """
    import os, time
    os.mkfifo("pipe")
    if not os.fork():
        open("pipe").read()
        if os.fork():
            os._exit(0)
        while True:
            time.sleep(0.01)
    n = 0
    while True:
        n += 1
        print(n, flush=True)
        time.sleep(0.01)
"""


def test_a_child_of_a_process_that_ends_just_before_it_is_stopped_runs_on(run, monkeypatch) -> None:
    program = run(SUCCESSION)
    program.lines(more_than=3)
    [first] = processes.children(program.tree.kernel_pid)
    original = Standstill._halt

    def halt(standstill: Standstill, pid: int) -> None:
        if pid == first and processes.state(first) != "Z":
            (program.log.parent / "pipe").open("w").close()
            wait_for(lambda: processes.state(first) == "Z")
        original(standstill, pid)

    monkeypatch.setattr(Standstill, "_halt", halt)
    program.save()
    [second] = set(processes.children(program.tree.keeper_pid)) - {program.tree.kernel_pid}
    wait_for(lambda: processes.state(second) == "S")
    assert_runs_on(program)


def criu_pid(root_pid: int) -> int:
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"criu") and str(root_pid).encode() in words:
                return int(entry.name)
    return 0


@contextmanager
def killed_at_its_start(program) -> Iterator[None]:
    """CRIU is killed before it has touched a task."""
    good, killing = program.engine, program.log.parent.with_name("killed-criu")
    killing.write_text(f'#!/bin/sh\n{good.criu} "$@" & kill -KILL $!; wait $!\n')
    killing.chmod(0o755)
    program.engine = replace(good, criu=killing)
    yield
    program.engine = good


@contextmanager
def killed_when_all_stand_still(program) -> Iterator[None]:
    begin = Standstill.begin

    def begin_and_kill(standstill: Standstill) -> None:
        begin(standstill)
        os.kill(criu_pid(program.tree.keeper_nspid), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Standstill, "begin", begin_and_kill)
        yield


@contextmanager
def killed_while_it_reads_memory(program) -> Iterator[None]:
    """CRIU's own code is at work inside the program then."""
    pages = program.tree.inside(criu_options.IMAGES) / f"pagemap-{program.tree.kernel_nspid}.img"
    with killed_when(program, pages.exists):
        yield


@contextmanager
def killed_when(program, moment: Callable[[], bool]) -> Iterator[None]:
    done = threading.Event()

    def kill_it() -> None:
        while not done.is_set():
            pid = criu_pid(program.tree.keeper_nspid)
            if pid and moment():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                return

    thread = threading.Thread(target=kill_it)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("killed", [killed_at_its_start, killed_when_all_stand_still])
@pytest.mark.parametrize("stop", [False, True], ids=["save", "suspend"])
def test_a_killed_criu_leaves_the_program_running(run, killed, *, stop: bool) -> None:
    program = run(HOLDER)
    program.lines(more_than=3)
    descriptors = processes.descriptors(program.tree.kernel_pid)
    with killed(program), pytest.raises(FreezeFailed) as caught:
        program.save(stop=stop)
    assert caught.value.hint
    assert_untouched(program, descriptors)


def test_a_criu_killed_at_work_in_a_program_leaves_it_running(run) -> None:
    program = run(HOLDER)
    program.lines(more_than=3)
    descriptors = processes.descriptors(program.tree.kernel_pid)
    with killed_while_it_reads_memory(program), suppress(FreezeFailed):
        program.save()
    assert_untouched(program, descriptors)


def assert_untouched(program, descriptors: dict[int, str]) -> None:
    assert_runs_on(program)
    assert processes.descriptors(program.tree.kernel_pid) == descriptors
    assert not any("CRIU" in area.path for area in processes.maps(program.tree.kernel_pid))
    program.save(stop=True)


def test_a_killed_criu_leaves_no_link_of_its_own(run) -> None:
    """It makes them before its images say so."""
    program = run("""
        import os, time
        held = open("named", "w")
        os.link("named", "other")
        os.unlink("named")
        n = 0
        while True:
            n += 1
            print(n, flush=True)
            time.sleep(0.01)
    """)
    program.lines(more_than=3)
    directory = program.log.parent

    def made() -> bool:
        return any(directory.glob("link_remap.*"))

    def was_killed() -> bool:
        with killed_when(program, made):
            try:
                program.save()
            except FreezeFailed:
                return True
        return False  # it was done before anybody saw the link

    assert any(was_killed() for _ in range(100))
    assert sorted(path.name for path in directory.iterdir()) == ["other", "program.log"]
    assert_runs_on(program)
    program.save(stop=True)
    assert sorted(path.name for path in directory.iterdir()) == ["other", "program.log"]


#: Stages of a save; a suspend does not let the tasks go on.
SAVES = [
    ("preflight", False),
    ("freeze", False),
    ("capture", False),
    ("thaw", False),
    ("store", False),
]
SUSPENDS = [("preflight", True), ("freeze", True), ("capture", True), ("store", True)]


@pytest.mark.parametrize(
    ("stage", "stop"),
    some_slow([*SAVES, *SUSPENDS], [*SUSPENDS, ("thaw", False)]),
)
def test_a_fault_at_the_begin_of_any_stage_is_undone(run, stage: str, *, stop: bool) -> None:
    program = run(COUNTER)
    program.lines(more_than=3)

    def break_it(record: ProgressRecord) -> None:
        if record.stage == stage:
            raise FreezeFailed(f"broken at {stage}", hint="none")

    with pytest.raises(FreezeFailed, match=stage):
        program.save(stop=stop, progress=Progress(break_it))
    assert_runs_on(program)
    assert program.store.snapshots() == []
    assert program.save().manifest.info.snapshot_id


def test_a_woken_task_fails_the_suspend(run) -> None:
    program = run(HOLDER)
    program.lines(more_than=3)

    woken = []

    def wake(record: ProgressRecord) -> None:
        if record.stage == "store" and not woken:
            os.kill(program.tree.kernel_pid, signal.SIGCONT)
            woken.append(program.fresh_line())

    with pytest.raises(FreezeFailed, match="woken"):
        program.save(stop=True, progress=Progress(wake))
    assert_runs_on(program)


def test_a_failed_resume_leaves_nothing_and_the_snapshot_works_later(run, tmp_path: Path) -> None:
    program = run(COUNTER)
    program.fresh_line()
    saved = program.save(stop=True)
    broken = replace(program.engine, criu=tmp_path / "no-such-criu")
    whole, program.engine = program.engine, broken
    with pytest.raises(GpuCkptError):
        program.resume(saved.manifest.info.snapshot_id)
    program.engine = whole
    assert not launch.alive(program.tree)
    count = len(program.lines())
    program.resume(saved.manifest.info.snapshot_id)
    assert program.lines(more_than=count)


def test_a_missing_working_directory_is_refused_in_words(run, tmp_path: Path) -> None:
    program = run(COUNTER)
    program.fresh_line()
    saved = program.save(stop=True)
    aside = tmp_path / "aside"
    directory = Path(program.spec.cwd)
    directory.rename(aside)
    with pytest.raises(GpuCkptError, match="working directory") as caught:
        program.resume(saved.manifest.info.snapshot_id)
    assert caught.value.hint
    aside.rename(directory)
    program.resume(saved.manifest.info.snapshot_id)
    program.fresh_line()


@pytest.mark.parametrize("plain", some_slow([True, False], {False}))
def test_what_a_criu_that_cannot_start_prints_reaches_the_user(run, engine, tmp_path, plain):
    broken = tmp_path / "criu"
    broken.write_text("#!/bin/sh\necho 'criu: libnl-3.so.200 is missing' >&2; exit 127\n")
    broken.chmod(0o755)
    program = run(COUNTER, engine=replace(engine, criu=broken, plain=plain))
    program.lines(more_than=2)
    with pytest.raises(FreezeFailed, match="could not be run") as caught:
        program.save(stop=True)
    assert "libnl-3.so.200 is missing" in caught.value.details
    assert_runs_on(program)
