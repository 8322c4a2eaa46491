"""Every request that the daemon answers, as a value: its route, its record and the type of its reply. The client sends them.

`send(calls.save(kernel_id))` sends one, `stream(calls.owner_events(owner))` reads one that is answered by lines of JSON.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from . import decoding
from .errors import DaemonUnavailable, ErrorRecord, error_from
from .far_records import FarListing, FetchEstimate, FetchRequest, RemoteState
from .model import LaunchSpec, RetentionPolicy
from .protocol import (
    SILENCE_SECONDS,
    BranchRequest,
    Changes,
    ClaimRequest,
    EndRequest,
    Event,
    GpuRoom,
    Handshake,
    HostReport,
    Kernel,
    LaunchRequest,
    Operation,
    Owner,
    ParkRequest,
    PruneReport,
    PruneRequest,
    ResumeRequest,
    SaveRequest,
    SignalRequest,
    SuspendedKernel,
)
from .snapshot_records import (
    AnnotateRequest,
    RemoteUploads,
    Snapshot,
    SnapshotVariables,
    StoreUsage,
    UploadRequest,
    Verification,
)

#: Seconds until an answer comes, for requests that only look.
ANSWER_SECONDS = 30.0
#: A launch makes namespaces and mounts; a kill waits for the operation that it cancels.
LAUNCH_SECONDS, KILL_SECONDS = 120.0, 300.0

_Reply = TypeVar("_Reply")


@dataclass(frozen=True)
class Call(Generic[_Reply]):
    """A request whose answer is a `_Reply`, or a stream of lines that each are one.

    `content` is sent instead of a record: of an AsyncIterable by `AsyncClient` only, of an Iterable by `Client` only. With
    `seconds` None the answer may take any time.
    """

    reply: type[_Reply]
    method: str
    path: str
    body: msgspec.Struct | None = None
    params: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = ANSWER_SECONDS
    content: Iterable[bytes] | AsyncIterable[bytes] | None = None

    def parse(self, status: int, content: bytes) -> _Reply:
        """Return the answer; raise the error that it holds as its own class, DaemonUnavailable if it cannot be read."""
        try:
            if status >= HTTPStatus.BAD_REQUEST:
                raise error_from(decoding.from_json(content, ErrorRecord))
            return decoding.from_json(content or b"null", self.reply)
        except msgspec.DecodeError as error:
            raise DaemonUnavailable(
                f"The daemon's answer to {self.method} {self.path} is not understood (status {status}).",
                hint="It may be of another version: end its kernels, then it leaves by itself.",
                details=str(error),
            ) from error


def handshake() -> Call[Handshake]:
    """Return who the daemon is, and whether kernels can run under the engine here."""
    return Call(Handshake, "GET", "/handshake")


def host() -> Call[HostReport]:
    """Return what this machine can do, checked now."""
    return Call(HostReport, "GET", "/host")


def launch(owner_id: str, spec: LaunchSpec) -> Call[Kernel]:
    """Start a kernel for an owner whose connection is held."""
    request = LaunchRequest(owner_id, spec)
    return Call(Kernel, "POST", "/kernels", request, seconds=LAUNCH_SECONDS)


def kernels() -> Call[list[Kernel]]:
    """List all kernels of this place."""
    return Call(list[Kernel], "GET", "/kernels")


def kernel(kernel_id: str) -> Call[Kernel]:
    """Return one kernel."""
    return Call(Kernel, "GET", _path("kernels", kernel_id))


def kill(kernel_id: str) -> Call[None]:
    """End a kernel; when this is answered its processes are gone. Its snapshots stay."""
    return Call(type(None), "DELETE", _path("kernels", kernel_id), seconds=KILL_SECONDS)


def end(kernel_id: str, after_seconds: float) -> Call[Kernel]:
    """Stop a kernel from running, and kill it after that time unless `undo_end` is called before."""
    request = EndRequest(after_seconds)
    return Call(Kernel, "PUT", _path("kernels", kernel_id, "end"), request, seconds=KILL_SECONDS)


def undo_end(kernel_id: str) -> Call[Kernel]:
    """Let a kernel run on that was to end."""
    return Call(Kernel, "DELETE", _path("kernels", kernel_id, "end"))


def signal(kernel_id: str, signum: int) -> Call[None]:
    """Send a signal to a kernel's process group; during an operation it is delivered after it."""
    return Call(type(None), "POST", _path("kernels", kernel_id, "signal"), SignalRequest(signum))


