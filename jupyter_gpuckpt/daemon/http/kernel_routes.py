"""The answers to requests about kernels, operations and owners."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

from ...host.memory_use import memory_uses
from ...wire import calls, protocol
from ...wire.protocol import Event, Kernel, ResumeRequest, SaveRequest, State
from ...wire.reclaim_records import NoticeRequest, NoticesReport
from ...wire.restart_records import SetAsideRequest
from ..kernels import taken_over
from ..kernels.kernels import ManagedKernel
from ..kernels.operations import RunningOperation
from . import snapshot_routes
from .daemon_handler import BaseHandler, DaemonRoutes

if TYPE_CHECKING:
    from collections.abc import Awaitable

_routes = DaemonRoutes()
_answers = _routes.answers
_routes.passed_on(
    {
        # Only the first handshake waits for the check of the machine.
        calls.handshake: lambda daemon: daemon.handshake,
        calls.kill: lambda daemon: daemon.verbs.kill,
        calls.save: lambda daemon: daemon.verbs.save,
        calls.suspend: lambda daemon: daemon.verbs.suspend,
        calls.park: lambda daemon: daemon.verbs.park,
        calls.move: lambda daemon: daemon.moves.move,
        calls.undo_end: lambda daemon: daemon.endings.undo,
        calls.delete_periodic: lambda daemon: daemon.removal.delete_periodic,
        calls.undo_restart: lambda daemon: daemon.former.undo,
        calls.operation: lambda daemon: daemon.operations.get,
        calls.notices: lambda daemon: daemon.reaction.report,
        calls.leave: lambda daemon: daemon.owners.leave,
        calls.claimable: lambda daemon: daemon.owners.claimable,
    }
)


@_answers(calls.alive)
def _alive(handler: BaseHandler) -> None:
    """Answer at once, from the event loop alone."""


@_answers(calls.host)
def _host(handler: BaseHandler) -> Awaitable[protocol.HostReport]:
    return asyncio.to_thread(handler.daemon.machine.report, fresh=True)


@_answers(calls.memory)
def _memory(handler: BaseHandler) -> Awaitable[list[protocol.MemoryUse]]:
    return asyncio.to_thread(memory_uses)


@_answers(calls.kernels)
async def _kernels(handler: BaseHandler) -> list[Kernel]:
    kernels = list(handler.daemon.kernels)
    await handler.daemon.measuring.measure(kernels)
    return [kernel.public() for kernel in kernels]


@_answers(calls.launch)
async def _launch(handler: BaseHandler, request: protocol.LaunchRequest) -> ManagedKernel | None:
    owner = await handler.daemon.owners.awaited(request.owner_id)
    kernel = await handler.daemon.verbs.launch(owner, request.spec)
    if handler.is_abandoned:
        # It has started another kernel instead, for example because this daemon was stopped for a while.
        await handler.daemon.verbs.kill(kernel.kernel_id)
        return None
    return kernel


@_answers(calls.copy)
async def _copy(handler: BaseHandler, request: protocol.CopyRequest) -> ManagedKernel | None:
    owner = await handler.daemon.owners.awaited(request.owner_id)
    kernel = await handler.daemon.verbs.copy(owner, request)
    if handler.is_abandoned:
        await handler.daemon.verbs.kill(kernel.kernel_id)
        return None
    return kernel


@_answers(calls.kernel)
async def _kernel(handler: BaseHandler, kernel_id: str) -> ManagedKernel:
    kernel = handler.daemon.kernels.get(kernel_id)
    await handler.daemon.measuring.measure([kernel])
    return kernel


@_answers(calls.resume)
async def _resume(handler: BaseHandler, kernel_id: str, request: ResumeRequest) -> RunningOperation:
    await handler.daemon.owners.bring(kernel_id)
    return handler.daemon.verbs.resume(kernel_id, request)


@_answers(calls.gpu_room)
async def _gpu_room(
    handler: BaseHandler, kernel_id: str, snapshot_id: str, visible_gpus: str
) -> protocol.GpuRoom:
    kernel, request = (
        handler.daemon.kernels.get(kernel_id),
        ResumeRequest(snapshot_id, visible_gpus),
    )
    return await asyncio.to_thread(handler.daemon.machine.gpu_room, kernel.record, request)


@_answers(calls.signal)
async def _signal(handler: BaseHandler, kernel_id: str, request: protocol.SignalRequest) -> None:
    """Send a signal; answer 204, or 202 if it will be delivered after the running operation."""
    if not await handler.daemon.verbs.signal(kernel_id, request.signum):
        handler.set_status(HTTPStatus.ACCEPTED)


@_answers(calls.end)
async def _end(handler: BaseHandler, kernel_id: str, request: protocol.EndRequest) -> ManagedKernel:
    return await handler.daemon.endings.set(kernel_id, request.after_seconds)


@_answers(calls.set_aside)
async def _set_aside(handler: BaseHandler, kernel_id: str, request: SetAsideRequest) -> None:
    await handler.daemon.former.set_aside(kernel_id, request.save, request.keep_seconds)


@_answers(calls.changed)
async def _changed(
    handler: BaseHandler, kernel_id: str, request: protocol.ChangedRequest
) -> ManagedKernel:
    kernel = handler.daemon.kernels.get(kernel_id)
    await handler.daemon.kernels.update(
        kernel, changed_at=request.at, autosave_seconds=request.autosave_seconds
    )
    return kernel


@_answers(calls.forget_taken_over)
async def _forget_taken_over(handler: BaseHandler, kernel_id: str) -> ManagedKernel:
    kernel = handler.daemon.kernels.get(kernel_id)
    await taken_over.forget(handler.daemon.kernels, kernel)
    return kernel


@_answers(calls.set_jupyter)
async def _set_jupyter(handler: BaseHandler, kernel_id: str, request: SaveRequest) -> ManagedKernel:
    kernel = handler.daemon.kernels.get(kernel_id)
    name = request.name or kernel.record.name
    jupyter = kernel.record.jupyter if request.jupyter is None else request.jupyter
    await taken_over.describe(handler.daemon.kernels, kernel, name, jupyter)
    return kernel


@_answers(calls.branch)
async def _branch(handler: BaseHandler, request: protocol.BranchRequest) -> ManagedKernel:
    owner = await handler.daemon.owners.awaited(request.owner_id)
    return await handler.daemon.verbs.branch(owner, request)


@_answers(calls.operation_events)
async def _operation_events(handler: BaseHandler, operation_id: str) -> None:
    streams, operation = handler.daemon.streams, handler.daemon.operations.get(operation_id)
    with streams.opened(
        lambda: Event(streams.position, State(operations=[operation.public()])),
        lambda event, _: (
            event.operation is not None and event.operation.operation_id == operation_id
        ),
    ) as stream:
        await handler.send_events(stream, until=lambda: operation.ended and stream.is_empty)


@_answers(calls.cancel)
def _cancel(handler: BaseHandler, operation_id: str) -> RunningOperation:
    """Request an operation to stop; answer with its record, as it may be past the point where it can stop."""
    operation = handler.daemon.operations.get(operation_id)
    operation.cancel()
    return operation


@_answers(calls.give_notice)
def _give_notice(handler: BaseHandler, request: NoticeRequest) -> NoticesReport:
    handler.daemon.reaction.request(request)
    return handler.daemon.reaction.report()


@_answers(calls.owner_events)
async def _owner_events(handler: BaseHandler, request: protocol.Owner) -> None:
    with handler.daemon.owners.connected(request) as stream:
        await handler.send_events(stream)


@_answers(calls.ready)
async def _ready(handler: BaseHandler, owner_id: str, request: protocol.ReadyRequest) -> None:
    owner = await handler.daemon.owners.awaited(owner_id)
    await handler.daemon.ready_copies.want(owner, request.wanted)


@_answers(calls.claim)
def _claim(handler: BaseHandler, owner_id: str) -> Awaitable[list[protocol.SuspendedKernel]]:
    return handler.daemon.owners.claim(owner_id)


ROUTES = _routes.handlers(BaseHandler) | snapshot_routes.ROUTES
