"""The routes, one class each; `server/openapi.yaml` describes them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

import msgspec
from jupyter_server.auth.decorator import authorized
from tornado import web

from ...errors import KernelNotFound
from ...protocol import ResumeRequest
from ..policies.suspend_all import suspend_all
from ..views import elsewhere_view, operation_view, report_view, shut_down_view
from . import snapshot_handlers, time_travel_handlers, variable_handlers
from .base_handler import GpuCkptHandler

#: A client may wait this long for an answer about an operation; proxies cut longer ones.
LONGEST_WAIT_SECONDS = 60.0
PREFIX = "/api/gpuckpt"


class NameRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a save or suspend: what its user calls the snapshot, which is then never removed by itself."""

    name: Annotated[str, msgspec.Meta(max_length=300)] = ""


class SuspendAllRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a suspend of everything: the seconds that it may take; None: as long as it takes."""

    within: Annotated[float, msgspec.Meta(ge=0)] | None = None


class KernelsHandler(GpuCkptHandler):
    """All kernels of this server."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """List them, and those that another server keeps from this one."""
        views = [self.extension.view(kernel_id) for kernel_id in self.extension.kernel_ids()]
        elsewhere = [elsewhere_view(kernel) for kernel in await self.extension.kept_elsewhere()]
        self.reply({"kernels": views, "elsewhere": elsewhere})


class KernelHandler(GpuCkptHandler):
    """One kernel."""

    @web.authenticated
    @authorized
    async def get(self, kernel_id: str) -> None:
        """Show it."""
        if kernel_id not in self.extension.kernel_ids():
            raise KernelNotFound(f"This server has no kernel {kernel_id}.")
        self.reply(self.extension.view(kernel_id))


class SaveHandler(GpuCkptHandler):
    """Saves."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str) -> None:
        """Start one."""
        request = self.record(NameRequest)
        operation = await self.extension.operations.save(kernel_id, request.name)
        self.reply(operation_view(operation), HTTPStatus.ACCEPTED)


class SuspendHandler(GpuCkptHandler):
    """Suspends."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str) -> None:
        """Start one."""
        request = self.record(NameRequest)
        operation = await self.extension.operations.suspend(kernel_id, request.name)
        self.reply(operation_view(operation), HTTPStatus.ACCEPTED)


class ResumeHandler(GpuCkptHandler):
    """Resumes."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str) -> None:
        """Start one."""
        request = self.record(ResumeRequest)
        operation = await self.extension.operations.resume(kernel_id, request.snapshot_id)
        self.reply(operation_view(operation), HTTPStatus.ACCEPTED)


class SuspendAllHandler(GpuCkptHandler):
    """Suspends of everything."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Suspend all kernels and answer, at the latest a moment after the deadline, what became of each."""
        request = self.record(SuspendAllRequest)
        operations = self.extension.operations
        report = await suspend_all(operations, self.extension.kernel_ids(), request.within)
        self.reply(report_view(report))


class ShutDownsHandler(GpuCkptHandler):
    """Kernels that were shut down a moment ago."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """List them."""
        views = [shut_down_view(kernel_id, kept) for kernel_id, kept in self.extension.shut_downs]
        self.reply({"kernels": views})


class UndoShutdownHandler(GpuCkptHandler):
    """Second thoughts."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str) -> None:
        """List the kernel again, with its sessions; it goes on as if nothing had been."""
        await self.extension.shut_downs.undo(kernel_id)
        self.reply(self.extension.view(kernel_id))


class ParkHandler(GpuCkptHandler):
    """Parks."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str) -> None:
        """Start one."""
        operation = await self.extension.operations.park(kernel_id)
        self.reply(operation_view(operation), HTTPStatus.ACCEPTED)


class OperationHandler(GpuCkptHandler):
    """One operation."""

    @web.authenticated
    @authorized
    async def get(self, operation_id: str) -> None:
        """Show it; with `wait`, when it is over or after that many seconds."""
        wait = self.seconds("wait", LONGEST_WAIT_SECONDS)
        operation = await self.extension.operations.wait(operation_id, wait)
        self.reply(operation_view(operation))


class HostHandler(GpuCkptHandler):
    """What this machine can do."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """The doctor's report."""
        self.reply(await self.extension.report())


ROUTES: dict[str, type[GpuCkptHandler]] = {
    "/kernels": KernelsHandler,
    "/kernels/{kernel_id}": KernelHandler,
    "/kernels/{kernel_id}/save": SaveHandler,
    "/kernels/{kernel_id}/suspend": SuspendHandler,
    "/kernels/{kernel_id}/resume": ResumeHandler,
    "/kernels/{kernel_id}/park": ParkHandler,
    "/suspend_all": SuspendAllHandler,
    "/kernels/{kernel_id}/undo_shutdown": UndoShutdownHandler,
    "/shut_down": ShutDownsHandler,
    "/operations/{operation_id}": OperationHandler,
    **snapshot_handlers.ROUTES,
    **time_travel_handlers.ROUTES,
    **variable_handlers.ROUTES,
    "/host": HostHandler,
}
