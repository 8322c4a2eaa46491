"""The base of all handlers: authentication, the parts that they call, and routes that are passed on to the daemon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_type_hints

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web
from tornado.web import HTTPError

from ...errors import DaemonUnavailable, ErrorRecord, GpuCkptError
from ...wire import ids
from ...wire.answering import RecordHandler, Routes
from ...wire.calls import Route
from ..jupyter_internals import is_finished
from ..rest_records import ErrorView, error_view

if TYPE_CHECKING:
    from ...wire.daemon_settings import Settings
    from ..kernels.branching import Branching
    from ..kernels.daemon_link import DaemonLink
    from ..kernels.kernel_list import KernelList
    from ..kernels.kernel_operations import ServerOperations
    from ..kernels.rollbacks import Rollbacks
    from ..kernels.session_moves import Moves
    from ..kernels.stored_notebooks import StoredNotebooks
    from ..kernels.template_builders import TemplateBuilders
    from ..policies.gpu_room import GpuRoom
    from ..policies.idle import IdleSuspension
    from ..policies.restarts import Restarts
    from ..policies.shut_downs import ShutDowns


@dataclass(frozen=True)
class Parts:
    """The parts of the server that handlers call, if kernels run under the engine."""

    link: DaemonLink
    operations: ServerOperations
    gpu_room: GpuRoom
    branching: Branching
    rollbacks: Rollbacks
    notebooks: StoredNotebooks
    moves: Moves
    shut_downs: ShutDowns
    restarts: Restarts
    idle: IdleSuspension
    templates: TemplateBuilders


class RestRoutes(Routes):
    """The routes of the REST interface."""

    def passed_on(
        self, call: Route[Any], view: Callable[[Any], Any] | None = None, **attributes: object
    ) -> Callable[[Callable[[], None]], None]:
        """Pass a request on to the daemon, and its reply, or the `view` of it, back. The decorated function only describes that."""
        reply = call.reply if view is None else get_type_hints(view)["return"]

        async def answer(handler: GpuCkptHandler, request: Any = None, **named: str) -> Any:
            body = () if request is None else (request,)
            found = await handler.parts.link.daemon.send(call(*body, **named))
            return found if view is None else view(found)

        def declared(description: Callable[[], None]) -> None:
            answer.__doc__ = description.__doc__
            self.answers(replace(call, reply=reply), **attributes)(answer)

        return declared


class GpuCkptHandler(RecordHandler, APIHandler):
    """A handler that authenticates and authorizes each request."""

    described = "GET /api/gpuckpt/openapi.json describes it."
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

    def refusal(self, status_code: int, error: HTTPError | None) -> ErrorView:
        """Return the record of an error of Jupyter's own, with its message."""
        message = (error.log_message if error else "") or HTTPStatus(status_code).phrase
        return ErrorView(message=message, code=f"http_{status_code}", hint=None)

    def view(self, error: ErrorRecord) -> ErrorView:
        """Return the record of an error as pages get it."""
        return error_view(error)

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
