"""Kernels made from a snapshot of another one, beside it."""

import os
import shutil
import signal
import socket
import sys
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.errors import (
    ConfigurationError,
    KernelStateConflict,
    SnapshotInUse,
    SnapshotNotFound,
    ThawFailed,
)
from jupyter_gpuckpt.linux.ports import HeldPorts
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import BranchRequest, OperationKind
from jupyter_gpuckpt.wire.states import KernelState

#: Keeps a word; each connection to its first port may say another, and is told the word and the number of the second port.
KEEPER = """
import os, select, socket, sys
word = "first"
first = socket.create_server(("127.0.0.1", int(sys.argv[1])))
second = socket.create_server(("127.0.0.1", int(sys.argv[2])))
if len(sys.argv) > 3:
    named = socket.socket(socket.AF_UNIX)
    named.bind(sys.argv[3])
    named.listen()
while True:
    for ready in select.select([first, second], [], [])[0]:
        with ready.accept()[0] as peer:
            if ready is second:
                peer.sendall(word.encode())
                continue
            said = peer.recv(100).decode().strip()
            word = said or word
            peer.sendall(f"{word} {second.getsockname()[1]}".encode())
"""


@pytest.fixture
def daemon_env(emptied_daemon_env):
    return emptied_daemon_env


def ask(port, word=""):
    with socket.create_connection(("127.0.0.1", port), timeout=120) as peer:
        peer.sendall(f"{word}\n".encode())
        found = peer.makefile().read()
    said, second = found.split()
    return said, int(second)


def word_at(port):
    with socket.create_connection(("127.0.0.1", port), timeout=120) as peer:
        return peer.makefile().read()


@pytest.fixture
def ports():
    held = HeldPorts.free(2)
    yield held.ports
    held.release()


@pytest.fixture
def keeper(client, owner, spec, ports, eventually):
    """Return a function that launches a kernel which stores a value."""

    def start(*more):
        argv = [sys.executable, "-c", KEEPER, *map(str, ports), *map(str, more)]
        kernel = client.send(calls.launch(owner.owner_id, spec(argv, own_ports=ports[:1])))

        def answers():
            try:
                return ask(ports[0])
            except OSError:
                return None

        eventually(answers)
        return kernel

    return start


@pytest.fixture
def branch(owner):
    """Make a branch from a snapshot and resume it."""
    with ExitStack() as held:

        def make(client, snapshot_id, count=1):
            free = HeldPorts.free(count)
            held.callback(free.release)
            kernel_id = str(uuid.uuid4())
            request = BranchRequest(owner.owner_id, snapshot_id, kernel_id, free.ports)
            return client.send(calls.branch(request)), free.ports

        yield make


def resumed(client, kernel_id):
    return client.wait(client.send(calls.resume(kernel_id)).operation_id)


def test_three_branches_live_beside_the_kernel_and_go_their_own_ways(client, keeper, branch, ports):
    kernel = keeper()
    ask(ports[0], "saved")
    snapshot_id = client.wait(client.send(calls.save(kernel.kernel_id)).operation_id).snapshot_id
    ask(ports[0], "later")
    words = {ports[0]: ("later", ports[1])}
    for word in ("one", "two", "three"):
        made, (port,) = branch(client, snapshot_id)
        assert (made.state, made.parent_snapshot_id) == (KernelState.SUSPENDED, snapshot_id)
        operation = client.send(calls.resume(made.kernel_id))
        assert operation.kind is OperationKind.BRANCH
        result = client.wait(operation.operation_id)
        assert ask(port) == ("saved", result.moved_ports[ports[1]])
        words[port] = ask(port, word)
    assert {port: ask(port) for port in words} == words
    # Also on the ports that nobody had named: each has its own.
    assert {word_at(second): word for word, second in words.values()} == {
        word: word for word, _ in words.values()
    }
    assert len({kernel.pid for kernel in client.send(calls.kernels())}) == 4


def test_a_branch_is_a_kernel_like_any_other(client, keeper, branch, ports):
    kernel = keeper()
    saved = client.wait(client.send(calls.save(kernel.kernel_id)).operation_id)
    made, (port,) = branch(client, saved.snapshot_id)
    # Its snapshot is another's, and needed all the same.
    with pytest.raises(SnapshotInUse):
        client.send(calls.delete_snapshot(saved.snapshot_id))
    resumed(client, made.kernel_id)
    ask(port, "branched")
    client.send(calls.kill(kernel.kernel_id))
    suspended = client.wait(client.send(calls.suspend(made.kernel_id)).operation_id)
    assert [s.kernel_id for s in client.send(calls.snapshots(made.kernel_id))] == [made.kernel_id]
    operation = client.send(calls.resume(made.kernel_id))
    assert operation.kind is OperationKind.RESUME
    client.wait(operation.operation_id)
    assert ask(port)[0] == "branched"
    # A branch of a branch, from either of its snapshots.
    for snapshot_id, word in ((suspended.snapshot_id, "branched"), (saved.snapshot_id, "first")):
        again, (other,) = branch(client, snapshot_id)
        resumed(client, again.kernel_id)
        assert ask(other)[0] == word
    # It may also go back to the snapshot that it was made from.
    client.wait(client.send(calls.suspend(made.kernel_id)).operation_id)
    client.wait(client.send(calls.resume(made.kernel_id, saved.snapshot_id)).operation_id)
    assert ask(port)[0] == "first"


