"""The ports of a kernel stay its own: before it listens, while it is suspended, and under the next daemon."""

import os
import signal
import socket
import sys
from contextlib import suppress

import pytest

from jupyter_gpuckpt import calls
from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.states import KernelState
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
