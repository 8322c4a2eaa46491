"""engine.tcp.unaccepted: what clients have sent before they were accepted, between sockets of this process."""

import socket

import pytest

from jupyter_gpuckpt.engine.tcp import socket_options
from jupyter_gpuckpt.engine.tcp.unaccepted import Unaccepted
from jupyter_gpuckpt.wire.manifest_records import TcpConnection, TcpEnd


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def connected(listener, data):
    client = socket.create_connection(listener.getsockname())
    client.sendall(data)
    return client


def kept(client):
    end = TcpEnd(1, socket.AF_INET, [*client.getsockname()], [*client.getpeername()], 0, [])
    return TcpConnection("a client", [end], waiting=True)


def test_clients_come_in_the_order_in_which_they_connected_and_others_first(listener):
    unaccepted = Unaccepted()
    with (
        connected(listener, b"first") as one,
        connected(listener, b"") as two,
        connected(listener, b"third") as three,
    ):
        unaccepted.add("7", listener.dup(), one)
        unaccepted.add("7", None, three)
        assert unaccepted
        other = TcpConnection("another", [])
        found, sent = unaccepted.take([kept(three), kept(two), other, kept(one)])
        assert sent == b"firstthird"
        assert [connection.sent for connection in found] == [0, 5, 0, 5]
        places = [connection.ends[0].local[1] for connection in found[1:]]
        assert places == [client.getsockname()[1] for client in (one, two, three)]
        unaccepted.close()
        assert not unaccepted


def test_a_client_that_has_reset_its_connection_is_left_out(listener):
    unaccepted = Unaccepted()
    with connected(listener, b"gone") as one, connected(listener, b"there") as two:
        unaccepted.add("7", listener.dup(), two)
        connections = [kept(one), kept(two)]
        socket_options.end_at_once(one)
        one.close()
        found, sent = unaccepted.take(connections)
        assert sent == b"there"
        assert [connection.sent for connection in found] == [5]
        unaccepted.close()


def test_a_client_that_has_sent_urgent_data_is_left_out(listener):
    unaccepted = Unaccepted()
    with connected(listener, b"normal") as one:
        one.send(b"!", socket.MSG_OOB)
        unaccepted.add("7", listener.dup(), one)
        assert unaccepted.take([kept(one)]) == ([], b"")
        unaccepted.close()


def test_a_client_whose_bytes_are_not_found_is_left_out(listener):
    unaccepted = Unaccepted()
    with connected(listener, b"") as one, socket.create_server(("127.0.0.1", 0)) as another:
        unaccepted.add("8", another.dup(), one)
        assert unaccepted.take([kept(one)]) == ([], b"")
        unaccepted.close()
