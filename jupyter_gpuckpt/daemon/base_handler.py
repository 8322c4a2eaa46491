"""The base of all handlers: records in and out, and the one mapping from errors to answers."""

from __future__ import annotations

import logging
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler

from .. import decoding, ids
from ..errors import ConfigurationError, ErrorRecord, GpuCkptError, record_of
from ..statuses import http_status

if TYPE_CHECKING:
    from .service import Daemon

_log = logging.getLogger(__name__)
_Record = TypeVar("_Record")
_DEEPER = 100


class BaseHandler(RequestHandler):
    """Handler that answers a `GpuCkptError` with its status and an `ErrorRecord`."""

    @property
    def daemon(self) -> Daemon:
        """Return the daemon that is asked."""
        daemon: Daemon = self.settings["daemon"]
        return daemon

    def prepare(self) -> None:
        """Reset the idle-exit timer. Raise KernelNotFound and its like for what can be no id."""
        self.daemon.touch()
        # Here, where an encoded slash is one: no handler sees it.
        ids.require(self.path_kwargs)

    def on_finish(self) -> None:
        """Reset the idle-exit timer."""
        self.daemon.touch()

    def record(self, kind: type[_Record]) -> _Record:
        """Return the request's body as a record, an empty one as a record of defaults; raise ConfigurationError."""
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
        """Send one line of a stream of records; raise StreamClosedError when nobody reads it any more."""
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
        """Write the body of an answer that is an error."""
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
        """Log one line for a refused request, and a traceback only for a defect; a client that has gone is none."""
        if isinstance(value, GpuCkptError):
            _log.info("%s %s: %s: %s", self.request.method, self.request.path, value.code, value)
        elif not isinstance(value, HTTPError | StreamClosedError):
            _log.error("%s %s", self.request.method, self.request.path, exc_info=value)


class UnknownRoute(BaseHandler):
    """Handler for every path that is not a route."""

    def prepare(self) -> None:
        """Answer 404 to every method."""
        raise HTTPError(HTTPStatus.NOT_FOUND)


def _require_encodable(record: object) -> None:
    """Raise OverflowError or RecursionError for a record that could be read but not be stored or sent.

    JSON has numbers of any length, and nests; a record lies deeper in what it becomes a part of.
    """
    for _ in range(_DEEPER):
        record = [record]
    msgspec.json.encode(record)


def _error_in(kwargs: dict[str, Any]) -> BaseException | None:
    exc_info = kwargs.get("exc_info")
    return exc_info[1] if exc_info else None
