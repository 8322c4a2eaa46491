"""The routes, one class each: what a request asks is handed to the object that can do it, and the answer sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

from ..protocol import (
    BranchRequest,
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
from . import snapshot_handlers
from .base_handler import BaseHandler
from .streams import Stream


class StreamHandler(BaseHandler):
    """A handler that answers with a stream of events."""

    _stream: Stream | None = None

    async def send_events(self, stream: Stream, until: Callable[[], bool] = lambda: False) -> None:
        """Send a line for every event until either side goes, or `until` it is enough."""
        self._stream = stream
        while event := await stream.next():
            await self.send_line(event)
            if until():
                return

    def on_connection_close(self) -> None:
        """Stop waiting for events: the reader has gone."""
        super().on_connection_close()
        if self._stream is not None:
            self._stream.close()


class HandshakeHandler(BaseHandler):
    """Who the daemon is."""

    async def get(self) -> None:
        """Answer at once, but for the first time, when the machine is looked at."""
        self.reply(await self.daemon.handshake())


class HostHandler(BaseHandler):
    """What this machine can do."""

    async def get(self) -> None:
        """Look again each time."""
        self.reply(await asyncio.to_thread(self.daemon.machine.report, fresh=True))


class KernelsHandler(BaseHandler):
    """All kernels."""

    async def get(self) -> None:
        """List them."""
        kernels = list(self.daemon.kernels)
        await self.daemon.measuring.measure(kernels)
        self.reply([kernel.public() for kernel in kernels])

    async def post(self) -> None:
        """Launch one."""
        request = self.record(LaunchRequest)
        owner = await self.daemon.owners.awaited(request.owner_id)
        kernel = await self.daemon.verbs.launch(owner, request.spec)
        self.reply(kernel.public(), HTTPStatus.CREATED)


class KernelHandler(BaseHandler):
    """One kernel."""

    async def get(self, kernel_id: str) -> None:
        """Show it."""
        kernel = self.daemon.kernels.get(kernel_id)
        await self.daemon.measuring.measure([kernel])
        self.reply(kernel.public())

    async def delete(self, kernel_id: str) -> None:
        """Kill it."""
        await self.daemon.verbs.kill(kernel_id)
        self.set_status(HTTPStatus.NO_CONTENT)


class BranchesHandler(BaseHandler):
    """Kernels made from snapshots."""

    async def post(self) -> None:
        """Make one, suspended; its resume does the rest."""
        request = self.record(BranchRequest)
        owner = await self.daemon.owners.awaited(request.owner_id)
        kernel = await self.daemon.verbs.branch(owner, request)
        self.reply(kernel.public(), HTTPStatus.CREATED)


class GpuRoomHandler(BaseHandler):
    """Room on the GPU."""

    async def get(self, kernel_id: str) -> None:
        """What a resume, of this snapshot and seeing these GPUs if that is given, needs, and what is there."""
        kernel = self.daemon.kernels.get(kernel_id)
        given = {
            name: self.get_query_argument(name, "") for name in ("snapshot_id", "visible_gpus")
        }
        machine = self.daemon.machine
        self.reply(await asyncio.to_thread(machine.gpu_room, kernel.record, ResumeRequest(**given)))


class SaveHandler(BaseHandler):
    """Saves."""

    async def post(self, kernel_id: str) -> None:
        """Start one."""
        operation = self.daemon.verbs.save(kernel_id, self.record(SaveRequest))
        self.reply(operation.public(), HTTPStatus.ACCEPTED)


class SuspendHandler(BaseHandler):
    """Suspends."""

    async def post(self, kernel_id: str) -> None:
        """Start one."""
        operation = self.daemon.verbs.suspend(kernel_id, self.record(SaveRequest))
        self.reply(operation.public(), HTTPStatus.ACCEPTED)


class ResumeHandler(BaseHandler):
    """Resumes."""

    async def post(self, kernel_id: str) -> None:
        """Start one."""
        operation = self.daemon.verbs.resume(kernel_id, self.record(ResumeRequest))
        self.reply(operation.public(), HTTPStatus.ACCEPTED)


class ParkHandler(BaseHandler):
    """Parks."""

    async def post(self, kernel_id: str) -> None:
        """Start one."""
        operation = self.daemon.verbs.park(kernel_id, self.record(ParkRequest))
        self.reply(operation.public(), HTTPStatus.ACCEPTED)


class SignalHandler(BaseHandler):
    """Signals."""

    async def post(self, kernel_id: str) -> None:
        """Send one: 204, or 202 when it is delivered after the operation in flight."""
        request = self.record(SignalRequest)
        delivered = await self.daemon.verbs.signal(kernel_id, request.signum)
        self.set_status(HTTPStatus.NO_CONTENT if delivered else HTTPStatus.ACCEPTED)


class EndHandler(BaseHandler):
    """Shut down by its user."""

    async def put(self, kernel_id: str) -> None:
        """Keep it for a while, standing still, then kill it."""
        request = self.record(EndRequest)
        kernel = await self.daemon.endings.set(kernel_id, request.after_seconds)
        self.reply(kernel.public())

    async def delete(self, kernel_id: str) -> None:
        """Undo that."""
        self.reply((await self.daemon.endings.undo(kernel_id)).public())


class JupyterHandler(BaseHandler):
    """What the door keeps with a kernel."""

    async def put(self, kernel_id: str) -> None:
        """Replace it."""
        request = self.record(SaveRequest)
        kernel = self.daemon.kernels.get(kernel_id)
        name = request.name or kernel.record.name
        jupyter = kernel.record.jupyter if request.jupyter is None else request.jupyter
        await self.daemon.kernels.update(kernel, name=name, jupyter=jupyter)
        self.reply(kernel.public())


class OperationHandler(BaseHandler):
    """One operation."""

    async def get(self, operation_id: str) -> None:
        """Show it."""
        self.reply(self.daemon.operations.get(operation_id).public())


class OperationEventsHandler(StreamHandler):
    """What happens to one operation."""

    async def get(self, operation_id: str) -> None:
        """Send its events until it is over."""
        streams, operation = self.daemon.streams, self.daemon.operations.get(operation_id)
        with streams.opened(
            lambda: Event(streams.position, State(operations=[operation.public()])),
            lambda event, _: (
                event.operation is not None and event.operation.operation_id == operation_id
            ),
        ) as stream:
            await self.send_events(stream, until=lambda: operation.ended and stream.is_empty)


class CancelHandler(BaseHandler):
    """Cancellations."""

    async def post(self, operation_id: str) -> None:
        """Ask the operation to stop; the answer shows how it stands, which may be past the point where it can."""
        operation = self.daemon.operations.get(operation_id)
        operation.cancel()
        self.reply(operation.public())


class OwnersHandler(StreamHandler):
    """Connections of owners."""

    async def post(self) -> None:
        """Send events until either side goes."""
        with self.daemon.owners.connected(self.record(Owner)) as stream:
            await self.send_events(stream)


class OwnerHandler(BaseHandler):
    """One owner."""

    async def delete(self, owner_id: str) -> None:
        """Let it go: its kernels are the next server's."""
        await self.daemon.owners.leave(owner_id)
        self.set_status(HTTPStatus.NO_CONTENT)