def save(kernel_id: str, request: SaveRequest | None = None) -> Call[Operation]:
    """Start taking a snapshot; the kernel goes on."""
    return Call(Operation, "POST", _path("kernels", kernel_id, "save"), request or SaveRequest())


def suspend(kernel_id: str, request: SaveRequest | None = None) -> Call[Operation]:
    """Start taking a snapshot, after which the process ends."""
    return Call(Operation, "POST", _path("kernels", kernel_id, "suspend"), request or SaveRequest())


def resume(kernel_id: str, snapshot_id: str = "") -> Call[Operation]:
    """Start bringing a kernel back from a snapshot, by default its latest, on GPUs that the caller's environment allows."""
    request = ResumeRequest(snapshot_id, _visible_gpus())
    return Call(Operation, "POST", _path("kernels", kernel_id, "resume"), request)


def branch(request: BranchRequest) -> Call[Kernel]:
    """Make a new kernel, suspended in a snapshot of another; `resume` brings it up beside that one."""
    return Call(Kernel, "POST", "/branches", request)


def launch_spec(snapshot_id: str) -> Call[LaunchSpec]:
    """Return how the kernel of a snapshot was started: with environment and connection key, so it is never passed on."""
    return Call(LaunchSpec, "GET", _path("snapshots", snapshot_id, "launch"))


def changes(snapshot_id: str) -> Call[Changes]:
    """Return which files that the kernel had open differ since a snapshot, and what prevents a resume here."""
    return Call(Changes, "GET", _path("snapshots", snapshot_id, "changes"))


def park(kernel_id: str, *, peer_access_off: bool = False) -> Call[Operation]:
    """Start moving a kernel's GPU memory into RAM; `resume` moves it back."""
    return Call(
        Operation, "POST", _path("kernels", kernel_id, "park"), ParkRequest(peer_access_off)
    )


def gpu_room(kernel_id: str, snapshot_id: str = "") -> Call[GpuRoom]:
    """Return the GPU memory that a resume or unpark needs, and what is free."""
    params = {"snapshot_id": snapshot_id, "visible_gpus": _visible_gpus()}
    return Call(GpuRoom, "GET", _path("kernels", kernel_id, "gpu_room"), params=params)


def set_jupyter(kernel_id: str, name: str, jupyter: dict[str, Any] | None) -> Call[Kernel]:
    """Replace what Jupyter keeps with a kernel; an empty name or None leaves that part as it is."""
    return Call(Kernel, "PUT", _path("kernels", kernel_id, "jupyter"), SaveRequest(name, jupyter))


def operation(operation_id: str) -> Call[Operation]:
    """Return how an operation stands."""
    return Call(Operation, "GET", _path("operations", operation_id))


def operation_events(operation_id: str) -> Call[Event]:
    """Stream the events of one operation, until it is over."""
    path = _path("operations", operation_id, "events")
    return Call(Event, "GET", path, seconds=SILENCE_SECONDS)


def cancel(operation_id: str) -> Call[Operation]:
    """Ask an operation to stop and undo what it did."""
    return Call(Operation, "POST", _path("operations", operation_id, "cancel"))


def snapshots(
    kernel_id: str | None = None, *, path: str = "", deleted: bool = False
) -> Call[list[Snapshot]]:
    """List snapshots, newest first: all, or those of a kernel or a notebook; with `deleted` those that can be undeleted."""
    asked = {"kernel_id": kernel_id or "", "path": path, "deleted": "1" if deleted else ""}
    params = {name: value for name, value in asked.items() if value}
    return Call(list[Snapshot], "GET", "/snapshots", params=params)


def manifest_summary(snapshot_id: str) -> Call[dict[str, Any]]:
    """Return what is in a snapshot, without its environment and connection key."""
    return Call(dict[str, Any], "GET", _path("snapshots", snapshot_id))


def snapshot_variables(snapshot_id: str) -> Call[SnapshotVariables]:
    """Return the variables of a snapshot's kernel."""
    return Call(SnapshotVariables, "GET", _path("snapshots", snapshot_id, "variables"))


def delete_snapshot(snapshot_id: str) -> Call[None]:
    """Remove a snapshot, which `undelete` can undo for a while; SnapshotInUse when a suspended kernel needs it."""
    return Call(type(None), "DELETE", _path("snapshots", snapshot_id), seconds=KILL_SECONDS)


def annotate(
    snapshot_id: str,
    *,
    title: str | None = None,
    note: str | None = None,
    pinned: bool | None = None,
) -> Call[Snapshot]:
    """Change a snapshot's title, note or pin, as far as they are given."""
    request = AnnotateRequest(title, note, pinned)
    return Call(Snapshot, "PATCH", _path("snapshots", snapshot_id), request)


