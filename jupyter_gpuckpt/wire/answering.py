"""Handlers of tornado that answer with records, made of functions: the code that the routes of the daemon and of servers share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from tornado.web import HTTPError, RequestHandler

from ..errors import ConfigurationError, ErrorRecord, GpuCkptError, record_of
from . import decoding
from .calls import Route
from .statuses import http_status

_Record = TypeVar("_Record")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_DEEPER = 100


class RecordHandler(RequestHandler):
    """A handler that answers with records, and a `GpuCkptError` with its status and its record."""

    #: Where a user of the interface finds the records of requests.
    described = ""
    _at_close: Callable[[], object] | None = None

    def record(self, kind: type[_Record]) -> _Record:
        """Return the request's body as a record; an empty body gives the defaults. Raises ConfigurationError."""
        try:
            found = decoding.from_json(self.request.body or b"{}", kind)
            _require_encodable(found)
        except (msgspec.DecodeError, OverflowError, RecursionError) as error:
            raise ConfigurationError(
                f"The request's body is not valid: {error}", hint=self.described
            ) from error
        return found

    def reply(self, record: object) -> None:
        """Answer with a record as JSON."""
        self.set_header("Content-Type", "application/json")
        self.finish(msgspec.json.encode(record))

    def at_close(self, callback: Callable[[], object]) -> None:
        """Call a function if the client disconnects without an answer."""
        self._at_close = callback

    def on_connection_close(self) -> None:
        """Call the function of `at_close`, because the client has disconnected."""
        super().on_connection_close()
        if self._at_close is not None:
            self._at_close()

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Answer an exception with the status of its class."""
        error = _error_in(kwargs)
        if isinstance(error, GpuCkptError):
            status_code = http_status(type(error))
        super().send_error(status_code, **kwargs)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Write the body of an error response."""
        error = _error_in(kwargs)
        if error is None or isinstance(error, HTTPError):
            self.reply(self.refusal(status_code, error))
        else:
            self.reply(self.view(record_of(error)))

    def refusal(self, status_code: int, error: HTTPError | None) -> object:
        """Return the record of an error of tornado's."""
        return ErrorRecord(f"{HTTPStatus(status_code).phrase}: {self.request.path}", "error")

    def view(self, error: ErrorRecord) -> object:
        """Return the record of an error as clients get it."""
        return error


class Routes:
    """The functions that answer the routes of a server, by path."""

    def __init__(self) -> None:
        self._by_path: dict[str, dict[str, Any]] = {}

    def answers(self, route: Route[Any], **attributes: object) -> Callable[[_Function], _Function]:
        """Declare the function that answers a route. `attributes`: of the handler.

        It is called with the handler, then by name with the ids in the path, the query arguments (empty: left out) and `request`, the
        decoded body, if it has an argument of that name. It returns the record to reply, or answers by itself.
        """

        def declared(function: _Function) -> _Function:
            method = {route.method.lower(): _method(route, function)}
            self._by_path.setdefault(route.path, {}).update(method | attributes)
            return function

        return declared

    def handlers(self, base: type[RecordHandler]) -> dict[str, type[RecordHandler]]:
        """Return a handler for each path, derived from `base`, or from the attribute `base` of the path."""
        return {
            path: type(path, (methods.pop("base", base),), methods)
            for path, methods in self._by_path.items()
        }


def by_pattern(
    handlers: Mapping[str, type[RecordHandler]], prefix: str = ""
) -> Iterator[tuple[str, type[RecordHandler]]]:
    """Yield handlers by the regular expressions of their paths: an id becomes a named group. Names come before ids."""
    for path, handler in sorted(handlers.items()):
        yield prefix + re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path), handler


def _method(route: Route[Any], function: Callable[..., Any]) -> Callable[..., Any]:
    takes_body = route.request is not None and "request" in inspect.signature(function).parameters

    async def answer(self: RecordHandler, **named: Any) -> None:
        named |= {name: self.get_query_argument(name, "") for name in route.query}
        if takes_body:
            named["request"] = self.record(route.request)
        self.set_status(route.status)
        found = function(self, **named)
        if inspect.isawaitable(found):
            found = await found
        if found is not None:
            self.reply(found)

    answer.route, answer.__doc__ = route, function.__doc__  # type: ignore[attr-defined] # a function's own
    return answer


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
