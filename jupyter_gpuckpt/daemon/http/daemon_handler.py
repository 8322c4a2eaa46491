"""The base of all handlers: the daemon that they serve, streams of events, and the log of errors; and calls that one method answers."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import msgspec
from tornado.iostream import IOStream, StreamClosedError
from tornado.web import HTTPError

from ...errors import GpuCkptError
from ...wire import ids
from ...wire.answering import RecordHandler, Routes
from ...wire.calls import Route
from ..kernels.kernels import ManagedKernel
from ..kernels.operations import RunningOperation
from ..kernels.streams import Stream

if TYPE_CHECKING:
    from ..service import Daemon

_log = logging.getLogger(__name__)


class BaseHandler(RecordHandler):
    """A handler that registers each request with the daemon."""

    described = "protocol.py has its record."

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

    def reply(self, record: object) -> None:
        """Answer with a record as JSON, of a kernel or an operation with what clients see of it."""
        if isinstance(record, ManagedKernel | RunningOperation):
            record = record.public()
        super().reply(record)

    async def send_events(self, stream: Stream, until: Callable[[], bool] = lambda: False) -> None:
        """Send a line for every event until either side closes the connection or `until` returns True."""
        self.at_close(stream.close)
        self.set_header("Content-Type", "application/jsonl")
        while event := await stream.next():
            self.write(msgspec.json.encode(event) + b"\n")
            await self.flush()
            if until():
                return

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


class DaemonRoutes(Routes):
    """The routes of the daemon."""

    def passed_on(
        self, methods: Mapping[Route[Any], Callable[[Daemon], Callable[..., Any]]]
    ) -> None:
        """Answer routes by methods of the daemon's parts, which get ids, query arguments and the request in this order."""
        for route, of in methods.items():
            self.answers(route)(_passed_on(of))


def _passed_on(of: Callable[[Daemon], Callable[..., Any]]) -> Callable[..., Any]:
    def answer(handler: BaseHandler, request: Any = None, **named: str) -> Any:
        return of(handler.daemon)(*named.values(), *(() if request is None else (request,)))

    return answer


class UnknownRoute(BaseHandler):
    """A handler for every path that is not a route."""

    def prepare(self) -> None:
        """Answer 404 to every method."""
        raise HTTPError(HTTPStatus.NOT_FOUND)