def test_a_port_that_somebody_took_meanwhile_is_another_one_after_a_resume(client, keeper, ports):
    kernel = keeper()
    client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    with socket.create_server(("127.0.0.1", ports[1])):
        result = resumed(client, kernel.kernel_id)
        assert ask(ports[0]) == ("first", result.moved_ports[ports[1]])


def test_a_kernel_does_not_come_back_where_nobody_would_find_it(client, keeper, ports, settings):
    kernel = keeper()
    client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    # Nobody can take a port that the daemon holds; but one that was away does not.
    os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    with socket.create_server(("127.0.0.1", ports[0])), Client.connect(settings) as following:
        with pytest.raises(ThawFailed, match=f"own port {ports[0]} is taken"):
            resumed(following, kernel.kernel_id)
        assert following.send(calls.kernel(kernel.kernel_id)).state is KernelState.SUSPENDED
    with Client.connect(settings) as following:
        resumed(following, kernel.kernel_id)
    assert ask(ports[0])[0] == "first"


def connects(path):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(120)
        try:
            peer.connect(str(path))
        except OSError:
            return False
        return True


def test_a_branch_listens_in_a_temporary_directory_of_its_own(client, keeper, branch, short_dir):
    path = short_dir / "temporary" / "named.socket"
    path.parent.mkdir()
    (path.parent / "beside").write_text("something")
    kernel = keeper(path)
    saved = client.wait(client.send(calls.save(kernel.kernel_id)).operation_id)
    made, (port,) = branch(client, saved.snapshot_id)
    resumed(client, made.kernel_id)
    theirs = Path(f"/proc/{client.send(calls.kernel(made.kernel_id)).pid}/root{path}")
    assert path.stat().st_ino != theirs.stat().st_ino
    assert (theirs.parent / "beside").read_text() == "something"
    # Again beside its original, then without it and its directory.
    client.wait(client.send(calls.suspend(made.kernel_id)).operation_id)
    resumed(client, made.kernel_id)
    assert connects(path)
    client.wait(client.send(calls.suspend(made.kernel_id)).operation_id)
    client.send(calls.kill(kernel.kernel_id))
    shutil.rmtree(path.parent)
    resumed(client, made.kernel_id)
    assert ask(port)[0] == "first"
    assert connects(path)


def test_a_socket_elsewhere_is_not_taken_over(client, keeper, branch):
    path = Path(f"/tmp/gpuckpt-test-{uuid.uuid4().hex}")
    kernel = keeper(path)
    saved = client.wait(client.send(calls.save(kernel.kernel_id)).operation_id)
    made, _ = branch(client, saved.snapshot_id)
    with pytest.raises(ThawFailed, match="socket in /tmp,") as caught:
        resumed(client, made.kernel_id)
    assert "branched from" in caught.value.hint
    assert client.send(calls.kernel(made.kernel_id)).state is KernelState.SUSPENDED
    assert connects(path)
    client.send(calls.kill(kernel.kernel_id))
    resumed(client, made.kernel_id)
    path.unlink()


def test_a_daemon_that_is_killed_in_a_branch_leaves_it_suspended(
    client, keeper, branch, ports, settings, eventually
):
    kernel = keeper()
    saved = client.wait(client.send(calls.save(kernel.kernel_id)).operation_id)
    made, (port,) = branch(client, saved.snapshot_id)
    client.send(calls.resume(made.kernel_id))
    os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    with Client.connect(settings) as following:
        state = following.send(calls.kernel(made.kernel_id)).state
        assert state in {KernelState.SUSPENDED, KernelState.RUNNING}
        if state is KernelState.SUSPENDED:
            resumed(following, made.kernel_id)
        assert ask(port)[0] == "first"
        assert ask(ports[0])[0] == "first"


def test_what_cannot_be_branched_is_refused(client, keeper, branch, owner):
    kernel = keeper()
    saved = client.wait(client.send(calls.save(kernel.kernel_id)).operation_id)
    with pytest.raises(ConfigurationError, match="listens on 1 ports"):
        branch(client, saved.snapshot_id, count=2)
    for folder in ("sockets", "/tmp/../etc", "/tmp/\0"):
        request = BranchRequest(owner.owner_id, saved.snapshot_id, "k", [1], sockets_folder=folder)
        with pytest.raises(ConfigurationError, match="no absolute path"):
            client.send(calls.branch(request))
    with pytest.raises(SnapshotNotFound):
        branch(client, "none")
    with pytest.raises(KernelStateConflict):
        client.send(
            calls.branch(BranchRequest(owner.owner_id, saved.snapshot_id, kernel.kernel_id, [1]))
        )


def test_the_launch_spec_is_returned_without_the_environment(client, keeper, ports):
    kernel = keeper()
    saved = client.wait(client.send(calls.save(kernel.kernel_id)).operation_id)
    launch = client.send(calls.launch_spec(saved.snapshot_id))
    assert (launch.kernel_id, launch.own_ports) == (kernel.kernel_id, ports[:1])
    assert launch.env == {}
    assert launch.secrets == {"key": "not-for-the-log"}
