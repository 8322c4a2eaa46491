"""Files of servers that do not answer: a save says so, and whatever becomes of it, every process of the kernel runs again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from jupyter_gpuckpt.engine import preflight, recovery
from jupyter_gpuckpt.engine.criu import dump
from jupyter_gpuckpt.engine.tree import launch, standstill
from jupyter_gpuckpt.errors import FreezeFailed, KernelNotCheckpointable
from jupyter_gpuckpt.host import fuse, processes
from tests.conftest import wait_for
from tests.parameters import some_slow
from tests.programs import COUNTER
from tests.snapshots.test_failing_saves import assert_runs_on

ROOT = Path(__file__).parents[2]
SERVER = [sys.executable, "-m", "tests.fuse_server"]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK),
    reason="mounting a file system of a user's program needs root and /dev/fuse",
)

READER = """
    import sys, time
    file = open({folder!r} + "/file", "r+")
    n = 0
    while True:
        n += 1
        print(n, flush=True)
        time.sleep(0.01)
"""

#: The server is a child of the program, and its mount is in the program's mount namespace only.
OWN_SERVER = f"""
    import subprocess, tempfile
    folder = tempfile.mkdtemp()
    server = subprocess.Popen({SERVER!r} + [folder], cwd={str(ROOT)!r}, stdout=subprocess.PIPE)
    server.stdout.readline()
""" + READER.replace("{folder!r}", "folder")


@pytest.fixture
def outer_server(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """Yield the folder and the pid of a server that does not belong to the program."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    with subprocess.Popen([*SERVER, folder], cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "mounted\n"
        yield str(folder), server.pid
        server.kill()
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def unwarned(monkeypatch) -> None:
    """Leave out the checks that refuse such kernels before anything is stopped."""
    monkeypatch.setattr(preflight, "_refuse_servers", lambda members: None)
    monkeypatch.setattr(preflight, "_refuse_silent", lambda tree, members: None)
    monkeypatch.setattr(dump, "_END_SECONDS", 0.5)


@pytest.mark.parametrize("stop", some_slow([False, True], {True}), ids=["save", "suspend"])
def test_a_kernel_that_serves_a_file_system_is_refused_by_name(run, *, stop: bool) -> None:
    program = run(OWN_SERVER)
    program.lines(more_than=3)
    server = launch.pids(program.tree)[-1]
    with pytest.raises(KernelNotCheckpointable, match=r"serves a file system.*python") as caught:
        program.save(stop=stop)
    assert f"process {server} " in caught.value.details
    assert "outside" in caught.value.hint
    assert_runs_on(program)


def test_a_file_system_that_does_not_answer_is_named_before_anything_stops(
    run, outer_server, monkeypatch
) -> None:
    folder, server = outer_server
    program = run(READER.format(folder=folder))
    program.lines(more_than=3)
    program.save()
    os.kill(server, signal.SIGSTOP)
    monkeypatch.setattr(preflight, "_ANSWER_SECONDS", 0.2)
    with pytest.raises(FreezeFailed, match=f"{folder}.*does not answer"):
        program.save(stop=True)
    assert_runs_on(program)
    os.kill(server, signal.SIGCONT)
    program.save()
    assert_runs_on(program)


@pytest.mark.parametrize("stop", some_slow([False, True], {True}), ids=["save", "suspend"])
def test_processes_run_again_after_criu_waited_for_a_server_that_it_had_stopped(
    run, engine, unwarned, *, stop: bool
) -> None:
    program = run(OWN_SERVER, engine=replace(engine, stall_seconds=0.5))
    program.lines(more_than=3)
    server = launch.pids(program.tree)[-1]
    with pytest.raises(FreezeFailed, match=rf"/file \(python\w*, process {server}\)") as caught:
        program.save(stop=stop)
    assert "did not answer" in str(caught.value)
    assert_runs_on(program)


def test_processes_run_again_after_criu_waited_for_a_stopped_server_elsewhere(
    run, engine, outer_server, unwarned
) -> None:
    folder, server = outer_server
    program = run(READER.format(folder=folder), engine=replace(engine, stall_seconds=0.5))
    program.lines(more_than=3)
    os.kill(server, signal.SIGSTOP)
    with pytest.raises(FreezeFailed, match=rf"/file \(python\w*, process {server}\)"):
        program.save()
    assert_runs_on(program)
    with pytest.raises(FreezeFailed, match="is not connected"):
        program.save()
    assert_runs_on(program)


@pytest.mark.slow
def test_a_kernel_that_criu_holds_for_ever_runs_on_as_soon_as_the_server_answers(
    run, engine, outer_server, unwarned, monkeypatch
) -> None:
    """What Linux waits for is not always something that can be aborted."""
    folder, server = outer_server
    program = run(READER.format(folder=folder), engine=replace(engine, stall_seconds=0.5))
    program.lines(more_than=3)
    os.kill(server, signal.SIGSTOP)
    monkeypatch.setattr(fuse, "abort_waiting", lambda pids: [])
    with pytest.raises(FreezeFailed, match=r"stands still.*criu.*cannot be ended"):
        program.save()
    with pytest.raises(FreezeFailed, match="stands still after an earlier save"):
        program.save()
    os.kill(server, signal.SIGCONT)
    wait_for(lambda: not program.tree.inside(standstill._JOURNAL).exists())
    assert_runs_on(program)
    program.save()


def test_the_next_daemon_lets_processes_run_that_a_waiting_criu_holds(
    run, unwarned, monkeypatch
) -> None:
    program = run(OWN_SERVER)
    program.lines(more_than=3)
    monkeypatch.setattr(recovery, "_CRIU_SECONDS", 0.5)
    saving = multiprocessing.get_context("fork").Process(target=program.save)
    saving.start()
    wait_for(lambda: "t" in map(processes.state, launch.pids(program.tree)))
    saving.kill()
    saving.join()
    recovery.recover(program.tree)
    assert_runs_on(program)


@pytest.fixture
def freezer() -> Iterator[Path]:
    """Yield a new control group (version 2) that can freeze processes; those in it leave it at the end."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    root = next((Path(folder) for _, folder, kind, *_ in mounts if kind == "cgroup2"), None)
    if root is None or not os.access(root / "cgroup.procs", os.W_OK):
        pytest.skip("no control groups of version 2 can be made here")
    group = root / f"gpuckpt-test-{os.getpid()}"
    group.mkdir()
    yield group
    (group / "cgroup.freeze").write_text("0")
    for pid in (group / "cgroup.procs").read_text().split():
        (root / "cgroup.procs").write_text(pid)
    group.rmdir()


def test_a_frozen_control_group_is_named_and_the_kernel_runs_on_when_it_is_thawed(
    run, freezer, monkeypatch
) -> None:
    program = run(COUNTER)
    program.lines(more_than=3)
    (freezer / "cgroup.procs").write_text(str(program.tree.kernel_pid))
    (freezer / "cgroup.freeze").write_text("1")
    wait_for(lambda: "frozen 1" in (freezer / "cgroup.events").read_text())
    monkeypatch.setattr(standstill, "_STOP_SECONDS", 0.2)
    with pytest.raises(FreezeFailed, match="control group is frozen"):
        program.save()
    (freezer / "cgroup.freeze").write_text("0")
    assert_runs_on(program)
