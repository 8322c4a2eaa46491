"""Replies to requests that ZMQ had received before their peer connected again, with real sockets."""

import json

import pytest
import zmq

from jupyter_gpuckpt.kernel_agent.addresses import (
    DELIMITER,
    deliver,
    may_be_lost,
    offered,
    other_address,
)

#: Milliseconds after which something that does not happen any more is a failure.
TIMEOUT = 120_000


@pytest.fixture
def context():
    with zmq.Context() as context:
        context.linger = 0
        yield context


@pytest.fixture
def router(context):
    """Yield the socket of a kernel's shell or stdin, as ipykernel makes it."""
    with context.socket(zmq.ROUTER) as router:
        router.router_handover = 1
        router.rcvtimeo = TIMEOUT
        router.bind_to_random_port("tcp://127.0.0.1")
        yield router


def connect(router, session=b""):
    peer = router.context.socket(zmq.DEALER)
    if session:
        peer.identity = session
    peer.rcvtimeo = TIMEOUT
    peer.connect(router.last_endpoint.decode())
    return peer


def request(session="s1"):
    return [DELIMITER, b"", json.dumps({"session": session}).encode(), b"{}", b"{}", b"{}"]


def reply(address, session="s1", text=b"{}"):
    return [address, DELIMITER, b"", b"{}", json.dumps({"session": session}).encode(), b"{}", text]


def lost_address(router):
    """Return the address of a request that was received before its peer connected again, and that peer."""
    ends = router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    before = connect(router, b"s1")
    for _ in range(2):
        before.send_multipart(request())
    assert router.poll(TIMEOUT)  # which takes the address of the first one
    before.close(linger=TIMEOUT)
    assert ends.poll(TIMEOUT)
    router.disable_monitor()
    ends.close()
    again = connect(router, b"s1")
    wait_until_connected(router, again)
    assert router.recv_multipart()[0] == b"s1"
    address, *_ = router.recv_multipart()
    return address, again


def wait_until_connected(router, peer):
    """Wait until the newer connection has the peer's address: something sent to that address arrives there."""
    while not peer.poll(10):
        offered(router, lambda: router.send_multipart([b"s1", b"here"], zmq.NOBLOCK))
    while peer.poll(100):
        assert peer.recv() == b"here"


def test_a_reply_reaches_a_peer_that_has_connected_again(router):
    address, peer = lost_address(router)
    with peer:
        assert may_be_lost(address)
        assert not offered(router, lambda: router.send_multipart(reply(address), zmq.NOBLOCK))
        assert deliver(router, reply(address, text=b"answer"))
        assert peer.recv_multipart()[-1] == b"answer"
        # The question of a cell's input() goes by another socket, with the address of the cell.
        assert other_address([address], {"header": {"session": "s1"}}) == [b"s1"]


def test_a_peer_without_an_address_of_its_own_is_reached_by_that_of_its_connection(router):
    with connect(router) as peer, connect(router, b"s1") as namesake:
        namesake.send_multipart(request())
        router.recv_multipart()
        peer.send_multipart(request())
        address, *_ = router.recv_multipart()
        assert may_be_lost(address)
        assert deliver(router, reply(address, text=b"answer"))
        assert peer.recv_multipart()[-1] == b"answer"
        assert not namesake.poll(0)


def test_a_reply_to_a_peer_that_is_away_is_not_sent(router):
    for address in (b"s1", b"\0\1\2\3\4"):
        assert not deliver(router, reply(address))


@pytest.mark.parametrize("header", [b"", b"[]", b"{}", b"null", b"\xff", b'"s"'])
def test_a_header_without_a_session_names_nobody(router, header):
    parts = reply(b"\0\1\2\3\4")
    parts[4] = header
    assert not deliver(router, parts)
    assert not deliver(router, parts[:3])


@pytest.mark.parametrize(
    ("ident", "parent"),
    [
        ([b"s2"], {"header": {"session": "s1"}}),
        (None, {"header": {"session": "s1"}}),
        ([], {"header": {"session": "s1"}}),
        ([b"\0\1\2\3\4"], None),
        ([b"\0\1\2\3\4"], {}),
        ([b"\0\1\2\3\4"], {"header": {}}),
    ],
)
def test_there_is_another_address_only_for_one_of_zmq_and_a_known_session(ident, parent):
    assert other_address(ident, parent) == []
