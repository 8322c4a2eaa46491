"""The requests to the daemon: a function for each, which returns it as a value with its route, its body and the type of its reply.

Bodies and replies are records of `protocol.py` and of the `…_records.py` modules; nothing is sent here. Clients send calls:
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

from ..errors import DaemonUnavailable, ErrorRecord, error_from
from . import decoding
from .manifest_records import LaunchSpec
from .protocol import (
    SILENCE_SECONDS,
    BranchRequest,
    ChangedRequest,
    ClaimRequest,
    EndRequest,
    Event,
    GpuRoom,
    Handshake,
    HostReport,
    Kernel,
    LaunchRequest,
    MemoryUse,
    Operation,
    Owner,
    ParkRequest,
    ResumeRequest,
    SaveRequest,
    SignalRequest,
    SuspendedKernel,
)
from .reclaim_records import NoticeRequest, NoticesReport
from .remote_listings import FetchEstimate, FetchRequest, MoveRequest, RemoteListing, RemoteState
from .restart_records import SetAsideRequest
from .snapshot_records import (
    AnnotateRequest,
    Changes,
    PruneReport,
    PruneRequest,
    RemoteUploads,
    RetentionPolicy,
    Snapshot,
    SnapshotNotebook,
    SnapshotVariables,
    StoreUsage,
    UploadRequest,
    Verification,
)

#: The timeout in seconds of requests that only read.
ANSWER_SECONDS = 30.0
#: How long the daemon may take to answer that it is alive, which needs only its event loop.
ALIVE_SECONDS = 2.0
#: The timeouts of a launch, which makes namespaces and mounts, and of a kill, which waits for the operation that it cancels.
LAUNCH_SECONDS, KILL_SECONDS = 120.0, 300.0

_Reply = TypeVar("_Reply")


@dataclass(frozen=True)
class Call(Generic[_Reply]):
    """A request whose reply is a `_Reply`, or a stream of lines, each of which is one.

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
        """Decode the reply. Raises the daemon's error as its own class, DaemonUnavailable if it cannot be decoded."""
        try:
            if status >= HTTPStatus.BAD_REQUEST:
                raise error_from(decoding.from_json(content, ErrorRecord))
            return decoding.from_json(content or b"null", self.reply)
        except msgspec.DecodeError as error:
            raise DaemonUnavailable(
                f"The daemon's answer to {self.method} {self.path} is not understood (status {status}).",
                hint="It may be of another version. Suspend its kernels (jupyter gpuckpt suspend --all); then the daemon exits by itself.",
                details=str(error),
            ) from error


def handshake() -> Call[Handshake]:
    """Return the daemon's identity, and whether kernels can run under the engine here."""
    return Call(Handshake, "GET", "/handshake")


def alive() -> Call[None]:
    """Return at once: the daemon answers requests."""
    return Call(type(None), "GET", "/alive", seconds=ALIVE_SECONDS)


def host() -> Call[HostReport]:
    """Check this machine and return the report."""
    return Call(HostReport, "GET", "/host")


def memory() -> Call[list[MemoryUse]]:
    """Return the use of this machine's memory, and below each limit of the daemon's control groups."""
    return Call(list[MemoryUse], "GET", "/memory")


def launch(owner_id: str, spec: LaunchSpec) -> Call[Kernel]:
    """Start a kernel for an owner whose connection is open."""
    request = LaunchRequest(owner_id, spec)
    return Call(Kernel, "POST", "/kernels", request, seconds=LAUNCH_SECONDS)


def kernels() -> Call[list[Kernel]]:
    """List all kernels of this place."""
    return Call(list[Kernel], "GET", "/kernels")


def kernel(kernel_id: str) -> Call[Kernel]:
    """Return one kernel."""
    return Call(Kernel, "GET", _path("kernels", kernel_id))


def kill(kernel_id: str) -> Call[None]:
    """Kill a kernel; its processes are gone when the reply comes. Its snapshots stay."""
    return Call(type(None), "DELETE", _path("kernels", kernel_id), seconds=KILL_SECONDS)


