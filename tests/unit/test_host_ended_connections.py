"""Connections that no program has any more."""

import os
import socket
from pathlib import Path

import pytest

from jupyter_gpuckpt.host import ended_connections

ADDRESSES = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]


def listens(family, address, port):
    with socket.socket(family) as listener:
        try:
            listener.bind((address, port))
        except OSError:
            return False
        listener.listen()
    return True


def listening(family, address):
    """Return a listener without SO_REUSEADDR."""
    if family is socket.AF_INET6 and not Path("/proc/net/if_inet6").exists():
        pytest.skip("there is no IPv6 here")
    listener = socket.socket(family)
    listener.bind((address, 0))
    listener.listen()
    return listener


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may end connections")
@pytest.mark.parametrize(("family", "address"), ADDRESSES, ids=["IPv4", "IPv6"])
def test_a_port_is_free_at_once_of_connections_that_were_closed(family, address):
    with listening(family, address) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((address, port)) as client:
            with listener.accept()[0] as peer:
                ended_connections.remove({port})  # nobody has closed anything
                peer.sendall(b"x")
            assert client.recv(2) == b"x"
    assert not listens(family, address, port)
    ended_connections.remove({port + 1})
    assert not listens(family, address, port)
    ended_connections.remove({port})
    assert listens(family, address, port)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may end connections")
def test_nor_does_one_whose_other_side_does_not_close_keep_it():
    with listening(*ADDRESSES[0]) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        listener.accept()[0].close()
        assert client.recv(1) == b""
    with client:
        assert not listens(*ADDRESSES[0], port)
        ended_connections.remove({port})
        assert listens(*ADDRESSES[0], port)
