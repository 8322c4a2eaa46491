"""Which connections a process has, as the kernel of the operating system lists them."""

import os
import socket

import pytest

from jupyter_gpuckpt.host import connections


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["v4", "v6"])
def pair(request):
    family, address = request.param
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip(f"{address} is not there")
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection((address, port)) as client:
            accepted, _ = listener.accept()
            with accepted:
                yield address, port, client.getsockname()[1]


def ours(**options):
    return connections.established([os.getpid()], **options)


def test_both_ends_are_found_with_their_peers(pair):
    address, port, other = pair
    found = {(c.local_port, c.remote_port): c for c in ours()}
    assert found[port, other].remote_address == found[other, port].remote_address == address
    assert found[port, other].pid == os.getpid()
    shown = f"[{address}]" if ":" in address else address
    assert str(found[other, port]).endswith(f"with {shown}:{port}")


def test_ports_of_ones_own_are_left_out_on_either_side(pair):
    _, port, other = pair
    left = {(c.local_port, c.remote_port) for c in ours(ignored_ports=[port])}
    assert not {(port, other), (other, port)} & left


def test_listening_and_closed_sockets_are_none():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert port not in {c.local_port for c in ours()}


def test_a_process_that_is_gone_has_none():
    assert connections.established([2**22 + 1]) == []
