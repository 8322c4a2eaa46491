"""What every handler of the extension shares: who may ask, and the one mapping from errors to answers."""

from __future__ import annotations

import json
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from jupyter_server.base.handlers import APIHandler
from tornado.web import HTTPError

from ... import decoding, ids
from ...errors import ConfigurationError, GpuCkptError, record_of
from ...statuses import http_status

if TYPE_CHECKING:
    from ..extension import GpuCkptServer

_Record = TypeVar("_Record")


class GpuCkptHandler(APIHandler):
    """Routes raise `GpuCkptError`s; this turns them into a status and a body of message, code and hint."""

    auth_resource = "gpuckpt"

    @property
    def extension(self) -> GpuCkptServer:
        """The extension that is asked."""
        extension: GpuCkptServer = self.settings["jupyter_gpuckpt"]
        return extension

    async def prepare(self) -> None:  # type: ignore[override] # as APIHandler
        """Let in who may. Raises KernelNotFound and its like for what can be no id, also with an encoded slash in it."""
        await super().prepare()
        if not self._finished:
            ids.require(self.path_kwargs)

    def record(self, kind: type[_Record]) -> _Record:
        """The request's body; an empty one is a record of defaults. Raises ConfigurationError."""
        try:
            return decoding.from_json(self.request.body or b"{}", kind)
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f"The request's body is not valid: {error}",
                hint="openapi.yaml of the extension describes it.",
            ) from error

    def seconds(self, name: str, most: float) -> float:
        """A query argument that is a number of seconds, at most `most`; 0 if left out. Raises ConfigurationError."""
        text = self.get_query_argument(name, "0")
        try:
            return max(0.0, min(float(text), most))
        except ValueError as error:
            raise ConfigurationError(f"{name} is not a number of seconds: {text!r}") from error

    def reply(self, body: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        """Answer with JSON."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(msgspec.json.encode(body))

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Answer an exception, with the status of its class."""
        error = _error_in(kwargs)
        if isinstance(error, GpuCkptError):
            status_code = http_status(type(error))
        super().send_error(status_code, **kwargs)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """The body of an answer that is an error; Jupyter's own keep their message."""
        error = _error_in(kwargs)
        if isinstance(error, HTTPError) or error is None:
            message = (error.log_message if error else "") or HTTPStatus(status_code).phrase
            body = {"message": message, "code": f"http_{status_code}", "hint": None}
        else:
            record = record_of(error)
            body = {
                "message": record.message,
                "code": record.code,
                "hint": record.hint or None,
                "details": record.details or None,
            }
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(body))

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """One line for what a client did or met; a traceback only for a defect."""
        if isinstance(value, GpuCkptError):
            self.log.warning("%s %s: %s", self.request.method, self.request.path, value)
        else:
            super().log_exception(typ, value, tb)


def _error_in(kwargs: dict[str, Any]) -> BaseException | None:
    exc_info = kwargs.get("exc_info")
    return exc_info[1] if exc_info else None
