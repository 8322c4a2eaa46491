"""The routes about kernels and operations."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import Meta

from ...batches.suspend_batch import SuspendOutcome, SuspendReport
from ...errors import ConfigurationError, GpuCkptError, KernelNotFound
from ...wire.calls import Route
from ...wire.manifest_records import Cause
from ...wire.protocol import Kernel, ResumeRequest
from ...wire.remote_listings import MoveRequest
from ..policies.shut_downs import ShutDown
from ..policies.suspend_all import suspend_all
from ..rest_records import (
    ErrorView,
    KernelsView,
    KernelView,
    OperationView,
    ShutDownsView,
    ShutDownView,
    View,
    elsewhere_view,
    error_view,
    operation_view,
    view_of,
)
from .rest_handler import GpuCkptHandler, RestRoutes

#: The longest time that a client may wait for an operation in one request; proxies cut longer ones.
LONGEST_WAIT_SECONDS = 60.0
_KERNEL, _OPERATION = "/kernels/{kernel_id}", "/operations/{operation_id}"

ROUTES = RestRoutes()
_answers, _ACCEPTED = ROUTES.answers, HTTPStatus.ACCEPTED


class NameRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a save or suspend. `name`: the title of the snapshot, which is then pinned. `tool`: a tool requests it; it is not pinned."""

    name: Annotated[str, Meta(max_length=300)] = ""
    tool: bool = False

    @property
    def cause(self) -> Cause:
        """Return the cause of the snapshot."""
        return Cause.TOOL if self.tool else Cause.MANUAL


class SuspendAllRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a suspend of all kernels. `within`: the seconds that it may take; None: as long as it takes."""

    within: Annotated[float, Meta(ge=0)] | None = None


class OutcomeView(View, frozen=True):
    """The outcome of one kernel in a suspend of all.

    - `snapshot_id`: Empty where it was not saved.
    - `size_bytes`: Memory and GPU memory that it used together.
    - `since`: Seconds since the epoch: when it was suspended; 0: it was not.
    - `seconds`: How long its suspend took; 0 if it was suspended before.
    - `error`: Why it was not saved.
    """

    kernel_id: str
    name: str
    saved: bool
    snapshot_id: str
    size_bytes: int
    gpu_bytes: int
    since: float
    seconds: float
    error: ErrorView | None


class ReportView(View, frozen=True):
    """The outcomes of a suspend of all kernels."""

    seconds: float
    kernels: list[OutcomeView]


@_answers(Route(KernelsView, "GET", "/kernels"), _track_activity=False)
async def _kernels(handler: GpuCkptHandler) -> KernelsView:
    """List the kernels, and those that another server has not released."""
    views = [handler.kernels.view(kernel_id) for kernel_id in handler.kernels.ids()]
    elsewhere = [elsewhere_view(kernel) for kernel in await _kept_elsewhere(handler)]
    return KernelsView(kernels=views, elsewhere=elsewhere)


async def _kept_elsewhere(handler: GpuCkptHandler) -> list[Kernel]:
    """Return the kernels of notebooks below this server's folder that belong to another server which has not ended."""
    try:
        return await handler.connected_link.kept_elsewhere() if handler.connected_link else []
    except GpuCkptError as error:
        handler.log.debug("kernels of other servers are not known: %s", error)
        return []


@_answers(Route(KernelView, "GET", _KERNEL), _track_activity=False)
def _kernel(handler: GpuCkptHandler, kernel_id: str) -> KernelView:
    """Show a kernel."""
    if kernel_id not in handler.kernels:
        raise KernelNotFound(f"This server has no kernel {kernel_id}.")
    return handler.kernels.view(kernel_id)


@_answers(Route(OperationView, "POST", f"{_KERNEL}/save", NameRequest, _ACCEPTED))
async def _save(handler: GpuCkptHandler, kernel_id: str, request: NameRequest) -> OperationView:
    """Start a save."""
    save = handler.parts.operations.save
    return operation_view(await save(kernel_id, request.name, cause=request.cause))


@_answers(Route(OperationView, "POST", f"{_KERNEL}/suspend", NameRequest, _ACCEPTED))
async def _suspend(handler: GpuCkptHandler, kernel_id: str, request: NameRequest) -> OperationView:
    """Start a suspend."""
    suspend = handler.parts.operations.suspend
    return operation_view(await suspend(kernel_id, request.name, cause=request.cause))


@_answers(Route(OperationView, "POST", f"{_KERNEL}/resume", ResumeRequest, _ACCEPTED))
async def _resume(handler: GpuCkptHandler, kernel_id: str, request: ResumeRequest) -> OperationView:
    """Start a resume."""
    operation = await handler.parts.gpu_room.resume(
        kernel_id, request.snapshot_id, take_over=request.take_over, force=request.force
    )
    return operation_view(operation)


@_answers(Route(OperationView, "POST", f"{_KERNEL}/park", None, _ACCEPTED))
async def _park(handler: GpuCkptHandler, kernel_id: str) -> OperationView:
    """Start a park."""
    return operation_view(await handler.parts.operations.park(kernel_id))


