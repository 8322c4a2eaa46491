"""Servers that do what no server should: one that never answers, one that reads slowly, and one before another, which refuses."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import httpx

#: What is passed on to the server behind, and back.
_DROPPED = {"connection", "keep-alive", "transfer-encoding", "content-encoding"}


class Refusal(NamedTuple):
    """An answer that is given in place of the server's."""

    status: int
    code: str


class Asked(NamedTuple):
    """A request: its method, its path with the query, its headers in lower case, and its body."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


@contextmanager
def silent() -> Iterator[str]:
    """Yield the URL of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def slow_reader(seconds: float) -> Iterator[str]:
    """Yield the URL of a server that takes `seconds` to read what is written to it, and never answers anything else."""

    class Slow(_Quiet):
        def do_PUT(self) -> None:
            left = int(self.headers["content-length"])
            self.rfile.read(left // 2)
            time.sleep(seconds)
            self.rfile.read(left - left // 2)
            self.send_response(200)
            self.send_header("etag", '"one"')
            self.send_header("content-length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            time.sleep(seconds)

    with _serving(Slow) as url:
        yield url


def _nothing_lost(_: Asked) -> Refusal | None:
    return None


def _unnoticed(_: Asked, status: int) -> None:
    """Ignore what the other server has answered."""


@contextmanager
def before(
    url: str,
    refuse: Callable[[Asked], Refusal | None],
    lose: Callable[[Asked], Refusal | None] = _nothing_lost,
    note: Callable[[Asked, int], None] = _unnoticed,
) -> Iterator[str]:
    """Yield the URL of a server that passes on to another what `refuse` has no answer for.

    `lose` may have an answer that is given in place of the other's, which has done what was asked; `note` gets that one's status.
    """

    class Between(_Quiet):
        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers, body)
            refusal = refuse(asked)
            if refusal is not None:
                text = f"<Error><Code>{refusal.code}</Code></Error>".encode()
                self._answer(refusal.status, {"content-type": "application/xml"}, text)
                return
            kept = {name: value for name, value in headers.items() if name not in _DROPPED}
            done = client.request(self.command, url + self.path, headers=kept, content=body)
            note(asked, done.status_code)
            if lost := lose(asked):
                self._answer(lost.status, {}, b"")
                return
            told = {name: value for name, value in done.headers.items() if name not in _DROPPED}
            self._answer(done.status_code, told, done.content)

        def __getattr__(self, name: str) -> Callable[[], None]:
            if not name.startswith("do_"):
                raise AttributeError(name)
            return self._pass_on

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            is_head = self.command == "HEAD"
            headers = {"content-length": str(len(body))} | headers
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if not is_head:
                self.wfile.write(body)

    limits = httpx.Limits(max_connections=None)
    with (
        httpx.Client(trust_env=False, timeout=60, limits=limits) as client,
        _serving(Between) as at,
    ):
        yield at


class _Quiet(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def handle(self) -> None:
        """Serve a connection, which its client may cut off."""
        with suppress(ConnectionError):
            super().handle()


@contextmanager
def _serving(handler: type[_Quiet]) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
