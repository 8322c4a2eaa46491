"""A restart that can be undone: the former process is kept, stopped, until it is saved, whatever happens to the daemon meanwhile."""

import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.errors import DaemonUnavailable, FreezeFailed, KernelNotFound
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.manifest_records import Cause
from jupyter_gpuckpt.wire.protocol import SaveRequest
from jupyter_gpuckpt.wire.restart_records import SetAsideRequest
from jupyter_gpuckpt.wire.states import KernelState
from tests.daemon.test_crashes_at_every_step import Dying
from tests.ports import free_port

#: A kernel with one variable, random, that it says to everybody who connects to its port; with an argument it cannot be saved.
KERNEL = """
import ctypes, os, socket, sys
variable = os.urandom(8).hex()
kept = []
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen(5)
if sys.argv[2:]:
    libc = ctypes.CDLL(None)
    libc.shmat.restype = ctypes.c_void_p
    shared = libc.shmget(0, 4096, 0o1600)
    libc.shmat(shared, None, 0), libc.shmctl(shared, 0, None)
while True:
    kept.append(listener.accept()[0])
    kept[-1].sendall(variable.encode() + b"\\n")
"""
#: Moments of a restart and of its undo, and the stages of the save that a restart begins, at which the daemon is killed.
DAEMON = "jupyter_gpuckpt.daemon."
RESTART = [
    "jupyter_gpuckpt.engine.tree.standstill.Standstill._stop",
    "jupyter_gpuckpt.engine.tree.standstill.Standstill.begin",
    DAEMON + "kernels.kernels.Kernels.set_aside",
    DAEMON + "kernels.kernel_records.Records.forget",
]
SAVE = ["preflight", "freeze", "capture", "store", "rehearsal", "commit", "stop"]
UNDO = [
    "jupyter_gpuckpt.engine.tree.standstill.Standstill._stop",
    "jupyter_gpuckpt.engine.tree.standstill.Standstill.begin",
    "jupyter_gpuckpt.engine.tree.standstill.Standstill.end",
    DAEMON + "kernels.kernels.Kernels.add",
    DAEMON + "kernels.machine.Machine.kill",
]
#: What the daemon's log says of a process that it keeps.
NOT_SAVED = "before its restart cannot be saved"
ASIDE = SetAsideRequest(SaveRequest("notebook.ipynb", cause=Cause.RESTART), keep_seconds=300)


class Restartable:
    """The kernel, whose restarts launch the same program again."""

    def __init__(self, spec, eventually, *arguments):
        self.port = free_port()
        self.spec = spec(own_ports=[self.port])
        self.spec.argv[:] = [sys.executable, "-c", KERNEL, str(self.port), *arguments]
        self.kernel_id, self._eventually = self.spec.kernel_id, eventually

    def launch(self, client, owner):
        client.send(calls.launch(owner.owner_id, self.spec))
        return self.variable()

    def variable(self):
        return self._eventually(self._asked)

    def _asked(self):
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 10) as client,
            client.makefile() as lines,
        ):
            return lines.readline().strip()
        return ""

    def snapshots(self, client):
        return [one.snapshot_id for one in client.send(calls.snapshots(self.kernel_id))]

    def resumed(self, client, snapshot_id):
        """Resume the kernel from a snapshot and return its variable."""
        client.wait(client.send(calls.suspend(self.kernel_id)).operation_id)
        client.wait(client.send(calls.resume(self.kernel_id, snapshot_id)).operation_id)
        return self.variable()


@pytest.fixture
def restartable(spec, eventually):
    return Restartable(spec, eventually)