@_answers(Route(KernelView, "POST", f"{_KERNEL}/expect_cell"))
async def _expect_cell(handler: GpuCkptHandler, kernel_id: str) -> KernelView:
    """Unpark a kernel whose page has got the focus, if no user has parked it and no other kernel needs the GPU; answer afterwards."""
    await handler.parts.gpu_room.expect_cell(kernel_id)
    return handler.kernels.view(kernel_id)


@_answers(Route(OperationView, "POST", f"{_KERNEL}/move", MoveRequest, _ACCEPTED))
async def _move(handler: GpuCkptHandler, kernel_id: str) -> OperationView:
    """Start suspending a kernel, uploading it, and releasing its session, so that another machine can go on with it.

    If that fails or is canceled, the kernel is as it was.
    """
    # A kernel that does not exist is reported before a body that is not valid.
    handler.parts.operations.served(kernel_id)
    remote = handler.record(MoveRequest).remote
    return operation_view(await handler.parts.moves.move(kernel_id, remote))


@_answers(Route(KernelView, "POST", f"{_KERNEL}/keep_running"))
def _keep_running(handler: GpuCkptHandler, kernel_id: str) -> KernelView:
    """Withdraw the notice that an idle kernel will be suspended; its idle time begins anew."""
    handler.parts.idle.keep_running(kernel_id)
    return handler.kernels.view(kernel_id)


@_answers(Route(KernelView, "POST", f"{_KERNEL}/keep_saving"))
async def _keep_saving(handler: GpuCkptHandler, kernel_id: str) -> KernelView:
    """Let pages save the kernel's notebook again."""
    # Another machine has taken its session over, and a user has chosen to save it here all the same.
    await handler.parts.operations.keep_saving(kernel_id)
    return handler.kernels.view(kernel_id)


@_answers(Route(ReportView, "POST", "/suspend_all", SuspendAllRequest))
async def _suspend_all(handler: GpuCkptHandler, request: SuspendAllRequest) -> ReportView:
    """Suspend all kernels; answer with the outcomes, at the latest a moment after the deadline."""
    operations = handler.parts.operations
    return _report_view(await suspend_all(operations, handler.kernels.ids(), request.within))


@_answers(Route(KernelView, "POST", f"{_KERNEL}/undo_shutdown"))
async def _undo_shutdown(handler: GpuCkptHandler, kernel_id: str) -> KernelView:
    """List a kernel again, with its sessions, and let it run on."""
    await handler.parts.shut_downs.undo(kernel_id)
    return handler.kernels.view(kernel_id)


@_answers(Route(KernelView, "POST", f"{_KERNEL}/undo_restart"))
async def _undo_restart(handler: GpuCkptHandler, kernel_id: str) -> KernelView:
    """Let the process from before the last restart run on in place of the new one; 404 if it was saved, or is gone."""
    await handler.parts.restarts.undo(kernel_id)
    return handler.kernels.view(kernel_id)


@_answers(Route(ShutDownsView, "GET", "/shut_down"), _track_activity=False)
def _shut_down(handler: GpuCkptHandler) -> ShutDownsView:
    """List the kernels whose shutdown can be undone."""
    views = [_shut_down_view(kernel_id, kept) for kernel_id, kept in handler.parts.shut_downs]
    return ShutDownsView(kernels=views)


@_answers(
    Route(
        OperationView,
        "GET",
        _OPERATION,
        query={"wait": "Seconds, at most 60, to wait for the end of the operation."},
    )
)
async def _operation(handler: GpuCkptHandler, operation_id: str, wait: str) -> OperationView:
    """Show an operation; with `wait`, when it is over or after that many seconds."""
    try:
        seconds = max(0.0, min(float(wait or 0), LONGEST_WAIT_SECONDS))
    except ValueError as error:
        raise ConfigurationError(f"wait is not a number of seconds: {wait!r}") from error
    return operation_view(await handler.parts.operations.wait(operation_id, seconds))


@_answers(Route(OperationView, "POST", f"{_OPERATION}/cancel"))
async def _cancel(handler: GpuCkptHandler, operation_id: str) -> OperationView:
    """Ask an operation to stop and undo its work; this has no effect after its point of no return."""
    await handler.parts.operations.cancel(operation_id)
    return operation_view(await handler.parts.operations.wait(operation_id, 0))


def _shut_down_view(kernel_id: str, kept: ShutDown) -> ShutDownView:
    """Return the record of a kernel whose shutdown can be undone."""
    return ShutDownView(
        kernel_id=kernel_id,
        kernel_name=kept.manager.kernel_name,
        path=kept.sessions[0]["path"] if kept.sessions else "",
        ends_at=kept.ends_at,
    )


def _report_view(report: SuspendReport) -> ReportView:
    """Return the record of a suspend of many kernels."""
    return ReportView(seconds=report.seconds, kernels=list(map(_outcome_view, report.kernels)))


def _outcome_view(outcome: SuspendOutcome) -> OutcomeView:
    return view_of(OutcomeView, outcome, error=outcome.error and error_view(outcome.error))
