"""The routes about kernels and operations."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

import msgspec

from ...errors import GpuCkptError, KernelNotFound
from ...wire.protocol import Kernel, ResumeRequest
from ...wire.remote_listings import MoveRequest
from ..policies.shut_downs import ShutDown
from ..policies.suspend_all import suspend_all
from ..rest_records import (
    KernelsView,
    KernelView,
    OperationView,
    ShutDownsView,
    ShutDownView,
    elsewhere_view,
    operation_view,
)
from .openapi import answers
from .rest_handler import GpuCkptHandler
from .suspend_reports import ReportView, report_view

#: The longest time that a client may wait for an operation in one request; proxies cut longer ones.
LONGEST_WAIT_SECONDS = 60.0


class NameRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a save or suspend. `name`: the title of the snapshot, which is then pinned."""

    name: Annotated[str, msgspec.Meta(max_length=300)] = ""


class SuspendAllRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a suspend of all kernels. `within`: the seconds that it may take; None: as long as it takes."""

    within: Annotated[float, msgspec.Meta(ge=0)] | None = None


class KernelsHandler(GpuCkptHandler):
    """Handler for all kernels of this server."""

    _track_activity = False

    @answers(KernelsView)
    async def get(self) -> None:
        """List the kernels, and those that another server has not released."""
        views = [self.kernels.view(kernel_id) for kernel_id in self.kernels.ids()]
        elsewhere = [elsewhere_view(kernel) for kernel in await self._kept_elsewhere()]
        self.reply(KernelsView(kernels=views, elsewhere=elsewhere))

    async def _kept_elsewhere(self) -> list[Kernel]:
        """Return the kernels of notebooks below this server's folder that belong to another server which has not ended."""
        try:
            return await self.connected_link.kept_elsewhere() if self.connected_link else []
        except GpuCkptError as error:
            self.log.debug("kernels of other servers are not known: %s", error)
            return []


class KernelHandler(GpuCkptHandler):
    """Handler for one kernel."""

    _track_activity = False

    @answers(KernelView)
    async def get(self, kernel_id: str) -> None:
        """Show a kernel."""
        if kernel_id not in self.kernels:
            raise KernelNotFound(f"This server has no kernel {kernel_id}.")
        self.reply(self.kernels.view(kernel_id))


class SaveHandler(GpuCkptHandler):
    """Handler for saves."""

    @answers(OperationView, HTTPStatus.ACCEPTED, request=NameRequest)
    async def post(self, kernel_id: str) -> None:
        """Start a save."""
        request = self.record(NameRequest)
        operation = await self.parts.operations.save(kernel_id, request.name)
        self.reply(operation_view(operation))


class SuspendHandler(GpuCkptHandler):
    """Handler for suspends."""

    @answers(OperationView, HTTPStatus.ACCEPTED, request=NameRequest)
    async def post(self, kernel_id: str) -> None:
        """Start a suspend."""
        request = self.record(NameRequest)
        operation = await self.parts.operations.suspend(kernel_id, request.name)
        self.reply(operation_view(operation))


class ResumeHandler(GpuCkptHandler):
    """Handler for resumes."""

    @answers(OperationView, HTTPStatus.ACCEPTED, request=ResumeRequest)
    async def post(self, kernel_id: str) -> None:
        """Start a resume."""
        request = self.record(ResumeRequest)
        operation = await self.parts.resume(
            kernel_id, request.snapshot_id, take_over=request.take_over, force=request.force
        )
        self.reply(operation_view(operation))


class MoveHandler(GpuCkptHandler):
    """Handler for moves to a remote."""

    @answers(OperationView, HTTPStatus.ACCEPTED, request=MoveRequest)
    async def post(self, kernel_id: str) -> None:
        """Start suspending a kernel, uploading it, and releasing its session, so that another machine can go on with it.

        If that fails or is canceled, the kernel is as it was.
        """
        # A kernel that does not exist is reported before a body that is not valid.
        self.parts.operations.served(kernel_id)
        request = self.record(MoveRequest)
        self.reply(operation_view(await self.parts.moves.move(kernel_id, request.remote)))


class SuspendAllHandler(GpuCkptHandler):
    """Handler for suspends of all kernels."""

    @answers(ReportView, request=SuspendAllRequest)
    async def post(self) -> None:
        """Suspend all kernels; answer with the outcomes, at the latest a moment after the deadline."""
        request = self.record(SuspendAllRequest)
        operations = self.parts.operations
        report = await suspend_all(operations, self.kernels.ids(), request.within)
        self.reply(report_view(report))