class ClaimHandler(BaseHandler):
    """Claims."""

    async def get(self, owner_id: str) -> None:
        """List what other servers keep from this one."""
        self.reply(await self.daemon.owners.claimable(owner_id))

    async def post(self, owner_id: str) -> None:
        """Hand the kernels of dead servers over."""
        self.reply(await self.daemon.owners.claim(owner_id))


ROUTES: dict[str, type[BaseHandler]] = {
    "/handshake": HandshakeHandler,
    "/host": HostHandler,
    "/kernels": KernelsHandler,
    "/kernels/{kernel_id}": KernelHandler,
    "/kernels/{kernel_id}/save": SaveHandler,
    "/kernels/{kernel_id}/suspend": SuspendHandler,
    "/kernels/{kernel_id}/resume": ResumeHandler,
    "/kernels/{kernel_id}/park": ParkHandler,
    "/kernels/{kernel_id}/gpu_room": GpuRoomHandler,
    "/kernels/{kernel_id}/signal": SignalHandler,
    "/kernels/{kernel_id}/end": EndHandler,
    "/kernels/{kernel_id}/jupyter": JupyterHandler,
    "/branches": BranchesHandler,
    "/operations/{operation_id}": OperationHandler,
    "/operations/{operation_id}/events": OperationEventsHandler,
    "/operations/{operation_id}/cancel": CancelHandler,
    **snapshot_handlers.ROUTES,
    "/owners": OwnersHandler,
    "/owners/{owner_id}": OwnerHandler,
    "/owners/{owner_id}/claim": ClaimHandler,
}