@pytest.fixture
def dying(settings, short_dir, eventually):
    made = []

    def make(methods=tuple({*RESTART, *UNDO})):
        made.append(Dying(settings, short_dir / "die-at", eventually, methods))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_the_former_process_runs_on_when_its_save_was_not_complete(
    dying, settings, owner_of, restartable, eventually
):
    daemon = dying(methods=())
    with Client.connect(settings) as client, owner_of(client) as owner:
        before = restartable.launch(client, owner)
        former = client.send(calls.kernel(restartable.kernel_id))
        daemon.hold()
        client.send(calls.set_aside(restartable.kernel_id, ASIDE))
        after = restartable.launch(client, owner)
        assert after != before
        eventually(daemon.held)  # the save goes no further than this
        daemon.hold_no_more()
        with Client.connect(settings) as other, ThreadPoolExecutor() as beside:
            undone = beside.submit(other.send, calls.undo_restart(restartable.kernel_id))
            daemon.go_on()
            found = undone.result()
        assert (found.pid, found.state) == (former.pid, KernelState.RUNNING)
        assert restartable.variable() == before
        assert restartable.snapshots(client) == []
        with pytest.raises(KernelNotFound, match="former process"):
            client.send(calls.undo_restart(restartable.kernel_id))
        # It is a kernel as any other.
        client.wait(client.send(calls.suspend(restartable.kernel_id)).operation_id)
        client.wait(client.send(calls.resume(restartable.kernel_id)).operation_id)
        assert restartable.variable() == before
        client.send(calls.kill(restartable.kernel_id))


def test_it_ends_when_it_is_saved_and_the_snapshot_has_its_variables(
    client, owner, restartable, eventually
):
    before = restartable.launch(client, owner)
    former = client.send(calls.kernel(restartable.kernel_id))
    client.send(calls.set_aside(restartable.kernel_id, ASIDE))
    assert restartable.launch(client, owner) != before
    eventually(lambda: not processes.alive(former.init_pid))
    [info] = client.send(calls.snapshots(restartable.kernel_id))
    assert (info.cause, info.name) == (Cause.RESTART, "notebook.ipynb")
    with pytest.raises(KernelNotFound, match="former process"):
        client.send(calls.undo_restart(restartable.kernel_id))
    assert restartable.resumed(client, info.snapshot_id) == before


def test_a_former_process_and_the_new_one_saved_at_once_have_their_order(
    dying, settings, owner_of, restartable, eventually
):
    daemon = dying(methods=())
    with Client.connect(settings) as client, owner_of(client) as owner:
        restartable.launch(client, owner)
        client.wait(client.send(calls.save(restartable.kernel_id)).operation_id)
        former = client.send(calls.kernel(restartable.kernel_id))
        daemon.hold()
        client.send(calls.set_aside(restartable.kernel_id, ASIDE))
        restartable.launch(client, owner)
        eventually(daemon.held)  # its save has read the list of earlier snapshots
        daemon.hold_no_more()
        client.wait(client.send(calls.save(restartable.kernel_id)).operation_id)
        daemon.go_on()
        eventually(lambda: not processes.alive(former.init_pid))
        found = client.send(calls.snapshots(restartable.kernel_id))
        assert [one.cause for one in found] == [Cause.MANUAL, Cause.RESTART, Cause.MANUAL]
        assert [one.number for one in found] == [3, 2, 1]
        client.send(calls.kill(restartable.kernel_id))


def test_what_cannot_be_saved_is_kept_for_its_time_and_can_be_undone(
    client, owner, spec, settings, eventually
):
    restartable = Restartable(spec, eventually, "unsaveable")
    before = restartable.launch(client, owner)
    former = client.send(calls.kernel(restartable.kernel_id))
    client.send(calls.set_aside(restartable.kernel_id, ASIDE))
    fresh = restartable.launch(client, owner)
    eventually(lambda: NOT_SAVED in settings.log_file.read_text())
    assert processes.state(former.pid) == "T"
    assert client.send(calls.undo_restart(restartable.kernel_id)).pid == former.pid
    assert restartable.variable() == before != fresh
    client.send(calls.set_aside(restartable.kernel_id, SetAsideRequest(ASIDE.save, 0.1)))
    restartable.launch(client, owner)
    eventually(lambda: not processes.alive(former.init_pid))


