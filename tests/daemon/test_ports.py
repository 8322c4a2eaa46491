"""The ports of a kernel stay its own: before it listens, while it is suspended, and under the next daemon."""

import asyncio
import errno
import os
import signal
import socket
import sys
from contextlib import suppress

import pytest

from jupyter_gpuckpt.client import Client, this_owner
from jupyter_gpuckpt.daemon.kernels.kernel_records import KernelRecord, Records
from jupyter_gpuckpt.daemon.kernels.kernels import Kernels
from jupyter_gpuckpt.daemon.kernels.machine import Machine
from jupyter_gpuckpt.daemon.kernels.owners import Owners
from jupyter_gpuckpt.daemon.kernels.streams import Streams
from jupyter_gpuckpt.daemon.remotes.remote_copies import local_chunks
from jupyter_gpuckpt.linux.ports import HeldPorts
from jupyter_gpuckpt.wire import calls, place
from jupyter_gpuckpt.wire.daemon_settings import Settings
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from jupyter_gpuckpt.wire.protocol import OwnerKind
from jupyter_gpuckpt.wire.states import KernelState
from tests.ports import unused_port

LISTENER = """
import os, socket, sys, time
while sys.argv[2] and not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
with socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=8) as listener:
    while True:
        with listener.accept()[0] as peer:
            peer.recv(1)  # who closes last leaves nothing in TIME_WAIT
"""


@pytest.fixture
def daemon_env(emptied_daemon_env):
    return emptied_daemon_env


#: As NCCL does it in one process: no SO_REUSEADDR, and connections to itself.
SELF_CONNECTED = """
import socket, sys, time
listener = socket.socket()
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen()
pairs = [(socket.create_connection(listener.getsockname()), listener.accept()[0]) for _ in range(3)]
while True:
    time.sleep(1)
"""


@pytest.fixture
def port():
    return unused_port()


@pytest.fixture
def launch(client, owner, spec, port):
    def start(after=""):
        argv = [sys.executable, "-c", LISTENER, str(port), str(after)]
        return client.send(calls.launch(owner.owner_id, spec(argv, own_ports=[port])))

    return start


def answers(port):
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=120):
        return True
    return False


def taken(port):
    try:
        with socket.socket() as other:
            other.bind(("127.0.0.1", port))
    except OSError:
        return True
    return False


def test_nobody_gets_the_ports_of_a_kernel_that_is_just_starting(
    launch, port, short_dir, eventually
):
    go = short_dir / "go"
    launch(after=go)
    assert not answers(port)
    assert taken(port)
    go.touch()
    eventually(lambda: answers(port))


def test_nor_those_of_a_suspended_one_which_listens_there_again(client, launch, port, eventually):
    kernel = launch()
    eventually(lambda: answers(port))
    client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    assert not answers(port)
    assert taken(port)
    client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
    eventually(lambda: answers(port))
    client.send(calls.kill(kernel.kernel_id))
    eventually(lambda: not answers(port))
    assert not taken(port)


def test_nor_after_the_daemon_was_replaced(client, launch, port, settings, eventually):
    kernel = launch()
    eventually(lambda: answers(port))
    os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    with Client.connect(settings) as following:
        following.wait(following.send(calls.suspend(kernel.kernel_id)).operation_id)
        assert following.send(calls.kernel(kernel.kernel_id)).state is KernelState.SUSPENDED
        assert not answers(port)
        assert taken(port)
        following.wait(following.send(calls.resume(kernel.kernel_id)).operation_id)
        eventually(lambda: answers(port))


def test_the_next_server_gets_other_ports_for_those_that_were_taken_while_no_daemon_ran(
    client, owner_of, spec, port, settings, eventually
):
    argv = [sys.executable, "-c", LISTENER, str(port), ""]
    jupyter = {"root": "/tmp/a", "connection_info": {"shell_port": port}}
    with owner_of(client, root_dir="/tmp/a") as server:
        launch = spec(argv, own_ports=[port], jupyter=jupyter)
        kernel = client.send(calls.launch(server.owner_id, launch))
        eventually(lambda: answers(port))
        client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
        client.send(calls.leave(server.owner_id))
    os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    eventually(lambda: not taken(port))
    with (
        socket.create_server(("127.0.0.1", port)),
        Client.connect(settings) as following,
        owner_of(following, root_dir="/tmp/a") as heir,
    ):
        (claimed,) = following.send(calls.claim(heir.owner_id))
        other = claimed.jupyter["connection_info"]["shell_port"]
        assert other != port
        assert taken(other)
        assert not answers(other)
        following.wait(following.send(calls.resume(kernel.kernel_id)).operation_id)
        eventually(lambda: answers(other))


def test_a_listener_without_reuse_is_back_on_its_port_though_it_had_connections(
    client, owner, spec, port, eventually
):
    kernel = client.send(
        calls.launch(owner.owner_id, spec([sys.executable, "-c", SELF_CONNECTED, str(port)]))
    )
    eventually(lambda: answers(port))
    for _ in range(2):
        client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
        result = client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
        assert result.moved_ports == {}
        assert answers(port)


def test_taken_ports_are_replaced_and_others_stay():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listens = listener.getsockname()[1]
        other, free = HeldPorts.free(1), unused_port()
        mine = HeldPorts([listens, other.ports[0], free])
        mine.hold()
        replaced = mine.replace_taken(other.ports)
        assert replaced.keys() == {listens, *other.ports}
        assert mine.ports == [replaced[listens], replaced[other.ports[0]], free]
        assert {one.getsockname()[1] for one in mine._sockets} == {*mine.ports}
        assert mine.replace_taken() == {}
        for held in (mine, other):
            held.release()


@pytest.mark.parametrize("can_replace", [True, False])
def test_a_kernel_from_another_machine_gets_other_ports_than_those_of_a_kernel_here(
    tmp_path, monkeypatch, can_replace
):
    def record(kernel_id, port):
        spec = LaunchSpec(kernel_id, ["python"], {}, "/", "", own_ports=[port])
        owner, here = this_owner(OwnerKind.SCRIPT), place.this_place(tmp_path)
        jupyter = {"connection_info": {"shell_port": port}}
        return KernelRecord(spec, owner, here, KernelState.SUSPENDED, jupyter=jupyter)

    def refused(count):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def main():
        here = place.this_place(tmp_path)
        machine = Machine(Settings(str(tmp_path)), here, local_chunks=local_chunks)
        kernels = Kernels(Records(tmp_path / "state", here), machine, Streams())
        port = unused_port()
        first, second = (kernels.add(record(one, port)) for one in ("first", "second"))
        for kernel in (first, second):
            kernel.ports.hold()
        owners = Owners(Streams(), kernels, None, None, None, machine, None, list)
        if not can_replace:
            monkeypatch.setattr(HeldPorts, "free", refused)
        await owners._replace_taken_ports(second)
        [other] = second.ports.ports
        assert (other != port) is can_replace
        assert second.record.spec.own_ports == [other]
        assert second.record.jupyter["connection_info"] == {"shell_port": other}
        assert first.record.spec.own_ports == [port]
        for kernel in (first, second):
            kernel.ports.release()
        await kernels.close()
        machine.close()

    asyncio.run(main())
