"""Calls over the daemon's unix socket by httpx: what both clients share."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from ..calls import Call
from ..errors import DaemonUnavailable, ObjectCorrupt

#: What HTTP wants before a path. The host means nothing; proxies of the environment must not be asked for it.
ANYWHERE: dict[str, Any] = {"base_url": "http://gpuckptd", "trust_env": False}
#: Seconds until a connection stands: the socket is on this machine.
CONNECT_SECONDS = 5.0


class UnixTransport(httpx.HTTPTransport):
    """HTTP over a unix socket.

    It tries the socket before each request: httpx leaves one that could not connect to the garbage collector, which says so
    in every program that shows warnings. (asyncio, below the asynchronous transport, closes it.)
    """

    def __init__(self, path: Path) -> None:
        super().__init__(uds=str(path), verify=False)
        self._path = str(path)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; raise ConnectError if nobody listens."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(self._path)
            except OSError as error:
                raise httpx.ConnectError(str(error), request=request) from error
        return super().handle_request(request)


def arguments(call: Call[Any]) -> dict[str, Any]:
    """Return what `httpx.Client.request` and its like take for a call."""
    record = b"" if call.body is None else msgspec.json.encode(call.body)
    return {
        "method": call.method,
        "url": call.path,
        "params": call.params,
        "content": record if call.content is None else call.content,
        "timeout": httpx.Timeout(call.seconds, connect=CONNECT_SECONDS),
    }


def may_repeat(call: Call[Any], error: httpx.TransportError) -> bool:
    """Return whether a call can be sent again: nobody was there, or it only looks and the daemon ended meanwhile."""
    if isinstance(error, httpx.ConnectError):
        return True
    return call.method == "GET" and isinstance(error, httpx.NetworkError | httpx.ProtocolError)


@contextmanager
def transport_errors() -> Iterator[None]:
    """Raise what goes wrong between client and daemon as DaemonUnavailable."""
    try:
        yield
    except httpx.TransportError as error:
        raise DaemonUnavailable(
            "The connection to gpuckptd was lost.",
            hint="Try again; the daemon is started when it is not there. Its log says what happened.",
            details=f"{type(error).__name__}: {error}",
        ) from error


@contextmanager
def export_errors(snapshot_id: str) -> Iterator[None]:
    """Raise what goes wrong once the bytes of an export flow as ObjectCorrupt: the daemon cannot send an error any more."""
    try:
        yield
    except httpx.TransportError as error:
        raise ObjectCorrupt(
            f"The export of snapshot {snapshot_id} was cut off.",
            hint=f"`jupyter gpuckpt verify {snapshot_id}` says whether the snapshot is damaged; the daemon's log has the reason.",
            details=f"{type(error).__name__}: {error}",
        ) from error
