"""The hub's questions to users' servers, as one of them hears them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from jupyter_gpuckpt.errors import GpuCkptError
from jupyter_gpuckpt.hub import server_request


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield the address of a user's server with the token `right`, and the questions that it gets."""
    heard: list[tuple[str, str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            token = self.headers["Authorization"]
            heard.append((self.command, self.path, token))
            accepted = token == "token right"
            content = json.dumps({"kernels": [], "disk_bytes": 7} if accepted else {}).encode()
            self.send_response(200 if accepted else 403)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self):
            self.do_POST()

        def log_message(self, *words):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/user/ada/", heard
        http.shutdown()
        thread.join()


def test_the_next_token_is_tried_after_a_refusal(server):
    url, heard = server
    asyncio.run(server_request.suspend_all(1.0, url, ["wrong", "right"]))
    path = "/user/ada/api/gpuckpt/suspend_all"
    assert heard == [("POST", path, "token wrong"), ("POST", path, "token right")]


def test_a_refusal_is_told(server):
    url, _ = server
    with pytest.raises(GpuCkptError, match="token"):
        asyncio.run(server_request.suspend_all(1.0, url, ["wrong"]))


def test_the_numbers_are_requested_without_counting_as_activity_of_the_user(server):
    """A culler would otherwise never stop a server."""
    url, heard = server
    assert asyncio.run(server_request.usage(url, ["right"])).disk_bytes == 7
    path = "/user/ada/api/gpuckpt/store?no_track_activity=1"
    assert heard == [("GET", path, "token right")]
