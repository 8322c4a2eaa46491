"""Client for a provider's metadata service. Size and time are bounded, and no proxy is used."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from weakref import WeakSet

import msgspec
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.httputil import HTTPHeaders, HTTPInputError
from tornado.iostream import IOStream, StreamClosedError
from tornado.netutil import Resolver
from tornado.simple_httpclient import HTTPTimeoutError, SimpleAsyncHTTPClient
from tornado.tcpclient import TCPClient

from ...wire import decoding
from ...wire.reclaim_records import now

#: The most bytes of an answer.
_MAX_BODY_BYTES = 1 << 20
_CONNECT_SECONDS, _ANSWER_SECONDS = 2.0, 5.0
#: The longest wait that a service can ask for.
_MAX_WAIT_SECONDS = 60.0
#: Statuses after which a request is repeated with growing pauses.
_BUSY = frozenset({429, 500, 502, 503, 504})
#: The statuses among them that ask for fewer requests.
_THROTTLED = frozenset({429, 503})

_Record = TypeVar("_Record")


class NoAnswerError(Exception):
    """A request got no usable answer, so the standing notices remain."""

    def __init__(
        self,
        text: str,
        *,
        timed_out: bool = False,
        throttled: bool = False,
        wait_seconds: float = 0.0,
    ) -> None:
        super().__init__(text)
        self.timed_out = timed_out
        #: `throttled`: the service gets too many requests; `wait_seconds`: how long it asks to wait before the next one.
        self.throttled, self.wait_seconds = throttled, wait_seconds


class Answer(msgspec.Struct, frozen=True):
    """An answer. `ahead_seconds`: the service's wall clock minus this machine's; 0 if the answer has no date."""

    status: int
    body: bytes
    ahead_seconds: float = 0.0
    headers: Mapping[str, str] = {}

    def deadline(self, epoch_seconds: float) -> float:
        """Convert a time of the service's wall clock to the clock of `reclaim_records.now`; a time before the boot becomes 0."""
        return max(0.0, now() + epoch_seconds - (time.time() + self.ahead_seconds))

    def http_deadline(self, date: str) -> float:
        """Convert a time that is written as HTTP and mail write it, as `deadline` does. Raises NoAnswerError."""
        epoch_seconds = wall_time(date)
        if epoch_seconds is None:
            raise NoAnswerError("its answer has no time")
        return self.deadline(epoch_seconds)

    def record(self, kind: type[_Record]) -> _Record:
        """Decode the body as JSON. Raises NoAnswerError."""
        try:
            return decoding.from_json(self.body, kind)
        except msgspec.DecodeError as error:
            raise NoAnswerError(f"its answer is not understood: {error}") from error

    def text(self) -> str:
        """Return the body, a word or a line. Raises NoAnswerError if it is not ASCII."""
        try:
            return self.body.decode("ascii").strip()
        except UnicodeDecodeError as error:
            raise NoAnswerError("its answer is not text") from error


class Endpoint:
    """A service below a URL. It belongs to the event loop on which it is made."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        # This client ignores the environment's proxies, which could not reach a link-local address.
        self._http = SimpleAsyncHTTPClient(
            force_instance=True, max_body_size=_MAX_BODY_BYTES, max_buffer_size=_MAX_BODY_BYTES
        )
        self._connections = _Connections(resolver=self._http.resolver)
        self._http.tcp_client = self._connections

    async def ask(
        self,
        path: str,
        headers: Mapping[str, str],
        *,
        method: str = "GET",
        body: bytes | None = None,
        seconds: float | None = None,
    ) -> Answer:
        """Send a request and return its answer. Raises NoAnswerError if there is none, or one with a status of a busy service."""
        seconds = seconds or _ANSWER_SECONDS
        request = HTTPRequest(
            f"{self.url}{path}",
            method=method,
            headers=HTTPHeaders(dict(headers)),
            body=body,
            connect_timeout=min(_CONNECT_SECONDS, seconds),
            request_timeout=seconds,
            follow_redirects=False,
            decompress_response=False,
            allow_nonstandard_methods=True,
        )
        try:
            found = await self._http.fetch(request, raise_error=False)
        except HTTPTimeoutError as error:
            raise NoAnswerError("it does not answer in time", timed_out=True) from error
        except (HTTPClientError, HTTPInputError, OSError, ValueError) as error:
            raise NoAnswerError(f"it cannot be reached: {error}") from error
        if found.code in _BUSY:
            raise NoAnswerError(
                f"it answers with the status {found.code}",
                throttled=found.code in _THROTTLED,
                wait_seconds=_wait_seconds(found.headers),
            )
        return Answer(found.code, found.body, _ahead_seconds(found.headers), found.headers)

    def close(self) -> None:
        """Close all connections, also those of requests whose waiters were cancelled."""
        self._connections.close_all()
        self._http.close()


class _Connections(TCPClient):
    """A maker of connections that can close those it has made."""

    def __init__(self, resolver: Resolver) -> None:
        super().__init__(resolver=resolver)
        self._streams: WeakSet[IOStream] = WeakSet()
        self._is_closed = False

    async def connect(self, *arguments: Any, **options: Any) -> IOStream:
        """Connect, and remember the connection. Raises StreamClosedError after `close_all`."""
        stream = await super().connect(*arguments, **options)
        if self._is_closed:
            stream.close()
            raise StreamClosedError
        self._streams.add(stream)
        return stream

    def close_all(self) -> None:
        """Close all connections. One that is still being made is closed as soon as it exists."""
        self._is_closed = True
        for stream in list(self._streams):
            stream.close()


def _ahead_seconds(headers: Mapping[str, str]) -> float:
    date = wall_time(headers.get("Date", ""))
    return 0.0 if date is None else date - time.time()


def _wait_seconds(headers: Mapping[str, str]) -> float:
    text = headers.get("Retry-After", "")
    return min(float(text), _MAX_WAIT_SECONDS) if text.isdecimal() and text.isascii() else 0.0


def wall_time(http_date: str) -> float | None:
    """Convert a date as HTTP and mail write it to seconds since the epoch; None if it is not a date."""
    try:
        return parsedate_to_datetime(http_date).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