def end(kernel_id: str, after_seconds: float) -> Call[Kernel]:
    """Stop a kernel's processes, and kill it after `after_seconds` unless `undo_end` is called before."""
    request = EndRequest(after_seconds)
    return Call(Kernel, "PUT", _path("kernels", kernel_id, "end"), request, seconds=KILL_SECONDS)


def undo_end(kernel_id: str) -> Call[Kernel]:
    """Undo `end`: let the kernel run on."""
    return Call(Kernel, "DELETE", _path("kernels", kernel_id, "end"))


def set_aside(kernel_id: str, request: SetAsideRequest) -> Call[None]:
    """Keep a kernel's process, stopped, until it is saved, and forget the kernel, so that a new one can be launched on its ports."""
    path = _path("kernels", kernel_id, "former")
    return Call(type(None), "PUT", path, request, seconds=KILL_SECONDS)


def undo_restart(kernel_id: str) -> Call[Kernel]:
    """Let the process that was set aside run on in place of the kernel of its id, which is killed."""
    path = _path("kernels", kernel_id, "former")
    return Call(Kernel, "DELETE", path, seconds=KILL_SECONDS)


def signal(kernel_id: str, signum: int) -> Call[None]:
    """Send a signal to a kernel's process group; during an operation it is delivered after it."""
    return Call(type(None), "POST", _path("kernels", kernel_id, "signal"), SignalRequest(signum))


def save(kernel_id: str, request: SaveRequest | None = None) -> Call[Operation]:
    """Start taking a snapshot; the kernel runs on."""
    return Call(Operation, "POST", _path("kernels", kernel_id, "save"), request or SaveRequest())


def suspend(kernel_id: str, request: SaveRequest | None = None) -> Call[Operation]:
    """Start taking a snapshot, after which the process ends."""
    return Call(Operation, "POST", _path("kernels", kernel_id, "suspend"), request or SaveRequest())


def resume(
    kernel_id: str, snapshot_id: str = "", *, take_over: bool = False, force: bool = False
) -> Call[Operation]:
    """Start resuming a kernel from a snapshot, by default its latest, on GPUs that the caller's environment allows.

    `take_over`: even if another machine runs its session. `force`: although its files changed (`FilesChanged`).
    """
    request = ResumeRequest(snapshot_id, _visible_gpus(), take_over, force)
    return Call(Operation, "POST", _path("kernels", kernel_id, "resume"), request)


def branch(request: BranchRequest) -> Call[Kernel]:
    """Create a new suspended kernel from a snapshot of another one; `resume` starts it beside that one."""
    return Call(Kernel, "POST", "/branches", request)


def launch_spec(snapshot_id: str) -> Call[LaunchSpec]:
    """Return the launch spec of a snapshot's kernel. It has environment and connection key, so never pass it on."""
    return Call(LaunchSpec, "GET", _path("snapshots", snapshot_id, "launch"))


def changes(snapshot_id: str) -> Call[Changes]:
    """Return the kernel's open files that have changed since a snapshot, and the obstacles to a resume here."""
    return Call(Changes, "GET", _path("snapshots", snapshot_id, "changes"))


def park(kernel_id: str, *, peer_access_off: bool = False) -> Call[Operation]:
    """Start moving a kernel's GPU memory into RAM; `resume` moves it back."""
    return Call(
        Operation, "POST", _path("kernels", kernel_id, "park"), ParkRequest(peer_access_off)
    )


def move(kernel_id: str, remote: str = "") -> Call[Operation]:
    """Start uploading a suspended kernel's snapshot to a remote, by default the only one, and releasing its session there."""
    return Call(Operation, "POST", _path("kernels", kernel_id, "move"), MoveRequest(remote))


def changed(kernel_id: str, at: float) -> Call[Kernel]:
    """Note when a kernel changed for the first time after its last snapshot, in seconds since the epoch."""
    return Call(Kernel, "PUT", _path("kernels", kernel_id, "changed"), ChangedRequest(at))


def forget_taken_over(kernel_id: str) -> Call[Kernel]:
    """Note that a user has chosen where to save the notebook of a kernel whose session another machine has taken over."""
    return Call(Kernel, "DELETE", _path("kernels", kernel_id, "taken_over"))


