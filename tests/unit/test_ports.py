"""Ports kept for a process that does not listen yet."""

import socket

import pytest
import zmq

from jupyter_gpuckpt.linux.ports import HeldPorts
from tests.ports import unused_port


@pytest.fixture
def port():
    return unused_port()


@pytest.fixture
def held(port):
    ports = HeldPorts([port])
    ports.hold()
    yield ports
    ports.release()


def plain_bind(port):
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_nobody_else_gets_a_held_port(held, port):
    with pytest.raises(OSError, match="in use"):
        plain_bind(port)


def test_its_owner_listens_there_and_comes_back_to_it(held, port):
    for _ in range(2):
        # A socket of ZMQ's is closed when its context has ended, not before.
        with zmq.Context() as context, context.socket(zmq.ROUTER) as listener:
            listener.bind(f"tcp://127.0.0.1:{port}")
            with socket.create_connection(("127.0.0.1", port), timeout=120):
                pass
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_port_that_is_listened_on_is_held_later(port):
    ports = HeldPorts([port])
    with socket.create_server(("127.0.0.1", port)):
        ports.hold()
    plain_bind(port)
    ports.hold()
    with pytest.raises(OSError, match="in use"):
        plain_bind(port)
    ports.release()
    plain_bind(port)
    ports.hold()
    plain_bind(port)
