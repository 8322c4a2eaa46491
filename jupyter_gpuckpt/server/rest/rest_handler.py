"""The base of all handlers: authentication, the parts that they call, and the mapping from errors to responses."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web
from tornado.web import HTTPError

from ...errors import ConfigurationError, DaemonUnavailable, GpuCkptError, record_of
from ...wire import decoding, ids
from ...wire.statuses import http_status
from ..jupyter_internals import is_finished
from ..rest_records import ErrorView, error_view
from .openapi import contract_of

if TYPE_CHECKING:
    from ...wire.daemon_settings import Settings
    from ..kernels.branching import Branching
    from ..kernels.daemon_link import DaemonLink
    from ..kernels.kernel_list import KernelList
    from ..kernels.kernel_operations import Resume, ServerOperations
    from ..kernels.rollbacks import Rollbacks
    from ..kernels.session_moves import Moves
    from ..kernels.stored_notebooks import StoredNotebooks
    from ..policies.idle import IdleSuspension
    from ..policies.restarts import Restarts
    from ..policies.shut_downs import ShutDowns

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class Parts:
    """The parts of the server that handlers call, if kernels run under the engine."""

    link: DaemonLink
    operations: ServerOperations
    resume: Resume
    branching: Branching
    rollbacks: Rollbacks
    notebooks: StoredNotebooks
    moves: Moves
    shut_downs: ShutDowns
    restarts: Restarts
    idle: IdleSuspension


class GpuCkptHandler(APIHandler):
    """A handler that answers a `GpuCkptError` with its status and a body of message, code and hint."""

    auth_resource = "gpuckpt"
    #: Whether a request counts as the user's activity, after which a culler waits anew. Not where pages and hubs ask by themselves.
    _track_activity = True

    def __init_subclass__(cls) -> None:
        """Refuse every request that is not authenticated and authorized."""
        for name in {method.lower() for method in cls.SUPPORTED_METHODS} & vars(cls).keys():
            setattr(cls, name, web.authenticated(authorized(getattr(cls, name))))

    def initialize(self, kernels: KernelList, parts: Parts | None, settings: Settings) -> None:
        """Store the parts that `service.py` has constructed. `parts` None: no kernel of this server can run under the engine."""
        self.kernels, self._parts, self.daemon_settings = kernels, parts, settings

    @property
    def parts(self) -> Parts:
        """Return the parts. Raises DaemonUnavailable if kernels run elsewhere."""
        if self._parts is None:
            raise DaemonUnavailable(
                "The kernels of this server do not run under jupyter-gpuckpt.",
                hint="Kernels behind a gateway cannot be saved, nor those of a kernel manager without asyncio.",
            )
        return self._parts

    @property
    def connected_link(self) -> DaemonLink | None:
        """Return the connection to the daemon if there is one now."""
        link = self._parts.link if self._parts is not None else None
        return link if link is not None and link.ready else None

    async def prepare(self) -> None:  # type: ignore[override] # as APIHandler
        """Authenticate the request. Raises KernelNotFound and similar errors for invalid ids, even with an encoded slash."""
        await super().prepare()
        if not is_finished(self):
            ids.require(self.path_kwargs)

    def record(self, kind: type[_Record]) -> _Record:
        """Return the request's body as a record; an empty body gives the defaults. Raises ConfigurationError."""
        try:
            return decoding.from_json(self.request.body or b"{}", kind)
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f"The request's body is not valid: {error}",
                hint="GET /api/gpuckpt/openapi.json describes it.",
            ) from error

    def seconds(self, name: str, max_seconds: float) -> float:
        """Return a query argument in seconds, limited to `max_seconds`; 0 if it is left out. Raises ConfigurationError."""
        text = self.get_query_argument(name, "0")
        try:
            return max(0.0, min(float(text), max_seconds))
        except ValueError as error:
            raise ConfigurationError(f"{name} is not a number of seconds: {text!r}") from error

    def reply(self, record: Any) -> None:
        """Answer with a record as JSON, with the status that the method states."""
        self.set_status(contract_of(type(self), str(self.request.method).lower()).status)
        self.set_header("Content-Type", "application/json")
        self.finish(msgspec.json.encode(record))

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Answer an exception with the status of its class."""
        error = _error_in(kwargs)
        if isinstance(error, GpuCkptError):
            status_code = http_status(type(error))
        super().send_error(status_code, **kwargs)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Write the body of an error response; Jupyter's own errors keep their message."""
        error = _error_in(kwargs)
        if isinstance(error, HTTPError) or error is None:
            message = (error.log_message if error else "") or HTTPStatus(status_code).phrase
            view = ErrorView(message=message, code=f"http_{status_code}", hint=None)
        else:
            view = error_view(record_of(error))
        self.set_header("Content-Type", "application/json")
        self.finish(msgspec.json.encode(view))

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Log one line for a refused request, and a traceback only for a defect."""
        if isinstance(value, GpuCkptError):
            self.log.warning("%s %s: %s", self.request.method, self.request.path, value)
        else:
            super().log_exception(typ, value, tb)


def _error_in(kwargs: dict[str, Any]) -> BaseException | None:
    exc_info = kwargs.get("exc_info")
    return exc_info[1] if exc_info else None