def gpu_room(kernel_id: str, snapshot_id: str = "") -> Call[GpuRoom]:
    """Return the GPU memory that a resume or unpark needs, and the free memory."""
    params = {"snapshot_id": snapshot_id, "visible_gpus": _visible_gpus()}
    return Call(GpuRoom, "GET", _path("kernels", kernel_id, "gpu_room"), params=params)


def set_jupyter(kernel_id: str, name: str, jupyter: dict[str, Any] | None) -> Call[Kernel]:
    """Replace the name and Jupyter's description of a kernel; an empty name or None leaves that part unchanged."""
    return Call(Kernel, "PUT", _path("kernels", kernel_id, "jupyter"), SaveRequest(name, jupyter))


def operation(operation_id: str) -> Call[Operation]:
    """Return an operation's record."""
    return Call(Operation, "GET", _path("operations", operation_id))


def operation_events(operation_id: str) -> Call[Event]:
    """Stream the events of one operation, until it is over."""
    path = _path("operations", operation_id, "events")
    return Call(Event, "GET", path, seconds=SILENCE_SECONDS)


def cancel(operation_id: str) -> Call[Operation]:
    """Ask an operation to stop and undo its work."""
    return Call(Operation, "POST", _path("operations", operation_id, "cancel"))


def snapshots(
    kernel_id: str | None = None, *, path: str = "", deleted: bool = False
) -> Call[list[Snapshot]]:
    """List snapshots, newest first: all, or those of a kernel or a notebook; with `deleted` those that can be undeleted."""
    asked = {"kernel_id": kernel_id or "", "path": path, "deleted": "1" if deleted else ""}
    params = {name: value for name, value in asked.items() if value}
    return Call(list[Snapshot], "GET", "/snapshots", params=params)


def manifest_summary(snapshot_id: str) -> Call[dict[str, Any]]:
    """Return the contents of a snapshot, without its environment and connection key."""
    return Call(dict[str, Any], "GET", _path("snapshots", snapshot_id))


def snapshot_variables(snapshot_id: str) -> Call[SnapshotVariables]:
    """Return the variables of a snapshot's kernel."""
    return Call(SnapshotVariables, "GET", _path("snapshots", snapshot_id, "variables"))


def snapshot_notebook(snapshot_id: str) -> Call[SnapshotNotebook]:
    """Return the notebook in a snapshot. It is not validated: the caller must do that."""
    return Call(SnapshotNotebook, "GET", _path("snapshots", snapshot_id, "notebook"))


def delete_snapshot(snapshot_id: str, *, here_only: bool = False) -> Call[None]:
    """Delete a snapshot, which `undelete` can undo for a while; SnapshotInUse if a suspended kernel needs it.

    `here_only`: the deletion is not sent to remotes, because no user requested it.
    """
    path, params = _path("snapshots", snapshot_id), {"here_only": "1"} if here_only else {}
    return Call(type(None), "DELETE", path, params=params, seconds=KILL_SECONDS)


def annotate(
    snapshot_id: str,
    *,
    title: str | None = None,
    note: str | None = None,
    pinned: bool | None = None,
) -> Call[Snapshot]:
    """Change those of a snapshot's title, note and pin that are given."""
    request = AnnotateRequest(title, note, pinned)
    return Call(Snapshot, "PATCH", _path("snapshots", snapshot_id), request)


def undelete(snapshot_id: str) -> Call[Snapshot]:
    """Undo the deletion of a snapshot; SnapshotNotFound if it is too late."""
    return Call(Snapshot, "POST", _path("snapshots", snapshot_id, "undelete"))


def verify(snapshot_id: str) -> Call[Verification]:
    """Read all of a snapshot and compare it with its digests. Damage is part of the reply."""
    return Call(Verification, "POST", _path("snapshots", snapshot_id, "verify"), seconds=None)


def export(snapshot_id: str) -> Call[bytes]:
    """Stream the archive of a snapshot, as bytes."""
    return Call(bytes, "GET", _path("snapshots", snapshot_id, "export"), seconds=None)