def undelete(snapshot_id: str) -> Call[Snapshot]:
    """Undo the deletion of a snapshot; SnapshotNotFound when it is too late."""
    return Call(Snapshot, "POST", _path("snapshots", snapshot_id, "undelete"))


def verify(snapshot_id: str) -> Call[Verification]:
    """Read a snapshot and compare all of it with its digests. Damage is part of the answer."""
    return Call(Verification, "POST", _path("snapshots", snapshot_id, "verify"), seconds=None)


def export(snapshot_id: str) -> Call[bytes]:
    """Stream the archive of a snapshot, as bytes."""
    return Call(bytes, "GET", _path("snapshots", snapshot_id, "export"), seconds=None)


def import_archive(pieces: Iterable[bytes] | AsyncIterable[bytes]) -> Call[list[Snapshot]]:
    """Store the snapshots of an archive; after ArchiveInvalid or SnapshotExists the store is as before."""
    return Call(list[Snapshot], "POST", "/snapshots/import", seconds=None, content=pieces)


def remotes() -> Call[list[RemoteState]]:
    """List the remotes, without asking any."""
    return Call(list[RemoteState], "GET", "/remotes")


def far_sessions(remote: str) -> Call[FarListing]:
    """List what lies in a remote."""
    return Call(FarListing, "GET", _path("remotes", remote, "sessions"), seconds=KILL_SECONDS)


def fetch_estimate(remote: str, snapshot_id: str, session_id: str = "") -> Call[FetchEstimate]:
    """Return what a fetch would move, and what keeps the kernel from being resumed here."""
    path, params = _path("remotes", remote, "snapshots", snapshot_id), {"session_id": session_id}
    return Call(FetchEstimate, "GET", path, params=params, seconds=KILL_SECONDS)


def fetch(remote: str, snapshot_id: str, request: FetchRequest | None = None) -> Call[Operation]:
    """Start bringing a snapshot from a remote into the local store; it is looked for before this is answered."""
    path = _path("remotes", remote, "snapshots", snapshot_id, "fetch")
    return Call(Operation, "POST", path, request or FetchRequest(), seconds=KILL_SECONDS)


def store() -> Call[StoreUsage]:
    """Return what the snapshots take on the disk. The first time all manifests are read."""
    return Call(StoreUsage, "GET", "/store", seconds=KILL_SECONDS)


def uploads() -> Call[list[RemoteUploads]]:
    """Return how every remote stands."""
    return Call(list[RemoteUploads], "GET", "/uploads")


def upload(remote: str, snapshot_ids: list[str]) -> Call[None]:
    """Upload snapshots before all others; they wait in the list of snapshots until they are uploaded."""
    return Call(type(None), "POST", "/uploads", UploadRequest(remote, snapshot_ids))


def prune(policy: RetentionPolicy, *, dry_run: bool = False) -> Call[PruneReport]:
    """Remove the snapshots that `policy` does not keep, or with `dry_run` only list them."""
    request = PruneRequest(policy, dry_run)
    return Call(PruneReport, "POST", "/snapshots/prune", request, seconds=KILL_SECONDS)


def claim(owner_id: str) -> Call[list[SuspendedKernel]]:
    """Take over the kernels of servers that have ended and that belong to this owner."""
    return Call(list[SuspendedKernel], "POST", _path("owners", owner_id, "claim"), ClaimRequest())


def claimable(owner_id: str) -> Call[list[Kernel]]:
    """List the kernels that this owner could claim if their servers had ended."""
    return Call(list[Kernel], "GET", _path("owners", owner_id, "claim"))


def leave(owner_id: str) -> Call[None]:
    """Let the next server claim this owner's kernels, though its process goes on for a while."""
    return Call(type(None), "DELETE", _path("owners", owner_id))


def owner_events(owner: Owner) -> Call[Event]:
    """Stream the events of an owner's kernels for as long as the connection is open."""
    return Call(Event, "POST", "/owners", owner, seconds=SILENCE_SECONDS)


def _path(*segments: str) -> str:
    """Return the path of these segments, each of which stays one, whatever is in it."""
    quoted = [quote(segment, safe="") for segment in segments]
    # What consists of dots only would be taken for a step.
    return "".join(f"/{one if one.strip('.') else one.replace('.', '%2E')}" for one in quoted)


def _visible_gpus() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")
