"""The unix sockets on which a kernel listens for clients outside: their connections do not keep it from being saved."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.engine.criu import dump
from jupyter_gpuckpt.engine.tree import launch
from jupyter_gpuckpt.errors import FreezeFailed
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.snapshots.resume import resume
from jupyter_gpuckpt.wire.own_sockets import OwnSockets
from jupyter_gpuckpt.wire.progress import Progress
from tests.conftest import PATIENCE

#: Answers the question "who" by the name of its PID namespace. What else clients say stays unread until there is a file `read`. It is
#: also connected to itself.
SERVER = """
    import json, os, select, socket, time
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(PATH)
    listener.listen()
    own = socket.socket(socket.AF_UNIX)
    own.connect(PATH)
    accepted = listener.accept()[0]
    clients, count = [], 0
    while True:
        count += 1
        if select.select([listener], [], [], 0.01)[0]:
            clients.append(listener.accept()[0])
        own.sendall(b"self")
        found = {"count": count, "clients": len(clients), "own": accepted.recv(4).decode()}
        for client in select.select(clients, [], [], 0)[0]:
            if client.recv(3, socket.MSG_PEEK) == b"who":
                client.recv(3)
                client.sendall(os.readlink("/proc/self/ns/pid").encode())
        if os.path.exists("read"):
            os.unlink("read")
            found["read"] = [client.recv(100).decode() for client in clients]
            found["end"] = [client.recv(100).decode() for client in clients]
            clients = []
        print(json.dumps(found), flush=True)
"""


@pytest.fixture
def folder(short_dir):
    folder = short_dir / "own"
    folder.mkdir()
    return folder


@pytest.fixture
def program(run, folder):
    """Return a server whose sockets are its own, as the provisioner says of Jupyter's."""
    path = f"{folder}/k-1"
    started = run(SERVER.replace("PATH", repr(path)))
    started.fresh_line()
    started.spec = msgspec.structs.replace(
        started.spec, own_sockets=OwnSockets([path], str(folder))
    )
    return started


def connected(path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(PATIENCE)
    client.connect(str(path))
    return client


def said(program, condition):
    """Return the first line for which a condition holds."""
    count = 0
    while True:
        for line in program.lines(more_than=count)[count:]:
            count += 1
            if condition(found := json.loads(line)):
                return found


def who(client) -> str:
    """Return the PID namespace of the server to which a client is connected."""
    client.sendall(b"who")
    return client.recv(100).decode()


def namespace(tree) -> str:
    return processes.namespace(tree.kernel_pid, "pid") or ""


def test_connections_outlive_a_save_and_end_with_a_suspend_after_what_was_sent(program, folder):
    with connected(folder / "k-1") as one, connected(folder / "k-1") as two:
        said(program, lambda line: line["clients"] == 2)
        program.save()
        assert who(one) == who(two) == namespace(program.tree)
        one.sendall(b"not read yet"), two.sendall(b"nor this")
        snapshot = program.save(stop=True).manifest.info.snapshot_id
        with pytest.raises(ConnectionResetError):
            one.recv(100)
    program.resume(snapshot)
    (Path(program.spec.cwd) / "read").touch()
    line = said(program, lambda line: "read" in line)
    assert line["read"] == ["not read yet", "nor this"]
    assert line["end"] == ["", ""]
    assert line["own"] == "self"
    with connected(folder / "k-1") as again:
        assert who(again) == namespace(program.tree)


def test_a_client_that_connects_at_the_last_moment_does_not_fail_a_save(
    program, folder, monkeypatch
):
    original, looks = dump._connected, []

    def connected_late(tree, names):
        looks.append(original(tree, names))
        return set() if len(looks) == 1 else looks[-1]

    monkeypatch.setattr(dump, "_connected", connected_late)
    with connected(folder / "k-1") as client:
        said(program, lambda line: line["clients"] == 1)
        program.save()
        assert len(looks) == 3
        assert who(client) == namespace(program.tree)


def test_a_connection_that_is_not_to_a_socket_of_its_own_is_refused_and_it_runs_on(program, folder):
    program.spec = msgspec.structs.replace(
        program.spec, own_sockets=OwnSockets([f"{folder}/k-2"], str(folder))
    )
    with connected(folder / "k-1"):
        said(program, lambda line: line["clients"] == 1)
        with pytest.raises(FreezeFailed, match="unix socket of a program outside"):
            program.save()
    program.fresh_line()


def test_a_second_copy_has_its_sockets_in_another_folder(program, folder, short_dir):
    first = program.tree
    manifest = program.save().manifest
    second = OwnSockets(manifest.launch.own_sockets.names, str(short_dir / "second"))
    launched = msgspec.structs.replace(manifest.launch, own_sockets=second)
    resumed = resume(
        msgspec.structs.replace(manifest, launch=launched),
        program.store,
        program.engine,
        exit_path=short_dir / "exit",
        progress=Progress(),
    )
    program.follow(resumed.tree)
    with connected(short_dir / "second" / "k-1") as client:
        assert who(client) == namespace(program.tree)
    with connected(folder / "k-1") as client:
        assert who(client) == namespace(first)
    # The second one's snapshot comes back where there never was a first one.
    program.spec = msgspec.structs.replace(program.spec, own_sockets=second)
    snapshot = program.save(stop=True).manifest.info.snapshot_id
    launch.kill(first)
    shutil.rmtree(folder)
    program.resume(snapshot)
    with connected(short_dir / "second" / "k-1") as client:
        assert who(client) == namespace(program.tree)
