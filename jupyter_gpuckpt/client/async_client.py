"""The client for callers on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Self, TypeVar

import httpx

from ..daemon_settings import Settings
from ..errors import DaemonUnavailable, GpuCkptError
from ..model import LaunchSpec, RetentionPolicy
from ..protocol import (
    BranchRequest,
    Changes,
    Event,
    GpuRoom,
    Handshake,
    HostReport,
    Kernel,
    Operation,
    Owner,
    ParkRequest,
    PruneReport,
    Result,
    SaveRequest,
    SuspendedKernel,
)
from ..snapshot_records import (
    AnnotateRequest,
    Snapshot,
    SnapshotVariables,
    StoreUsage,
    Verification,
)
from . import calls, starting
from .calls import Call
from .holding import Backoff, OnLoss
from .starting import Target

_Reply = TypeVar("_Reply")


class AsyncClient:
    """Speaks to the daemon of this place, as `Client` does; belongs to the event loop that first uses it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        transport = httpx.AsyncHTTPTransport(uds=str(target.socket), verify=False)
        self._http = httpx.AsyncClient(transport=transport, **calls.ANYWHERE)

    @classmethod
    async def connect(cls, settings: Settings | None = None, *, start: bool = True) -> Self:
        """A client whose daemon runs; settings default to the environment's and matter only to a daemon that is started."""
        target = await asyncio.to_thread(starting.target, settings, start=start)
        await asyncio.to_thread(starting.ensure, target)
        return cls(target)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def handshake(self) -> Handshake:
        """Who the daemon is, and whether kernels can run under the engine here."""
        return starting.accepted(await self._do(calls.handshake()), self._target.place)

    async def host(self) -> HostReport:
        """What this machine can do, looked at now."""
        return await self._do(calls.host())

    async def launch(self, owner_id: str, spec: LaunchSpec) -> Kernel:
        """Start a kernel for an owner whose connection is held."""
        return await self._do(calls.launch(owner_id, spec))

    async def kernels(self) -> list[Kernel]:
        """All kernels of this place."""
        return await self._do(calls.kernels())

    async def kernel(self, kernel_id: str) -> Kernel:
        """One kernel."""
        return await self._do(calls.kernel(kernel_id))

    async def kill(self, kernel_id: str) -> None:
        """End a kernel; on return its processes are gone. Its snapshots stay."""
        await self._do(calls.kill(kernel_id))

    async def end(self, kernel_id: str, after_seconds: float) -> Kernel:
        """Make a kernel stand still and kill it after that time, unless `undo_end` is called before."""
        return await self._do(calls.end(kernel_id, after_seconds))

    async def undo_end(self, kernel_id: str) -> Kernel:
        """Let a kernel live on that was to end."""
        return await self._do(calls.undo_end(kernel_id))

    async def signal(self, kernel_id: str, signum: int) -> None:
        """Send a signal to a kernel's process group; during an operation it is delivered after it."""
        await self._do(calls.signal(kernel_id, signum))

    async def save(self, kernel_id: str, request: SaveRequest | None = None) -> Operation:
        """Start taking a snapshot; the kernel goes on."""
        return await self._do(calls.save(kernel_id, request))

    async def suspend(self, kernel_id: str, request: SaveRequest | None = None) -> Operation:
        """Start taking a snapshot, after which the process ends."""
        return await self._do(calls.suspend(kernel_id, request))

    async def park(self, kernel_id: str, *, peer_access_off: bool = False) -> Operation:
        """Start moving a kernel's GPU memory into RAM; `resume` moves it back."""
        return await self._do(calls.park(kernel_id, ParkRequest(peer_access_off)))

    async def resume(self, kernel_id: str, snapshot_id: str = "") -> Operation:
        """Start bringing a kernel back from a snapshot, its latest if none is named."""
        return await self._do(calls.resume(kernel_id, snapshot_id))

    async def branch(self, request: BranchRequest) -> Kernel:
        """Make a new kernel, suspended in a snapshot of another; `resume` brings it up beside that one."""
        return await self._do(calls.branch(request))

    async def launch_spec(self, snapshot_id: str) -> LaunchSpec:
        """How the kernel of a snapshot was started: environment and connection key are in it, so it is never passed on."""
        return await self._do(calls.launch_spec(snapshot_id))

    async def changes(self, snapshot_id: str) -> Changes:
        """What differs since a snapshot was taken: files its kernel had open, and what keeps it from being resumed here."""
        return await self._do(calls.changes(snapshot_id))

    async def gpu_room(self, kernel_id: str, snapshot_id: str = "") -> GpuRoom:
        """The GPU memory that a resume or unpark needs, and what is free."""
        return await self._do(calls.gpu_room(kernel_id, snapshot_id))

    async def operation(self, operation_id: str, wait: float = 0) -> Operation:
        """One operation: when it is over, or how it stands after `wait` seconds (60 at most)."""
        return await self._do(calls.operation(operation_id, wait))

    async def cancel(self, operation_id: str) -> Operation:
        """Ask an operation to stop and undo what it did."""
        return await self._do(calls.cancel(operation_id))

    async def snapshots(
        self, kernel_id: str | None = None, *, path: str = "", deleted: bool = False
    ) -> list[Snapshot]:
        """All snapshots, newest first, or those of one kernel or notebook; with `deleted` those whose deletion can be undone."""
        return await self._do(calls.snapshots(kernel_id, path=path, deleted=deleted))

    async def manifest_summary(self, snapshot_id: str) -> dict[str, Any]:
        """What is in a snapshot; never its environment or connection key."""
        return await self._do(calls.manifest_summary(snapshot_id))

    async def snapshot_variables(self, snapshot_id: str) -> SnapshotVariables:
        """What the variables of a snapshot's kernel were."""
        return await self._do(calls.snapshot_variables(snapshot_id))

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Remove a snapshot, which `undelete` can undo for a while; raises SnapshotInUse when a suspended kernel needs it."""
        await self._do(calls.delete_snapshot(snapshot_id))

    async def undelete(self, snapshot_id: str) -> Snapshot:
        """List a snapshot again; raises SnapshotNotFound when it is too late."""
        return await self._do(calls.undelete(snapshot_id))

    async def annotate(
        self,
        snapshot_id: str,
        *,
        title: str | None = None,
        note: str | None = None,
        pinned: bool | None = None,
    ) -> Snapshot:
        """Change what is given of a snapshot."""
        request = AnnotateRequest(title, note, pinned)
        return await self._do(calls.annotate(snapshot_id, request))

    async def verify(self, snapshot_id: str) -> Verification:
        """Read a snapshot and compare all of it with its digests; damage is part of the answer."""
        return await self._do(calls.verify(snapshot_id))

    async def store(self) -> StoreUsage:
        """What the snapshots take."""
        return await self._do(calls.store())

    async def prune(self, policy: RetentionPolicy, *, dry_run: bool = False) -> PruneReport:
        """Remove the snapshots that `policy` does not keep, or only say which those are."""
        return await self._do(calls.prune(policy, dry_run=dry_run))

    async def set_jupyter(
        self, kernel_id: str, name: str, jupyter: dict[str, Any] | None
    ) -> Kernel:
        """Replace what a door keeps with a kernel; an empty name or None leaves that part as it is."""
        return await self._do(calls.set_jupyter(kernel_id, name, jupyter))

    async def claim(self, owner_id: str) -> list[SuspendedKernel]:
        """Take over the kernels of dead servers that belong to this owner."""
        return await self._do(calls.claim(owner_id))

    async def claimable(self, owner_id: str) -> list[Kernel]:
        """The kernels that this owner could claim if their servers had ended."""
        return await self._do(calls.claimable(owner_id))

    async def leave(self, owner_id: str) -> None:
        """Let the next server claim this owner's kernels, though its process goes on for a while."""
        await self._do(calls.leave(owner_id))

    async def wait(self, operation_id: str) -> Result:
        """Wait until an operation is over; what it did, or its error raised as its own class."""
        seconds = calls.LONG_POLL_SECONDS
        while not calls.is_over(operation := await self.operation(operation_id, seconds)):
            pass
        return calls.result_of(operation)

    async def follow(self, operation_id: str) -> AsyncIterator[Operation]:
        """An operation at every change, the last one when it is over."""
        async for operation in self._lines(calls.follow(operation_id)):
            yield operation

    @asynccontextmanager
    async def export(self, snapshot_id: str) -> AsyncGenerator[tuple[int, AsyncIterator[bytes]]]:
        """An archive of a snapshot: its length in bytes, and what is in it. Raises ObjectCorrupt when it is cut off."""
        call = calls.export(snapshot_id)
        with calls.transport_errors():
            async with self._http.stream(**call.arguments) as response:
                if response.is_error:
                    call.parse(response.status_code, await response.aread())
                with calls.export_errors(snapshot_id):
                    yield int(response.headers["Content-Length"]), response.aiter_bytes()

    async def import_archive(self, pieces: AsyncIterator[bytes]) -> list[Snapshot]:
        """Bring in the snapshots of an archive. Raises ArchiveInvalid, SnapshotExists; the store is then as it was."""
        call = calls.import_archive()
        await asyncio.to_thread(starting.ensure, self._target)  # an archive cannot be sent twice
        with calls.transport_errors():
            response = await self._http.request(**{**call.arguments, "content": pieces})
        return call.parse(response.status_code, response.content)

    async def events(
        self, owner: Owner, on_loss: OnLoss = lambda error: None
    ) -> AsyncGenerator[Event]:
        """Keep an owner's connection open for as long as this is iterated; opened again, after `on_loss`, when it is lost.

        After each (re)connect comes one event for each kernel of the owner, then an empty one, then changes. Raises only
        when the first connection fails.
        """
        backoff, connected = Backoff(), False
        while True:
            try:
                await asyncio.to_thread(starting.ensure, self._target)
                async with aclosing(self._lines(calls.events(owner))) as events:
                    async for event in events:
                        connected = True
                        backoff.succeeded()
                        yield event
                loss: GpuCkptError = DaemonUnavailable("gpuckptd ended the connection.")
            except GpuCkptError as error:
                loss = error
            if not connected:
                raise loss
            on_loss(loss)
            await asyncio.sleep(backoff.seconds())

    async def _lines(self, call: Call[_Reply]) -> AsyncGenerator[_Reply]:
        with calls.transport_errors():
            async with self._http.stream(**call.arguments) as response:
                if response.is_error:
                    call.parse(response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    yield call.parse(response.status_code, line.encode())

    async def _do(self, call: Call[_Reply]) -> _Reply:
        with calls.transport_errors():
            try:
                response = await self._http.request(**call.arguments)
            except httpx.TransportError as error:
                if not call.may_repeat(error):
                    raise
                await asyncio.to_thread(starting.ensure, self._target)
                response = await self._http.request(**call.arguments)
        return call.parse(response.status_code, response.content)
