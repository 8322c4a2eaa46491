"""The client for callers without an event loop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import httpx

from ..daemon_settings import Settings
from ..model import LaunchSpec, RetentionPolicy
from ..protocol import (
    BranchRequest,
    Changes,
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
from .holding import Hold, OnEvent, OnLoss
from .starting import Target

_Reply = TypeVar("_Reply")


class Client:
    """Speaks to the daemon of this place. Thread-safe; usable in a child after a fork.

    Every method raises the daemon's errors as their own classes, and DaemonUnavailable when it cannot be reached. A daemon
    that is not there is started (`start`), also when it went away since the last call.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._pid, self._opened = 0, self._open()

    @classmethod
    def connect(cls, settings: Settings | None = None, *, start: bool = True) -> Self:
        """A client whose daemon runs; settings default to the environment's and matter only to a daemon that is started."""
        target = starting.target(settings, start=start)
        starting.ensure(target)
        return cls(target)

    def close(self) -> None:
        """Close the connections."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def handshake(self) -> Handshake:
        """Who the daemon is, and whether kernels can run under the engine here."""
        return starting.accepted(self._do(calls.handshake()), self._target.place)

    def host(self) -> HostReport:
        """What this machine can do, looked at now."""
        return self._do(calls.host())

    def launch(self, owner_id: str, spec: LaunchSpec) -> Kernel:
        """Start a kernel for an owner whose connection is held."""
        return self._do(calls.launch(owner_id, spec))

    def kernels(self) -> list[Kernel]:
        """All kernels of this place."""
        return self._do(calls.kernels())

    def kernel(self, kernel_id: str) -> Kernel:
        """One kernel."""
        return self._do(calls.kernel(kernel_id))

    def kill(self, kernel_id: str) -> None:
        """End a kernel; on return its processes are gone. Its snapshots stay."""
        self._do(calls.kill(kernel_id))

    def end(self, kernel_id: str, after_seconds: float) -> Kernel:
        """Make a kernel stand still and kill it after that time, unless `undo_end` is called before."""
        return self._do(calls.end(kernel_id, after_seconds))

    def undo_end(self, kernel_id: str) -> Kernel:
        """Let a kernel live on that was to end."""
        return self._do(calls.undo_end(kernel_id))

    def signal(self, kernel_id: str, signum: int) -> None:
        """Send a signal to a kernel's process group; during an operation it is delivered after it."""
        self._do(calls.signal(kernel_id, signum))

    def save(self, kernel_id: str, request: SaveRequest | None = None) -> Operation:
        """Start taking a snapshot; the kernel goes on."""
        return self._do(calls.save(kernel_id, request))

    def suspend(self, kernel_id: str, request: SaveRequest | None = None) -> Operation:
        """Start taking a snapshot, after which the process ends."""
        return self._do(calls.suspend(kernel_id, request))

    def park(self, kernel_id: str, *, peer_access_off: bool = False) -> Operation:
        """Start moving a kernel's GPU memory into RAM; `resume` moves it back."""
        return self._do(calls.park(kernel_id, ParkRequest(peer_access_off)))

    def resume(self, kernel_id: str, snapshot_id: str = "") -> Operation:
        """Start bringing a kernel back from a snapshot, its latest if none is named."""
        return self._do(calls.resume(kernel_id, snapshot_id))

    def branch(self, request: BranchRequest) -> Kernel:
        """Make a new kernel, suspended in a snapshot of another; `resume` brings it up beside that one."""
        return self._do(calls.branch(request))

    def launch_spec(self, snapshot_id: str) -> LaunchSpec:
        """How the kernel of a snapshot was started: environment and connection key are in it, so it is never passed on."""
        return self._do(calls.launch_spec(snapshot_id))

    def changes(self, snapshot_id: str) -> Changes:
        """What differs since a snapshot was taken: files its kernel had open, and what keeps it from being resumed here."""
        return self._do(calls.changes(snapshot_id))

    def gpu_room(self, kernel_id: str, snapshot_id: str = "") -> GpuRoom:
        """The GPU memory that a resume or unpark needs, and what is free."""
        return self._do(calls.gpu_room(kernel_id, snapshot_id))

    def operation(self, operation_id: str, wait: float = 0) -> Operation:
        """One operation: when it is over, or how it stands after `wait` seconds (60 at most)."""
        return self._do(calls.operation(operation_id, wait))

    def cancel(self, operation_id: str) -> Operation:
        """Ask an operation to stop and undo what it did."""
        return self._do(calls.cancel(operation_id))

    def snapshots(
        self, kernel_id: str | None = None, *, path: str = "", deleted: bool = False
    ) -> list[Snapshot]:
        """All snapshots, newest first, or those of one kernel or notebook; with `deleted` those whose deletion can be undone."""
        return self._do(calls.snapshots(kernel_id, path=path, deleted=deleted))

    def manifest_summary(self, snapshot_id: str) -> dict[str, Any]:
        """What is in a snapshot; never its environment or connection key."""
        return self._do(calls.manifest_summary(snapshot_id))

    def snapshot_variables(self, snapshot_id: str) -> SnapshotVariables:
        """What the variables of a snapshot's kernel were."""
        return self._do(calls.snapshot_variables(snapshot_id))

    def delete_snapshot(self, snapshot_id: str) -> None:
        """Remove a snapshot, which `undelete` can undo for a while; raises SnapshotInUse when a suspended kernel needs it."""
        self._do(calls.delete_snapshot(snapshot_id))

    def undelete(self, snapshot_id: str) -> Snapshot:
        """List a snapshot again; raises SnapshotNotFound when it is too late."""
        return self._do(calls.undelete(snapshot_id))

    def annotate(
        self,
        snapshot_id: str,
        *,
        title: str | None = None,
        note: str | None = None,
        pinned: bool | None = None,
    ) -> Snapshot:
        """Change what is given of a snapshot."""
        request = AnnotateRequest(title, note, pinned)
        return self._do(calls.annotate(snapshot_id, request))

    def verify(self, snapshot_id: str) -> Verification:
        """Read a snapshot and compare all of it with its digests; damage is part of the answer."""
        return self._do(calls.verify(snapshot_id))

    def store(self) -> StoreUsage:
        """What the snapshots take."""
        return self._do(calls.store())

    def prune(self, policy: RetentionPolicy, *, dry_run: bool = False) -> PruneReport:
        """Remove the snapshots that `policy` does not keep, or only say which those are."""
        return self._do(calls.prune(policy, dry_run=dry_run))

    def set_jupyter(self, kernel_id: str, name: str, jupyter: dict[str, Any] | None) -> Kernel:
        """Replace what a door keeps with a kernel; an empty name or None leaves that part as it is."""
        return self._do(calls.set_jupyter(kernel_id, name, jupyter))

    def claim(self, owner_id: str) -> list[SuspendedKernel]:
        """Take over the kernels of dead servers that belong to this owner."""
        return self._do(calls.claim(owner_id))

    def claimable(self, owner_id: str) -> list[Kernel]:
        """The kernels that this owner could claim if their servers had ended."""
        return self._do(calls.claimable(owner_id))

    def leave(self, owner_id: str) -> None:
        """Let the next server claim this owner's kernels, though its process goes on for a while."""
        self._do(calls.leave(owner_id))

    def wait(self, operation_id: str) -> Result:
        """Wait until an operation is over; what it did, or its error raised as its own class."""
        while not calls.is_over(operation := self.operation(operation_id, calls.LONG_POLL_SECONDS)):
            pass
        return calls.result_of(operation)

    def follow(self, operation_id: str) -> Iterator[Operation]:
        """An operation at every change, the last one when it is over."""
        call = calls.follow(operation_id)
        with calls.transport_errors(), self._http.stream(**call.arguments) as response:
            if response.is_error:
                call.parse(response.status_code, response.read())
            for line in response.iter_lines():
                yield call.parse(response.status_code, line.encode())

    @contextmanager
    def export(self, snapshot_id: str) -> Iterator[tuple[int, Iterator[bytes]]]:
        """An archive of a snapshot: its length in bytes, and what is in it. Raises ObjectCorrupt when it is cut off."""
        call = calls.export(snapshot_id)
        with calls.transport_errors(), self._http.stream(**call.arguments) as response:
            if response.is_error:
                call.parse(response.status_code, response.read())
            with calls.export_errors(snapshot_id):
                yield int(response.headers["Content-Length"]), response.iter_bytes()

    def import_archive(self, pieces: Iterator[bytes]) -> list[Snapshot]:
        """Bring in the snapshots of an archive. Raises ArchiveInvalid, SnapshotExists; the store is then as it was."""
        call = calls.import_archive()
        starting.ensure(self._target)  # an archive cannot be sent twice
        with calls.transport_errors():
            response = self._http.request(**{**call.arguments, "content": pieces})
        return call.parse(response.status_code, response.content)

    def hold(self, owner: Owner, on_event: OnEvent, on_loss: OnLoss = lambda error: None) -> Hold:
        """Keep an owner's connection open from a thread, until the answer is closed; returns when the daemon knows the owner."""
        return Hold(self._target, owner, on_event, on_loss).open()

    @property
    def _http(self) -> httpx.Client:
        if (
            self._pid != os.getpid()
        ):  # connections must not be shared with the process that forked us
            self._opened = self._open()
        return self._opened

    def _open(self) -> httpx.Client:
        self._pid = os.getpid()
        transport = calls.UnixTransport(self._target.socket)
        return httpx.Client(transport=transport, **calls.ANYWHERE)

    def _do(self, call: Call[_Reply]) -> _Reply:
        with calls.transport_errors():
            try:
                response = self._http.request(**call.arguments)
            except httpx.TransportError as error:
                if not call.may_repeat(error):
                    raise
                starting.ensure(self._target)
                response = self._http.request(**call.arguments)
        return call.parse(response.status_code, response.content)
