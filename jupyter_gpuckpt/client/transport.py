"""HTTP calls over the daemon's unix socket by httpx: the code that both clients share."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ..errors import DaemonUnavailable, ObjectCorrupt
from ..wire.calls import Call
from .quick_httpx import httpx
from .silence import connect, silent

#: Arguments of httpx clients: a base URL with an arbitrary host, and no proxies from the environment.
ANYWHERE: dict[str, Any] = {"base_url": "http://gpuckptd", "trust_env": False}
#: The timeout for connecting, in seconds: the socket is on this machine.
CONNECT_SECONDS = 5.0


def _is_for_others(record: logging.LogRecord) -> bool:
    """Return whether httpx did not log this line for a request to the daemon; papermill, for instance, shows all lines to users."""
    return f" {ANYWHERE['base_url']}/" not in record.getMessage()


logging.getLogger("httpx").addFilter(_is_for_others)


class UnixTransport(httpx.HTTPTransport):
    """HTTP over a unix socket.

    It tries to connect before each request: httpx leaves a socket that could not connect to the garbage collector, which raises
    a ResourceWarning. (asyncio, below the asynchronous transport, closes it.)
    """

    def __init__(self, path: Path) -> None:
        super().__init__(uds=str(path), verify=False)
        self._path = path

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. Raises ConnectError if no process listens."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                connect(probe, self._path, CONNECT_SECONDS)
            except TimeoutError as error:
                raise httpx.ConnectTimeout(str(error), request=request) from error
            except OSError as error:
                raise httpx.ConnectError(str(error), request=request) from error
        return super().handle_request(request)


def arguments(call: Call[Any]) -> dict[str, Any]:
    """Return the arguments of `httpx.Client.request` and similar methods for a call."""
    record = b"" if call.body is None else msgspec.json.encode(call.body)
    return {
        "method": call.method,
        "url": call.path,
        "params": call.params,
        "content": record if call.content is None else call.content,
        "timeout": httpx.Timeout(call.seconds, connect=CONNECT_SECONDS),
    }


def may_repeat(call: Call[Any], error: httpx.TransportError) -> bool:
    """Return whether a call can be repeated: the daemon did not receive it, or the call is read-only and the daemon ended meanwhile."""
    if isinstance(error, httpx.ConnectError):
        return True
    # A part of `content` was sent and cannot be sent again.
    if call.content is None and _was_not_received(error):
        return True
    return call.method == "GET" and isinstance(error, httpx.NetworkError | httpx.ProtocolError)


def _was_not_received(error: BaseException | None) -> bool:
    """Return whether the daemon ended before it had read the whole request.

    Linux reports a reset on a unix socket only if the other end was closed with unread data, or before the connection was accepted
    (`unix_release_sock` in net/unix/af_unix.c): clients can connect to a killed daemon until its last thread has ended.
    """
    while error is not None:
        if isinstance(error, ConnectionResetError):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def transport_errors(path: Path) -> Iterator[None]:
    """Convert transport errors between client and the daemon that listens on `path` to DaemonUnavailable."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise silent(path, f"{type(error).__name__}: {error}") from error
    except httpx.TransportError as error:
        raise DaemonUnavailable(
            "The connection to gpuckptd was lost.",
            hint="Try again; the daemon is started if it does not run. Its log has the cause.",
            details=f"{type(error).__name__}: {error}",
        ) from error


@contextmanager
def export_errors(snapshot_id: str) -> Iterator[None]:
    """Convert errors in the middle of an export's bytes to ObjectCorrupt, since the daemon can no longer send its error."""
    try:
        yield
    except httpx.TransportError as error:
        raise ObjectCorrupt(
            f"The export of snapshot {snapshot_id} was cut off.",
            hint=f"`jupyter gpuckpt verify {snapshot_id}` says whether the snapshot is damaged; the daemon's log has the reason.",
            details=f"{type(error).__name__}: {error}",
        ) from error
