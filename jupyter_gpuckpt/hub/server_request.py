"""The hub's requests to a user's server: to suspend all kernels before a deadline, and for the use of its disk.

The user may have replaced the server by a program that harms the hub, so its answer is bounded: in time, in length, in the length of
texts. Texts are one line without control characters.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import msgspec

from ..client.quick_httpx import httpx
from ..errors import GpuCkptError, HostError
from ..wire import decoding
from ..wire.hub_records import Usage

_Record = TypeVar("_Record")

#: The time to wait after the deadline: the server's own limit (`suspend_batch.py`) and some time for the transfer.
_ANSWER_SECONDS = 15.0
_CONNECT_SECONDS = 5.0
#: The most seconds for the numbers of the disk, for which a stop waits; those for the connection come in addition.
_USAGE_SECONDS = 3.0
_REFUSALS = frozenset({httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN})
#: The longest answer: a few hundred bytes for each kernel, for more kernels than a machine runs.
_MAX_ANSWER_BYTES = 1 << 20
#: The longest text of an answer that reaches the hub's log, pages and database, in characters.
_MAX_TEXT = 200
#: The largest number of bytes that is shown.
_MAX_BYTES = 1 << 50


# These records have only the fields that the hub reads: servers may have another version of this package.


class Reason(msgspec.Struct, frozen=True):
    """The reason why a kernel was not saved."""

    message: str


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one kernel. `name`: its notebook; `size_bytes`: RAM and GPU memory; `since`: when it was suspended."""

    saved: bool
    name: str = ""
    kernel_id: str = ""
    error: Reason | None = None
    size_bytes: int = 0
    gpu_bytes: int = 0
    since: float = 0.0


class Store(msgspec.Struct, frozen=True):
    """The disk use of a server's snapshots."""

    disk_bytes: int = 0


class Report(msgspec.Struct, frozen=True):
    """The outcomes of all kernels."""

    kernels: list[Outcome] = []


class _Request(NamedTuple):
    """A request; `seconds`: how long the server may take to answer."""

    method: str
    route: str
    seconds: float
    body: dict[str, float] | None = None


async def suspend_all(
    within_seconds: float,
    server_url: str,
    tokens: Iterable[str],
    ssl_context: ssl.SSLContext | None = None,
) -> Report:
    """Request a suspend of all kernels; try the tokens in turn until the server accepts one.

    Raises GpuCkptError with the cause; takes at most 20 s longer than `within_seconds`.
    """
    request = _Request(
        "POST", "suspend_all", within_seconds + _ANSWER_SECONDS, {"within": within_seconds}
    )
    report = await _answer(request, server_url, tokens, ssl_context, Report)
    return Report([_bounded(outcome) for outcome in report.kernels])


async def usage(
    server_url: str, tokens: Iterable[str], ssl_context: ssl.SSLContext | None = None
) -> Usage:
    """Return the numbers of a server's snapshots. Raises GpuCkptError; takes at most 8 s."""
    # It is no activity of the user.
    request = _Request("GET", "store?no_track_activity=1", _USAGE_SECONDS)
    store = await _answer(request, server_url, tokens, ssl_context, Store)
    return Usage(time.time(), min(max(0, store.disk_bytes), _MAX_BYTES))


async def _answer(
    request: _Request,
    server_url: str,
    tokens: Iterable[str],
    ssl_context: ssl.SSLContext | None,
    kind: type[_Record],
) -> _Record:
    """Return a server's answer, after trying the tokens in turn until the server accepts one."""
    timeout = httpx.Timeout(request.seconds, connect=_CONNECT_SECONDS)
    url = f"{server_url.rstrip('/')}/api/gpuckpt/{request.route}"
    try:
        # The request goes directly to the server, neither through the hub's proxy nor through one of the environment.
        async with (
            # httpx limits the wait for each piece of an answer only.
            asyncio.timeout(request.seconds + _CONNECT_SECONDS),
            httpx.AsyncClient(
                timeout=timeout, trust_env=False, verify=ssl_context or False
            ) as http,
        ):
            for token in tokens:
                # A compressed answer might be short and its content endless.
                headers = {"Authorization": f"token {token}", "Accept-Encoding": "identity"}
                async with http.stream(
                    request.method, url, json=request.body, headers=headers
                ) as response:
                    if response.status_code not in _REFUSALS:
                        return await _decoded(response, kind)
    except (TimeoutError, httpx.TimeoutException) as error:
        raise GpuCkptError("The server did not answer in time.") from error
    except httpx.HTTPError as error:
        raise GpuCkptError(f"The server cannot be reached: {error or type(error).__name__}.") from (
            error
        )
    raise GpuCkptError(
        "The server does not accept the hub's token.",
        hint="The server's owner needs the scope access:servers for it.",
    )


async def _decoded(response: httpx.Response, kind: type[_Record]) -> _Record:
    if response.status_code == httpx.codes.NOT_FOUND:
        raise HostError(
            "The server has no jupyter-gpuckpt.", hint="Install it where the servers run."
        )
    content = await _content(response)
    try:
        if response.is_success:
            return decoding.from_json(content, kind)
        reason = _text(decoding.from_json(content, Reason).message)
    except msgspec.DecodeError:
        reason = f"status {response.status_code}"
    raise GpuCkptError(f"The server's answer was: {reason}")


async def _content(response: httpx.Response) -> bytes:
    """Read an answer as it is sent. Raises GpuCkptError if it is too long."""
    content = bytearray()
    async for piece in response.aiter_raw():
        content += piece
        if len(content) > _MAX_ANSWER_BYTES:
            raise GpuCkptError("The server's answer is too long.")
    return bytes(content)


def _bounded(outcome: Outcome) -> Outcome:
    return Outcome(
        outcome.saved,
        _text(outcome.name),
        _text(outcome.kernel_id),
        None if outcome.error is None else Reason(_text(outcome.error.message)),
        min(max(0, outcome.size_bytes), _MAX_BYTES),
        min(max(0, outcome.gpu_bytes), _MAX_BYTES),
        min(max(0.0, outcome.since), time.time()),
    )


def _text(text: str) -> str:
    """Return a server's text as one line of limited length."""
    line = "".join(c if c.isprintable() else " " for c in text[:_MAX_TEXT])
    return line if len(text) <= _MAX_TEXT else f"{line}…"
