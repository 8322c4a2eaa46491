"""The routes about kernels, operations and owners, one class each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from ...host.memory_use import memory_uses
from ...wire.protocol import (
    BranchRequest,
    ChangedRequest,
    EndRequest,
    Event,
    LaunchRequest,
    Owner,
    ParkRequest,
    ResumeRequest,
    SaveRequest,
    SignalRequest,
    State,
)
from ...wire.reclaim_records import NoticeRequest
from ...wire.restart_records import SetAsideRequest
from ..kernels import taken_over
from ..kernels.streams import Stream
from . import remote_routes, snapshot_routes
from .daemon_handler import BaseHandler


class StreamHandler(BaseHandler):
    """A handler that answers with a stream of events."""

    _stream: Stream | None = None

    async def send_events(self, stream: Stream, until: Callable[[], bool] = lambda: False) -> None:
        """Send a line for every event until either side closes the connection or `until` returns True."""
        self._stream = stream
        while event := await stream.next():
            await self.send_line(event)
            if until():
                return

    def on_connection_close(self) -> None:
        """Close the stream of a client that has disconnected."""
        super().on_connection_close()
        if self._stream is not None:
            self._stream.close()


class HandshakeHandler(BaseHandler):
    """Handler for the handshake: the daemon's identity, and whether its engine works."""

    async def get(self) -> None:
        """Return the handshake; only the first request waits for the check of the machine."""
        self.reply(await self.daemon.handshake())


class AliveHandler(BaseHandler):
    """Handler for the question whether this daemon answers."""

    def get(self) -> None:
        """Answer at once, from the event loop alone."""
        self.set_status(HTTPStatus.NO_CONTENT)


class HostHandler(BaseHandler):
    """Handler for the doctor's report of this machine."""

    async def get(self) -> None:
        """Check the machine again and return the report."""
        self.reply(await asyncio.to_thread(self.daemon.machine.report, fresh=True))


class MemoryHandler(BaseHandler):
    """Handler for the use of memory."""

    async def get(self) -> None:
        """Return the use of this machine's memory, and below each limit of the control groups in which kernels run."""
        self.reply(await asyncio.to_thread(memory_uses))


class KernelsHandler(BaseHandler):
    """Handler for all kernels."""

    async def get(self) -> None:
        """List all kernels."""
        kernels = list(self.daemon.kernels)
        await self.daemon.measuring.measure(kernels)
        self.reply([kernel.public() for kernel in kernels])

    async def post(self) -> None:
        """Launch a kernel."""
        request = self.record(LaunchRequest)
        owner = await self.daemon.owners.awaited(request.owner_id)
        kernel = await self.daemon.verbs.launch(owner, request.spec)
        if self.is_abandoned:
            # It has started another kernel instead, for example because this daemon was stopped for a while.
            await self.daemon.verbs.kill(kernel.kernel_id)
            return
        self.reply(kernel.public(), HTTPStatus.CREATED)


class KernelHandler(BaseHandler):
    """Handler for one kernel."""

    async def get(self, kernel_id: str) -> None:
        """Show a kernel."""
        kernel = self.daemon.kernels.get(kernel_id)
        await self.daemon.measuring.measure([kernel])
        self.reply(kernel.public())

    async def delete(self, kernel_id: str) -> None:
        """Kill a kernel."""
        await self.daemon.verbs.kill(kernel_id)
        self.set_status(HTTPStatus.NO_CONTENT)


class BranchesHandler(BaseHandler):
    """Handler for kernels made from snapshots."""

    async def post(self) -> None:
        """Create a suspended kernel from a snapshot of another one; its resume starts it."""
        request = self.record(BranchRequest)
        owner = await self.daemon.owners.awaited(request.owner_id)
        kernel = await self.daemon.verbs.branch(owner, request)
        self.reply(kernel.public(), HTTPStatus.CREATED)


class GpuRoomHandler(BaseHandler):
    """Handler for room on the GPU."""

    async def get(self, kernel_id: str) -> None:
        """Return the GPU memory that a resume needs and what is free, optionally for a given snapshot and given GPUs."""
        kernel = self.daemon.kernels.get(kernel_id)
        request = ResumeRequest(
            self.get_query_argument("snapshot_id", ""), self.get_query_argument("visible_gpus", "")
        )
        self.reply(await asyncio.to_thread(self.daemon.machine.gpu_room, kernel.record, request))