def import_archive(pieces: Iterable[bytes] | AsyncIterable[bytes]) -> Call[list[Snapshot]]:
    """Import the snapshots of an archive; after ArchiveInvalid or SnapshotExists the store is unchanged."""
    return Call(list[Snapshot], "POST", "/snapshots/import", seconds=None, content=pieces)


def remotes() -> Call[list[RemoteState]]:
    """List the remotes, without a request to any of them."""
    return Call(list[RemoteState], "GET", "/remotes")


def remote_sessions(remote: str) -> Call[RemoteListing]:
    """List the snapshots in a remote, by session."""
    return Call(RemoteListing, "GET", _path("remotes", remote, "sessions"), seconds=KILL_SECONDS)


def fetch_estimate(remote: str, snapshot_id: str, session_id: str = "") -> Call[FetchEstimate]:
    """Return the size of a fetch, and the obstacles to resuming the kernel here."""
    path, params = _path("remotes", remote, "snapshots", snapshot_id), {"session_id": session_id}
    return Call(FetchEstimate, "GET", path, params=params, seconds=KILL_SECONDS)


def fetch(remote: str, snapshot_id: str, request: FetchRequest | None = None) -> Call[Operation]:
    """Start fetching a snapshot from a remote into the local store; the reply comes after it was found there."""
    path = _path("remotes", remote, "snapshots", snapshot_id, "fetch")
    return Call(Operation, "POST", path, request or FetchRequest(), seconds=KILL_SECONDS)


def store() -> Call[StoreUsage]:
    """Return the disk use of the snapshots. The first request reads all manifests."""
    return Call(StoreUsage, "GET", "/store", seconds=KILL_SECONDS)


def uploads() -> Call[list[RemoteUploads]]:
    """Return the state of uploads to every remote."""
    return Call(list[RemoteUploads], "GET", "/uploads")


def upload(remote: str, snapshot_ids: list[str]) -> Call[None]:
    """Queue snapshots for upload before all others; the list of snapshots shows their progress."""
    return Call(type(None), "POST", "/uploads", UploadRequest(remote, snapshot_ids))


def prune(policy: RetentionPolicy, *, dry_run: bool = False) -> Call[PruneReport]:
    """Remove the snapshots that `policy` does not keep, or with `dry_run` only list them."""
    request = PruneRequest(policy, dry_run)
    return Call(PruneReport, "POST", "/snapshots/prune", request, seconds=KILL_SECONDS)


def notices() -> Call[NoticesReport]:
    """Return the standing notices that this machine goes, and the kernels that are not safe yet."""
    return Call(NoticesReport, "GET", "/notices")


def give_notice(request: NoticeRequest) -> Call[NoticesReport]:
    """Tell the daemon that this machine goes, or that it stays after all."""
    return Call(NoticesReport, "POST", "/notices", request)


def claim(owner_id: str) -> Call[list[SuspendedKernel]]:
    """Take over the kernels of ended servers that belong to this owner."""
    return Call(list[SuspendedKernel], "POST", _path("owners", owner_id, "claim"), ClaimRequest())


def claimable(owner_id: str) -> Call[list[Kernel]]:
    """List the kernels that this owner could claim if their servers had ended."""
    return Call(list[Kernel], "GET", _path("owners", owner_id, "claim"))


def leave(owner_id: str) -> Call[None]:
    """Let the next server claim this owner's kernels although its process may still run."""
    return Call(type(None), "DELETE", _path("owners", owner_id))


def owner_events(owner: Owner) -> Call[Event]:
    """Stream the events of an owner's kernels while the connection is open."""
    return Call(Event, "POST", "/owners", owner, seconds=SILENCE_SECONDS)


def _path(*segments: str) -> str:
    """Return the path of these segments, each quoted so that it remains one segment."""
    quoted = [quote(segment, safe="") for segment in segments]
    # A segment that consists of dots would be interpreted as a relative path.
    return "".join(f"/{one if one.strip('.') else one.replace('.', '%2E')}" for one in quoted)


def _visible_gpus() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")
