"""Limits on open files and on processes: the limit is named, the kernel runs on, and nothing is left that nobody knows."""

from __future__ import annotations

import gc
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.engine import thaw
from jupyter_gpuckpt.errors import FreezeFailed, record_of
from jupyter_gpuckpt.host import processes
from tests.conftest import wait_for
from tests.parameters import some_slow
from tests.programs import COUNTER
from tests.snapshots.test_failing_saves import assert_runs_on

#: Listens on a port of its own, and has a connection with itself.
SERVER = """
    import socket, time
    server = socket.create_server(("127.0.0.1", {port}))
    client = socket.create_connection(("127.0.0.1", {port}))
    other, _ = server.accept()
    n = 0
    while True:
        n += 1
        client.sendall(b"x")
        assert other.recv(1) == b"x"
        print(n, flush=True)
        time.sleep(0.01)
"""

FULL = """
    import os, resource, time
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    {make_room}
    n = 0
    while True:
        n += 1
        print(n, flush=True)
        time.sleep(0.01)
"""

Limited = Callable[[int], object]


@contextmanager
def few_descriptors(more: int) -> Iterator[None]:
    """Let this process open only so many more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    fillers = [os.open("/dev/null", os.O_RDONLY)]
    while fillers[-1] < highest:
        fillers.append(os.dup(fillers[0]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1 + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in fillers:
            os.close(descriptor)


@pytest.fixture
def few_processes() -> Iterator[Limited]:
    """Return a context in which this process and its children can start only so many more processes and threads."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    roots = [
        Path(folder)
        for _, folder, kind, options, *_ in mounts
        if kind == "cgroup2" or (kind == "cgroup" and "pids" in options.split(","))
    ]
    root = next((path for path in roots if _has_pids(path)), None)
    if root is None or not os.access(root / "cgroup.procs", os.W_OK):
        pytest.skip("no control group with a limit of processes can be made here")
    former = _group_of_this(root)
    group = root / f"gpuckpt-test-{os.getpid()}"
    group.mkdir()

    @contextmanager
    def limited(more: int) -> Iterator[None]:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        (group / "pids.max").write_text(str(int((group / "pids.current").read_text()) + more))
        try:
            yield
        finally:
            (group / "pids.max").write_text("max")
            (former / "cgroup.procs").write_text(str(os.getpid()))

    yield limited
    for pid in (group / "cgroup.procs").read_text().split():
        (former / "cgroup.procs").write_text(pid)
    group.rmdir()


def _has_pids(root: Path) -> bool:
    controlled = root / "cgroup.subtree_control"
    return not controlled.exists() or "pids" in controlled.read_text().split()


def _group_of_this(root: Path) -> Path:
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    version_2 = (root / "cgroup.controllers").exists()
    path = next(path for _, kinds, path in groups if (not kinds if version_2 else "pids" in kinds))
    return root / path.lstrip("/")


def served(run):
    """Start a program with a port of its own, and save it once."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    program = run(SERVER.format(port=port))
    program.spec = msgspec.structs.replace(program.spec, own_ports=[port])
    program.lines(more_than=3)
    program.save()
    return program


def suspended_and_resumed(program, limited, words: str, more: int) -> None:
    """Suspend and resume within a limit; after each failure the kernel is as before, and the same works without the limit."""
    try:
        with limited(more):
            snapshot = program.save(stop=True).manifest.info.snapshot_id
    except Exception as error:
        record = record_of(error)
        assert words in record.message, record
        assert record.code != "internal"
        assert_runs_on(program)
        snapshot = program.save(stop=True).manifest.info.snapshot_id
    exit_path = str(program._directory / "exit-")
    try:
        with limited(more):
            program.resume(snapshot)
    except Exception as error:
        record = record_of(error)
        assert words in record.message, record
        assert record.code != "internal"
        inits = [
            p for p in processes.every() if any(exit_path in a for a in processes.arguments(p))
        ]
        assert inits == [], "a tree that nobody knows has the kernel's port"
        program.resume(snapshot)
    gc.collect()
    program.fresh_line()


@pytest.mark.parametrize("more", [0, 5, 10])
def test_a_full_table_of_descriptors_costs_no_kernel(run, more: int) -> None:
    suspended_and_resumed(served(run), few_descriptors, "limit of open files", more)


@pytest.mark.parametrize("more", [0, 3])
def test_a_limit_of_processes_costs_no_kernel(run, few_processes, more: int) -> None:
    program = served(run)
    suspended_and_resumed(program, few_processes, "limit of processes and threads", more)


@pytest.mark.slow
@pytest.mark.parametrize("more", range(16))
def test_no_limit_costs_a_kernel(run, few_processes, more: int) -> None:
    program = served(run)
    suspended_and_resumed(program, few_descriptors, "limit of open files", more)
    suspended_and_resumed(program, few_processes, "limit of processes and threads", more)


@pytest.mark.parametrize("stop", some_slow([False, True], {True}), ids=["save", "suspend"])
def test_a_process_that_can_open_no_further_file_is_refused_by_name(run, *, stop: bool) -> None:
    program = run(FULL.format(make_room=""))
    program.lines(more_than=3)
    with pytest.raises(FreezeFailed, match=r"limit of open files: python\S* \(100 of 100\)"):
        program.save(stop=stop)
    assert_runs_on(program)


def test_a_process_that_can_open_some_is_saved(run) -> None:
    program = run(FULL.format(make_room="[os.close(held.pop()) for _ in range(5)]"))
    program.lines(more_than=3)
    program.resume(program.save(stop=True).manifest.info.snapshot_id)
    assert_runs_on(program)


def test_a_clean_up_that_fails_after_a_resume_leaves_no_tree_that_nobody_knows(
    run, monkeypatch
) -> None:
    program = served(run)
    snapshot = program.save(stop=True).manifest.info.snapshot_id

    def refused(directory: Path) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(thaw, "clear", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            program.resume(snapshot)
    program.resume(snapshot)  # on its own port
    assert_runs_on(program)


def test_a_process_of_which_nothing_can_be_learned_has_not_ended(run) -> None:
    program = run(COUNTER)
    program.lines(more_than=3)
    with few_descriptors(0):
        for fact in (
            processes.alive,
            processes.is_ending,
            processes.threads,
            processes.descriptors,
        ):
            with pytest.raises(OSError, match="open files"):
                fact(program.tree.kernel_pid)
    wait_for(lambda: processes.alive(program.tree.kernel_pid))