class SaveHandler(BaseHandler):
    """Handler for saves."""

    async def post(self, kernel_id: str) -> None:
        """Start a save."""
        operation = self.daemon.verbs.save(kernel_id, self.record(SaveRequest))
        self.reply(operation.public(), HTTPStatus.ACCEPTED)


class SuspendHandler(BaseHandler):
    """Handler for suspends."""

    async def post(self, kernel_id: str) -> None:
        """Start a suspend."""
        operation = self.daemon.verbs.suspend(kernel_id, self.record(SaveRequest))
        self.reply(operation.public(), HTTPStatus.ACCEPTED)


class ResumeHandler(BaseHandler):
    """Handler for resumes."""

    async def post(self, kernel_id: str) -> None:
        """Start a resume."""
        request = self.record(ResumeRequest)
        await self.daemon.owners.bring(kernel_id)
        operation = self.daemon.verbs.resume(kernel_id, request)
        self.reply(operation.public(), HTTPStatus.ACCEPTED)


class ParkHandler(BaseHandler):
    """Handler for parks."""

    async def post(self, kernel_id: str) -> None:
        """Start a park."""
        operation = self.daemon.verbs.park(kernel_id, self.record(ParkRequest))
        self.reply(operation.public(), HTTPStatus.ACCEPTED)


class SignalHandler(BaseHandler):
    """Handler for signals."""

    async def post(self, kernel_id: str) -> None:
        """Send a signal; answer 204, or 202 if it will be delivered after the running operation."""
        request = self.record(SignalRequest)
        delivered = await self.daemon.verbs.signal(kernel_id, request.signum)
        self.set_status(HTTPStatus.NO_CONTENT if delivered else HTTPStatus.ACCEPTED)


class EndHandler(BaseHandler):
    """Handler for shutdowns that can be undone for a while."""

    async def put(self, kernel_id: str) -> None:
        """Stop a kernel's processes now, and kill it after a while."""
        request = self.record(EndRequest)
        kernel = await self.daemon.endings.set(kernel_id, request.after_seconds)
        self.reply(kernel.public())

    async def delete(self, kernel_id: str) -> None:
        """Undo a shutdown: let the kernel run on."""
        self.reply((await self.daemon.endings.undo(kernel_id)).public())


class FormerHandler(BaseHandler):
    """Handler for the process that a kernel had before its restart."""

    async def put(self, kernel_id: str) -> None:
        """Set a kernel's process aside for a restart."""
        request = self.record(SetAsideRequest)
        await self.daemon.former.set_aside(kernel_id, request.save, request.keep_seconds)
        self.set_status(HTTPStatus.NO_CONTENT)

    async def delete(self, kernel_id: str) -> None:
        """Undo a restart: let the former process run on."""
        self.reply((await self.daemon.former.undo(kernel_id)).public())


class ChangedHandler(BaseHandler):
    """Handler for what servers see of changes of kernels."""

    async def put(self, kernel_id: str) -> None:
        """Note that a kernel has changed after its last snapshot."""
        request = self.record(ChangedRequest)
        kernel = self.daemon.kernels.get(kernel_id)
        await self.daemon.kernels.update(kernel, changed_at=request.at)
        self.reply(kernel.public())


class TakenOverHandler(BaseHandler):
    """Handler for the note that another machine has taken a kernel's session over."""

    async def delete(self, kernel_id: str) -> None:
        """Remove the note: a user has chosen where the notebook is saved."""
        kernel = self.daemon.kernels.get(kernel_id)
        await taken_over.forget(self.daemon.kernels, kernel)
        self.reply(kernel.public())


class JupyterHandler(BaseHandler):
    """A handler for the description that Jupyter keeps with a kernel."""

    async def put(self, kernel_id: str) -> None:
        """Replace the description that Jupyter keeps with a kernel."""
        request = self.record(SaveRequest)
        kernel = self.daemon.kernels.get(kernel_id)
        name = request.name or kernel.record.name
        jupyter = kernel.record.jupyter if request.jupyter is None else request.jupyter
        await taken_over.describe(self.daemon.kernels, kernel, name, jupyter)
        self.reply(kernel.public())


