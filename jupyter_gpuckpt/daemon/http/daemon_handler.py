"""The base of all handlers: records in requests and responses, and the mapping from errors to responses."""

from __future__ import annotations

import logging
import socket
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from tornado.iostream import IOStream, StreamClosedError
from tornado.web import HTTPError, RequestHandler

from ...errors import ConfigurationError, ErrorRecord, GpuCkptError, record_of
from ...wire import decoding, ids
from ...wire.statuses import http_status

if TYPE_CHECKING:
    from ..service import Daemon

_log = logging.getLogger(__name__)
_Record = TypeVar("_Record")
_DEEPER = 100


class BaseHandler(RequestHandler):
    """A handler that answers a `GpuCkptError` with its status and an `ErrorRecord`."""

    @property
    def daemon(self) -> Daemon:
        """Return the daemon."""
        daemon: Daemon = self.settings["daemon"]
        return daemon

    def prepare(self) -> None:
        """Register the request as in progress. Raises KernelNotFound and similar errors for invalid ids."""
        self.daemon.begin(self)
        # Ids are checked here, after decoding, so that no handler sees one with an encoded slash.
        ids.require(self.path_kwargs)

    def on_finish(self) -> None:
        """Register the request as answered."""
        self.daemon.finish(self)

    def on_connection_close(self) -> None:
        """Register the request as ended, because its client has disconnected."""
        super().on_connection_close()
        self.daemon.finish(self)

    @property
    def is_abandoned(self) -> bool:
        """Return whether the client has disconnected without an answer.

        `on_connection_close` is not called if it did so before this handler was made, or if tornado has not noticed it yet.
        """
        stream: IOStream | None = cast("Any", self.request.connection).stream
        if stream is None or stream.closed():
            return True
        try:
            return not stream.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError as error:
            return not isinstance(error, BlockingIOError)

    def detach(self) -> IOStream:
        """Detach the connection, and register the request as ended, because tornado will not call `on_finish`."""
        self.daemon.finish(self)
        return super().detach()

    def record(self, kind: type[_Record]) -> _Record:
        """Return the request's body as a record; an empty body gives the defaults. Raises ConfigurationError."""
        try:
            found = decoding.from_json(self.request.body or b"{}", kind)
            _require_encodable(found)
        except (msgspec.DecodeError, OverflowError, RecursionError) as error:
            raise ConfigurationError(
                f"The request's body is not valid: {error}", hint="protocol.py has its record."
            ) from error
        return found

    def reply(self, record: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        """Answer with a record as JSON."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(msgspec.json.encode(record))

    async def send_line(self, record: Any) -> None:
        """Send one line of a stream of records. Raises StreamClosedError if the client has disconnected."""
        self.set_header("Content-Type", "application/jsonl")
        self.write(msgspec.json.encode(record) + b"\n")
        await self.flush()

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Answer an exception with the status of its class."""
        error = _error_in(kwargs)
        super().send_error(
            http_status(type(error)) if isinstance(error, GpuCkptError) else status_code, **kwargs
        )

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Write the body of an error response."""
        error = _error_in(kwargs)
        if error is None or isinstance(error, HTTPError):
            record = ErrorRecord(f"{HTTPStatus(status_code).phrase}: {self.request.path}", "error")
        else:
            record = record_of(error)
        self.set_header("Content-Type", "application/json")
        self.finish(msgspec.json.encode(record))

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Log one line for a refused request, and a traceback only for a defect; a disconnected client is no defect."""
        if isinstance(value, GpuCkptError):
            _log.info("%s %s: %s: %s", self.request.method, self.request.path, value.code, value)
        elif not isinstance(value, HTTPError | StreamClosedError):
            _log.error("%s %s", self.request.method, self.request.path, exc_info=value)


class UnknownRoute(BaseHandler):
    """A handler for every path that is not a route."""

    def prepare(self) -> None:
        """Answer 404 to every method."""
        raise HTTPError(HTTPStatus.NOT_FOUND)


def _require_encodable(record: object) -> None:
    """Raise OverflowError or RecursionError for a record that was decoded but cannot be encoded.

    JSON has integers of any length and any nesting; a record is nested deeper in the record that will contain it.
    """
    for _ in range(_DEEPER):
        record = [record]
    msgspec.json.encode(record)


def _error_in(kwargs: dict[str, Any]) -> BaseException | None:
    exc_info = kwargs.get("exc_info")
    return exc_info[1] if exc_info else None
