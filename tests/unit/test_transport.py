"""HTTP calls to the daemon."""

import logging

import httpx

from jupyter_gpuckpt.client.transport import ANYWHERE


def test_requests_to_the_daemon_are_not_in_the_log_of_a_user_who_logs_httpx(caplog):
    transport = httpx.MockTransport(lambda request: httpx.Response(200))
    with caplog.at_level(logging.INFO, "httpx"):
        with httpx.Client(transport=transport, **ANYWHERE) as client:
            client.get("/handshake")
        assert caplog.messages == []
        with httpx.Client(transport=transport) as client:
            client.get("http://example.org/gpuckptd")
    assert len(caplog.messages) == 1