def test_an_undo_without_the_ports_leaves_both_as_they_are(client, owner, spec, eventually):
    restartable = Restartable(spec, eventually, "unsaveable")
    before = restartable.launch(client, owner)
    client.send(calls.set_aside(restartable.kernel_id, ASIDE))
    # The new kernel does not listen, and another program takes the port.
    client.send(calls.launch(owner.owner_id, spec(kernel_id=restartable.kernel_id)))
    fresh = client.send(calls.kernel(restartable.kernel_id))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", restartable.port))
        other.listen()
        with pytest.raises(FreezeFailed, match=str(restartable.port)):
            client.send(calls.undo_restart(restartable.kernel_id))
        assert client.send(calls.kernel(restartable.kernel_id)).pid == fresh.pid
        eventually(lambda: processes.state(fresh.pid) != "T")
    client.send(calls.undo_restart(restartable.kernel_id))
    assert restartable.variable() == before
    assert not processes.alive(fresh.init_pid)


@pytest.mark.parametrize("at", RESTART, ids=lambda at: at.rpartition(".")[2])
def test_a_daemon_killed_in_a_restart_loses_no_variables(
    dying, settings, owner_of, restartable, eventually, at
):
    daemon = dying()
    with Client.connect(settings) as client, owner_of(client) as owner:
        before = restartable.launch(client, owner)
        daemon.at(at)
        with suppress(DaemonUnavailable):
            client.send(calls.set_aside(restartable.kernel_id, ASIDE))
        daemon.wait()
    dying()
    with Client.connect(settings) as client, owner_of(client) as owner:
        try:
            client.send(calls.kernel(restartable.kernel_id))
        except KernelNotFound:
            assert at in RESTART[2:]  # it was complete, but for the new process
            restartable.launch(client, owner)
            [snapshot] = eventually(lambda: restartable.snapshots(client))
            assert restartable.resumed(client, snapshot) == before
        else:
            assert restartable.variable() == before
        client.send(calls.kill(restartable.kernel_id))


@pytest.mark.parametrize("at", SAVE)
def test_a_daemon_killed_in_the_save_of_a_former_process_loses_no_variables(
    dying, settings, owner_of, restartable, eventually, at
):
    daemon = dying()
    with Client.connect(settings) as client, owner_of(client) as owner:
        before = restartable.launch(client, owner)
        former = client.send(calls.kernel(restartable.kernel_id))
        daemon.at(at)
        with suppress(DaemonUnavailable):
            client.send(calls.set_aside(restartable.kernel_id, ASIDE))
        daemon.wait()
    dying()
    with Client.connect(settings) as client, owner_of(client) as owner:
        after = restartable.launch(client, owner)
        eventually(lambda: not processes.alive(former.init_pid))
        assert restartable.variable() == after != before
        snapshot = restartable.snapshots(client)[0]
        assert restartable.resumed(client, snapshot) == before
        client.send(calls.kill(restartable.kernel_id))


@pytest.mark.parametrize("at", UNDO, ids=lambda at: at.rpartition(".")[2])
def test_a_daemon_killed_in_an_undo_completes_it(dying, settings, owner_of, spec, eventually, at):
    restartable = Restartable(spec, eventually, "unsaveable")
    daemon = dying()
    with Client.connect(settings) as client, owner_of(client) as owner:
        before = restartable.launch(client, owner)
        client.send(calls.set_aside(restartable.kernel_id, ASIDE))
        fresh = restartable.launch(client, owner)
        pid = client.send(calls.kernel(restartable.kernel_id)).init_pid
        assert fresh != before
        eventually(lambda: NOT_SAVED in settings.log_file.read_text())
        daemon.at(at)
        with suppress(DaemonUnavailable):
            client.send(calls.undo_restart(restartable.kernel_id))
        daemon.wait()
    dying()
    with Client.connect(settings) as client, owner_of(client):
        assert client.send(calls.kernel(restartable.kernel_id)).state is KernelState.RUNNING
        assert restartable.variable() == before
        eventually(lambda: not processes.alive(pid))
        client.send(calls.kill(restartable.kernel_id))


def test_the_next_daemon_keeps_what_could_not_be_saved(client, owner, spec, eventually):
    restartable = Restartable(spec, eventually, "unsaveable")
    before = restartable.launch(client, owner)
    client.send(calls.set_aside(restartable.kernel_id, ASIDE))
    after = restartable.launch(client, owner)
    os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    assert client.send(calls.undo_restart(restartable.kernel_id)).state is KernelState.RUNNING
    assert restartable.variable() == before != after
