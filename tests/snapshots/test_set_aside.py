"""A tree that is set aside: it stands still, others get its ports, and it is saved, or runs on, as if it had never stopped."""

import socket

import pytest

from jupyter_gpuckpt.daemon.kernels import stopped_trees
from jupyter_gpuckpt.engine import recovery
from jupyter_gpuckpt.engine.tree.launch import alive, pids
from jupyter_gpuckpt.errors import FreezeFailed, OperationCancelled
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.snapshots.save import save
from jupyter_gpuckpt.wire.manifest_records import SaveOptions
from jupyter_gpuckpt.wire.progress import Progress
from tests.conftest import wait_for
from tests.parameters import some_slow
from tests.ports import free_port

#: A server with one listener in an epoll set, which a forked child has, too; it answers with the number of its connections.
SERVER = """
import os, select, signal, socket, sys, time
one = socket.socket()
one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
one.bind(("127.0.0.1", {port}))
one.listen(13)
if not (child := os.fork()):
    signal.pause()
events = select.epoll()
events.register(one, select.EPOLLIN)
count, kept = 0, []
print("ready", flush=True)
while True:
    for _, what in events.poll():
        if what & select.EPOLLHUP:
            sys.exit("the listener hung up")
        count += 1
        kept.append(one.accept()[0])
        option = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        kept[-1].sendall(f"{{count}} {{option}}\\n".encode())
"""


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def server(run, port):
    program = run(SERVER.format(port=port))
    program.lines()
    return program


def ask(port):
    with socket.create_connection(("127.0.0.1", port), 20) as client:
        return client.makefile().readline()


def listens(port):
    other = socket.socket()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    other.bind(("127.0.0.1", port))
    other.listen()
    return other


def saved(program, **options):
    return save(
        program.tree,
        program.spec,
        program.store,
        program.engine,
        SaveOptions(stop=True, stands_still=True, name="program"),
        **{"progress": Progress(), **options},
    )


def stands_still(tree):
    return all(processes.state(pid) == "T" for pid in pids(tree))


def test_it_gives_its_ports_away_and_goes_on_listening_afterwards(server, port):
    with socket.create_connection(("127.0.0.1", port)) as client:
        lines = client.makefile()
        assert lines.readline() == "1 77\n"
        stopped_trees.set_aside(server.tree)
        assert lines.readline() == ""  # so that clients connect again
        with listens(port) as other, socket.create_connection(("127.0.0.1", port)):
            other.accept()[0].close()
            with pytest.raises(FreezeFailed, match=f"port {port} is taken"):
                stopped_trees.go_on(server.tree, [port])
            assert stands_still(server.tree)
    stopped_trees.go_on(server.tree, [port])
    assert ask(port) == "2 77\n"
    stopped_trees.go_on(server.tree, [port])  # nothing is left to do
    assert ask(port) == "3 77\n"
    assert server.save(stop=True).warnings == []


def test_it_is_saved_while_another_process_has_its_ports(server, port):
    assert ask(port) == "1 77\n"
    stopped_trees.set_aside(server.tree)
    with listens(port):
        snapshot = saved(server).manifest.info
        assert not alive(server.tree)
    server.tree = server.resume(snapshot.snapshot_id).tree
    assert not any(processes.state(pid) == "T" for pid in pids(server.tree))
    assert ask(port) == "2 77\n"


class Canceled(Progress):
    """A save that is canceled in a stage."""

    def __init__(self, stage):
        super().__init__(lambda record: self.cancel() if record.stage == stage else None)


@pytest.mark.parametrize("stage", some_slow(["preflight", "freeze", "store"], {"freeze", "store"}))
def test_a_save_that_fails_leaves_it_standing_still(server, port, stage):
    stopped_trees.set_aside(server.tree)
    with listens(port):
        with pytest.raises(OperationCancelled):
            saved(server, progress=Canceled(stage))
        # A task that CRIU or the repair has let go stops again as soon as it gets a processor. It executes nothing of its own before:
        # the program would end.
        wait_for(lambda: stands_still(server.tree))
        recovery.recover(server.tree, stands_still=True)  # what the next daemon does
        wait_for(lambda: stands_still(server.tree))
    stopped_trees.go_on(server.tree, [port])
    assert ask(port) == "1 77\n"
