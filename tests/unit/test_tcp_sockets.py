"""The list of TCP sockets is the same whichever way Linux is asked for it."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from jupyter_gpuckpt.linux import tcp_sockets
from tests.conftest import wait_for

FILES = Path("/proc/self/net")
#: Established, FIN_WAIT_2, CLOSE_WAIT, listening.
STATES = {"01", "05", "08", "0A"}
LOOPBACKS = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]


@pytest.fixture
def ports():
    """Return the ports of listeners and connections in all states that last, with bytes on their way."""
    with ExitStack() as stack:
        used = set()
        for family, address in LOOPBACKS:
            listener = stack.enter_context(socket.socket(family))
            try:
                listener.bind((address, 0))
            except OSError:
                continue  # there is no IPv6 here
            listener.listen()
            place = listener.getsockname()[:2]
            unread, left, waiting = (
                stack.enter_context(socket.create_connection(place)) for _ in range(3)
            )
            peer = stack.enter_context(listener.accept()[0])
            peer.sendall(b"not read")
            listener.accept()[0].close()
            assert left.recv(1) == b""
            used |= {one.getsockname()[1] for one in (listener, unread, left, waiting)}
        # Linux may delay the acknowledgement of a close.
        wait_for(lambda: {one.state for one in of(used, tcp_sockets.in_files(FILES))} == STATES)
        yield used


def of(ports, listed):
    """Return the sockets between these ports. Other programs may use one of them in connections of their own."""

    def port(address):
        return int(address.rpartition(":")[2], 16)

    return {one for one in listed if port(one.local) in ports and port(one.remote) in {0, *ports}}


def test_sock_diag_and_the_files_list_the_same(ports):
    asked = of(ports, tcp_sockets._asked())
    assert asked == of(ports, tcp_sockets.in_files(FILES))
    assert any(one.queues.endswith(":00000008") for one in asked)


@pytest.mark.parametrize("name", ["_NETLINK_SOCK_DIAG", "_TCPDIAG_GETSOCK"])
def test_where_linux_refuses_the_request_the_files_are_read(ports, name, monkeypatch):
    asked = of(ports, tcp_sockets.of_this_namespace())
    monkeypatch.setattr(tcp_sockets, name, 31)
    with pytest.raises(OSError, match=r"Protocol not supported|TCPDIAG_GETSOCK"):
        list(tcp_sockets._asked())
    assert of(ports, tcp_sockets.of_this_namespace()) == asked