class OperationHandler(BaseHandler):
    """Handler for one operation."""

    async def get(self, operation_id: str) -> None:
        """Show an operation."""
        self.reply(self.daemon.operations.get(operation_id).public())


class OperationEventsHandler(StreamHandler):
    """Handler for the events of one operation."""

    async def get(self, operation_id: str) -> None:
        """Send the events of an operation until it is over."""
        streams, operation = self.daemon.streams, self.daemon.operations.get(operation_id)
        with streams.opened(
            lambda: Event(streams.position, State(operations=[operation.public()])),
            lambda event, _: (
                event.operation is not None and event.operation.operation_id == operation_id
            ),
        ) as stream:
            await self.send_events(stream, until=lambda: operation.ended and stream.is_empty)


class CancelHandler(BaseHandler):
    """Handler for cancellations."""

    async def post(self, operation_id: str) -> None:
        """Request an operation to stop; answer with its record, as it may be past the point where it can stop."""
        operation = self.daemon.operations.get(operation_id)
        operation.cancel()
        self.reply(operation.public())


class OwnersHandler(StreamHandler):
    """Handler for the connections of owners."""

    async def post(self) -> None:
        """Send events until either side closes the connection."""
        with self.daemon.owners.connected(self.record(Owner)) as stream:
            await self.send_events(stream)


class NoticesHandler(BaseHandler):
    """Handler for notices that this machine will go."""

    async def get(self) -> None:
        """List the notices that stand, and the kernels that are not safe yet."""
        self.reply(self.daemon.reaction.report())

    async def post(self) -> None:
        """Accept a hook's notice, or its withdrawal."""
        self.daemon.reaction.request(self.record(NoticeRequest))
        self.reply(self.daemon.reaction.report())


class OwnerHandler(BaseHandler):
    """Handler for one owner."""

    async def delete(self, owner_id: str) -> None:
        """Let the next server claim the owner's kernels."""
        await self.daemon.owners.leave(owner_id)
        self.set_status(HTTPStatus.NO_CONTENT)


class ClaimHandler(BaseHandler):
    """Handler for claims."""

    async def get(self, owner_id: str) -> None:
        """List the kernels that this server could claim if their servers had ended."""
        self.reply(await self.daemon.owners.claimable(owner_id))

    async def post(self, owner_id: str) -> None:
        """Transfer the kernels of ended servers to this one."""
        self.reply(await self.daemon.owners.claim(owner_id))


ROUTES: dict[str, type[BaseHandler]] = {
    "/handshake": HandshakeHandler,
    "/alive": AliveHandler,
    "/host": HostHandler,
    "/memory": MemoryHandler,
    "/kernels": KernelsHandler,
    "/kernels/{kernel_id}": KernelHandler,
    "/kernels/{kernel_id}/save": SaveHandler,
    "/kernels/{kernel_id}/suspend": SuspendHandler,
    "/kernels/{kernel_id}/resume": ResumeHandler,
    "/kernels/{kernel_id}/park": ParkHandler,
    "/kernels/{kernel_id}/gpu_room": GpuRoomHandler,
    "/kernels/{kernel_id}/signal": SignalHandler,
    "/kernels/{kernel_id}/end": EndHandler,
    "/kernels/{kernel_id}/former": FormerHandler,
    "/kernels/{kernel_id}/changed": ChangedHandler,
    "/kernels/{kernel_id}/taken_over": TakenOverHandler,
    "/kernels/{kernel_id}/jupyter": JupyterHandler,
    "/branches": BranchesHandler,
    "/operations/{operation_id}": OperationHandler,
    "/operations/{operation_id}/events": OperationEventsHandler,
    "/operations/{operation_id}/cancel": CancelHandler,
    **snapshot_routes.ROUTES,
    **remote_routes.ROUTES,
    "/notices": NoticesHandler,
    "/owners": OwnersHandler,
    "/owners/{owner_id}": OwnerHandler,
    "/owners/{owner_id}/claim": ClaimHandler,
}