class ShutDownsHandler(GpuCkptHandler):
    """Handler for kernels whose shutdown can be undone."""

    _track_activity = False

    @answers(ShutDownsView)
    async def get(self) -> None:
        """List the kernels whose shutdown can be undone."""
        views = [_shut_down_view(kernel_id, kept) for kernel_id, kept in self.parts.shut_downs]
        self.reply(ShutDownsView(kernels=views))


class UndoShutdownHandler(GpuCkptHandler):
    """Handler that undoes shutdowns."""

    @answers(KernelView)
    async def post(self, kernel_id: str) -> None:
        """List a kernel again, with its sessions, and let it run on."""
        await self.parts.shut_downs.undo(kernel_id)
        self.reply(self.kernels.view(kernel_id))


class UndoRestartHandler(GpuCkptHandler):
    """Handler that undoes restarts with the processes that were kept."""

    @answers(KernelView)
    async def post(self, kernel_id: str) -> None:
        """Let the process from before the last restart run on in place of the new one; 404 if it was saved, or is gone."""
        await self.parts.restarts.undo(kernel_id)
        self.reply(self.kernels.view(kernel_id))


class KeepRunningHandler(GpuCkptHandler):
    """Handler that keeps idle kernels running."""

    @answers(KernelView)
    async def post(self, kernel_id: str) -> None:
        """Withdraw the notice that an idle kernel will be suspended; its idle time begins anew."""
        self.parts.idle.keep_running(kernel_id)
        self.reply(self.kernels.view(kernel_id))


class KeepSavingHandler(GpuCkptHandler):
    """Handler for the choice to save a notebook here although another machine has taken its session over."""

    @answers(KernelView)
    async def post(self, kernel_id: str) -> None:
        """Let pages save the kernel's notebook again."""
        await self.parts.operations.keep_saving(kernel_id)
        self.reply(self.kernels.view(kernel_id))


class ParkHandler(GpuCkptHandler):
    """Handler for parks."""

    @answers(OperationView, HTTPStatus.ACCEPTED)
    async def post(self, kernel_id: str) -> None:
        """Start a park."""
        operation = await self.parts.operations.park(kernel_id)
        self.reply(operation_view(operation))


class OperationHandler(GpuCkptHandler):
    """Handler for one operation."""

    @answers(
        OperationView, query={"wait": "Seconds, at most 60, to wait for the end of the operation."}
    )
    async def get(self, operation_id: str) -> None:
        """Show an operation; with `wait`, when it is over or after that many seconds."""
        wait = self.seconds("wait", LONGEST_WAIT_SECONDS)
        operation = await self.parts.operations.wait(operation_id, wait)
        self.reply(operation_view(operation))


class CancelHandler(GpuCkptHandler):
    """Handler for cancellations."""

    @answers(OperationView)
    async def post(self, operation_id: str) -> None:
        """Ask an operation to stop and undo its work; this has no effect after its point of no return."""
        await self.parts.operations.cancel(operation_id)
        self.reply(operation_view(await self.parts.operations.wait(operation_id, 0)))


def _shut_down_view(kernel_id: str, kept: ShutDown) -> ShutDownView:
    """Return the record of a kernel whose shutdown can be undone."""
    return ShutDownView(
        kernel_id=kernel_id,
        kernel_name=kept.manager.kernel_name,
        path=kept.sessions[0]["path"] if kept.sessions else "",
        ends_at=kept.ends_at,
    )


ROUTES: dict[str, type[GpuCkptHandler]] = {
    "/kernels": KernelsHandler,
    "/kernels/{kernel_id}": KernelHandler,
    "/kernels/{kernel_id}/save": SaveHandler,
    "/kernels/{kernel_id}/suspend": SuspendHandler,
    "/kernels/{kernel_id}/resume": ResumeHandler,
    "/kernels/{kernel_id}/park": ParkHandler,
    "/kernels/{kernel_id}/move": MoveHandler,
    "/kernels/{kernel_id}/keep_running": KeepRunningHandler,
    "/kernels/{kernel_id}/keep_saving": KeepSavingHandler,
    "/suspend_all": SuspendAllHandler,
    "/kernels/{kernel_id}/undo_shutdown": UndoShutdownHandler,
    "/kernels/{kernel_id}/undo_restart": UndoRestartHandler,
    "/shut_down": ShutDownsHandler,
    "/operations/{operation_id}": OperationHandler,
    "/operations/{operation_id}/cancel": CancelHandler,
}
