"""Every request a client can make and what its answer means, without any input or output: both clients send these."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from .. import decoding
from ..errors import DaemonUnavailable, ErrorRecord, ObjectCorrupt, error_from
from ..model import LaunchSpec, RetentionPolicy
from ..protocol import (
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
    OperationState,
    Owner,
    ParkRequest,
    PruneReport,
    PruneRequest,
    Result,
    ResumeRequest,
    SaveRequest,
    SignalRequest,
    SuspendedKernel,
)
from ..snapshot_records import (
    AnnotateRequest,
    Snapshot,
    SnapshotVariables,
    StoreUsage,
    Verification,
)

#: What HTTP wants before a path. The host means nothing; proxies of the environment must not be asked for it.
ANYWHERE: dict[str, Any] = {"base_url": "http://gpuckptd", "trust_env": False}

#: Seconds until a connection stands: the socket is on this machine.
CONNECT_SECONDS = 5.0
#: Seconds until an answer comes, for requests that only look.
ANSWER_SECONDS = 30.0
#: A launch makes namespaces and mounts; a kill waits for the operation that it cancels.
LAUNCH_SECONDS, KILL_SECONDS = 120.0, 300.0
#: The daemon breaks the silence of an owner's stream every 10 s; one that is silent for longer hangs.
SILENCE_SECONDS = 30.0
#: How long one question of `wait` stays open.
LONG_POLL_SECONDS = 25.0

_Reply = TypeVar("_Reply")


class UnixTransport(httpx.HTTPTransport):
    """HTTP over a unix socket.

    It tries the socket before each request: httpx leaves one that could not connect to the garbage collector, which says so
    in every program that shows warnings. (asyncio, below the asynchronous transport, closes it.)
    """

    def __init__(self, path: Path) -> None:
        super().__init__(uds=str(path), verify=False)
        self._path = str(path)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send it; raises ConnectError if nobody listens."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(self._path)
            except OSError as error:
                raise httpx.ConnectError(str(error), request=request) from error
        return super().handle_request(request)


@dataclass(frozen=True)
class Call(Generic[_Reply]):
    """A request whose answer is a `_Reply`, or a stream of lines that each are one. `seconds` None: no deadline."""

    reply: type[_Reply]
    method: str
    path: str
    body: msgspec.Struct | None = None
    params: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = ANSWER_SECONDS

    @property
    def arguments(self) -> dict[str, Any]:
        """For `httpx.Client.request` and its like."""
        return {
            "method": self.method,
            "url": self.path,
            "params": self.params,
            "content": b"" if self.body is None else msgspec.json.encode(self.body),
            "timeout": httpx.Timeout(self.seconds, connect=CONNECT_SECONDS),
        }

    def may_repeat(self, error: httpx.TransportError) -> bool:
        """Whether it can be sent again after `error`: nobody was there, or it only looks and the daemon ended meanwhile."""
        if isinstance(error, httpx.ConnectError):
            return True
        return self.method == "GET" and isinstance(error, httpx.NetworkError | httpx.ProtocolError)

    def parse(self, status: int, content: bytes) -> _Reply:
        """The answer; an error is raised as its own class."""
        try:
            if status >= httpx.codes.BAD_REQUEST:
                raise error_from(decoding.from_json(content, ErrorRecord))
            return decoding.from_json(content or b"null", self.reply)
        except msgspec.DecodeError as error:
            raise DaemonUnavailable(
                f"The daemon's answer to {self.method} {self.path} is not understood (status {status}).",
                hint="It may be of another version: end its kernels, then it leaves by itself.",
                details=str(error),
            ) from error


@contextmanager
def transport_errors() -> Iterator[None]:
    """What goes wrong between client and daemon, as DaemonUnavailable."""
    try:
        yield
    except httpx.TransportError as error:
        raise DaemonUnavailable(
            "The connection to gpuckptd was lost.",
            hint="Try again; the daemon is started when it is not there. Its log says what happened.",
            details=f"{type(error).__name__}: {error}",
        ) from error


@contextmanager
def export_errors(snapshot_id: str) -> Iterator[None]:
    """What goes wrong once the bytes of an export flow: the daemon cannot say it any more."""
    try:
        yield
    except httpx.TransportError as error:
        raise ObjectCorrupt(
            f"The export of snapshot {snapshot_id} was cut off.",
            hint=f"`jupyter gpuckpt verify {snapshot_id}` says whether the snapshot is damaged; the daemon's log has the reason.",
            details=f"{type(error).__name__}: {error}",
        ) from error


def result_of(operation: Operation) -> Result:
    """What an operation that is over did; its error is raised as its own class."""
    if operation.error:
        raise error_from(operation.error)
    if operation.result is None:
        raise DaemonUnavailable(f"Operation {operation.operation_id} has no result.")
    return operation.result


def is_over(operation: Operation) -> bool:
    """Whether nothing more will happen to it."""
    return operation.state is not OperationState.RUNNING


def handshake() -> Call[Handshake]:
    """Who the daemon is."""
    return Call(Handshake, "GET", "/handshake")


def host() -> Call[HostReport]:
    """What the machine can do."""
    return Call(HostReport, "GET", "/host")


def launch(owner_id: str, spec: LaunchSpec) -> Call[Kernel]:
    """Start a kernel."""
    request = LaunchRequest(owner_id, spec)
    return Call(Kernel, "POST", "/kernels", request, seconds=LAUNCH_SECONDS)


def kernels() -> Call[list[Kernel]]:
    """All kernels."""
    return Call(list[Kernel], "GET", "/kernels")


def kernel(kernel_id: str) -> Call[Kernel]:
    """One kernel."""
    return Call(Kernel, "GET", _path("kernels", kernel_id))


def kill(kernel_id: str) -> Call[None]:
    """End a kernel."""
    return Call(type(None), "DELETE", _path("kernels", kernel_id), seconds=KILL_SECONDS)


def end(kernel_id: str, after_seconds: float) -> Call[Kernel]:
    """Shut a kernel down so that it can be undone."""
    request = EndRequest(after_seconds)
    return Call(Kernel, "PUT", _path("kernels", kernel_id, "end"), request, seconds=KILL_SECONDS)


def undo_end(kernel_id: str) -> Call[Kernel]:
    """Undo that."""
    return Call(Kernel, "DELETE", _path("kernels", kernel_id, "end"))


def signal(kernel_id: str, signum: int) -> Call[None]:
    """Send a signal to a kernel's process group."""
    return Call(type(None), "POST", _path("kernels", kernel_id, "signal"), SignalRequest(signum))


def save(kernel_id: str, request: SaveRequest | None = None) -> Call[Operation]:
    """Take a snapshot."""
    return Call(Operation, "POST", _path("kernels", kernel_id, "save"), request or SaveRequest())


def suspend(kernel_id: str, request: SaveRequest | None = None) -> Call[Operation]:
    """Take a snapshot and end the process."""
    return Call(Operation, "POST", _path("kernels", kernel_id, "suspend"), request or SaveRequest())


def resume(kernel_id: str, snapshot_id: str) -> Call[Operation]:
    """Bring a kernel back, on GPUs that the caller's environment allows."""
    request = ResumeRequest(snapshot_id, _visible_gpus())
    return Call(Operation, "POST", _path("kernels", kernel_id, "resume"), request)


def branch(request: BranchRequest) -> Call[Kernel]:
    """Make a kernel from a snapshot."""
    return Call(Kernel, "POST", "/branches", request)


def launch_spec(snapshot_id: str) -> Call[LaunchSpec]:
    """How the kernel of a snapshot was started."""
    return Call(LaunchSpec, "GET", _path("snapshots", snapshot_id, "launch"))


def changes(snapshot_id: str) -> Call[Changes]:
    """What differs since a snapshot."""
    return Call(Changes, "GET", _path("snapshots", snapshot_id, "changes"))


def park(kernel_id: str, request: ParkRequest) -> Call[Operation]:
    """Move a kernel's GPU memory into RAM."""
    return Call(Operation, "POST", _path("kernels", kernel_id, "park"), request)


def gpu_room(kernel_id: str, snapshot_id: str) -> Call[GpuRoom]:
    """What a resume needs on the GPU, and what is free."""
    params = {"snapshot_id": snapshot_id, "visible_gpus": _visible_gpus()}
    return Call(GpuRoom, "GET", _path("kernels", kernel_id, "gpu_room"), params=params)


def set_jupyter(kernel_id: str, name: str, jupyter: dict[str, Any] | None) -> Call[Kernel]:
    """Replace what the door keeps with a kernel."""
    return Call(Kernel, "PUT", _path("kernels", kernel_id, "jupyter"), SaveRequest(name, jupyter))


def operation(operation_id: str, wait: float) -> Call[Operation]:
    """One operation, at the latest after `wait` seconds."""
    path, params = _path("operations", operation_id), {"wait": wait} if wait else {}
    return Call(Operation, "GET", path, params=params, seconds=ANSWER_SECONDS + wait)


def follow(operation_id: str) -> Call[Operation]:
    """A stream of lines. No deadline: a stage may be silent, and a daemon that ends closes the connection."""
    return Call(Operation, "GET", _path("operations", operation_id, "progress"), seconds=None)


def cancel(operation_id: str) -> Call[Operation]:
    """Ask an operation to stop."""
    return Call(Operation, "POST", _path("operations", operation_id, "cancel"))


def snapshots(
    kernel_id: str | None = None, *, path: str = "", deleted: bool = False
) -> Call[list[Snapshot]]:
    """All snapshots, or a kernel's, or a notebook's; with `deleted` those whose deletion can be undone."""
    asked = {"kernel_id": kernel_id or "", "path": path, "deleted": "1" if deleted else ""}
    params = {name: value for name, value in asked.items() if value}
    return Call(list[Snapshot], "GET", "/snapshots", params=params)


def manifest_summary(snapshot_id: str) -> Call[dict[str, Any]]:
    """What is in a snapshot."""
    return Call(dict[str, Any], "GET", _path("snapshots", snapshot_id))


def snapshot_variables(snapshot_id: str) -> Call[SnapshotVariables]:
    """The variables of a snapshot."""
    return Call(SnapshotVariables, "GET", _path("snapshots", snapshot_id, "variables"))


def delete_snapshot(snapshot_id: str) -> Call[None]:
    """Remove a snapshot. Sweeping a large store takes a while."""
    return Call(type(None), "DELETE", _path("snapshots", snapshot_id), seconds=KILL_SECONDS)


def annotate(snapshot_id: str, request: AnnotateRequest) -> Call[Snapshot]:
    """Change a snapshot's title, note or pin."""
    return Call(Snapshot, "PATCH", _path("snapshots", snapshot_id), request)


def undelete(snapshot_id: str) -> Call[Snapshot]:
    """Undo the deletion of a snapshot."""
    return Call(Snapshot, "POST", _path("snapshots", snapshot_id, "undelete"))


def verify(snapshot_id: str) -> Call[Verification]:
    """Read all of a snapshot. No deadline: it may be as large as a disk."""
    return Call(Verification, "POST", _path("snapshots", snapshot_id, "verify"), seconds=None)


def export(snapshot_id: str) -> Call[bytes]:
    """A stream of bytes."""
    return Call(bytes, "GET", _path("snapshots", snapshot_id, "export"), seconds=None)


def import_archive() -> Call[list[Snapshot]]:
    """Sent with a stream of bytes as its body."""
    return Call(list[Snapshot], "POST", "/snapshots/import", seconds=None)


def store() -> Call[StoreUsage]:
    """What the snapshots take. The first time all manifests are read."""
    return Call(StoreUsage, "GET", "/store", seconds=KILL_SECONDS)


def prune(policy: RetentionPolicy, *, dry_run: bool) -> Call[PruneReport]:
    """Remove what is not kept. Like a deletion it may take a while."""
    request = PruneRequest(policy, dry_run)
    return Call(PruneReport, "POST", "/snapshots/prune", request, seconds=KILL_SECONDS)


def claim(owner_id: str) -> Call[list[SuspendedKernel]]:
    """Take over the kernels of dead servers."""
    return Call(list[SuspendedKernel], "POST", _path("owners", owner_id, "claim"), ClaimRequest())


def claimable(owner_id: str) -> Call[list[Kernel]]:
    """What other servers keep from this owner."""
    return Call(list[Kernel], "GET", _path("owners", owner_id, "claim"))


def leave(owner_id: str) -> Call[None]:
    """Let go of an owner's kernels."""
    return Call(type(None), "DELETE", _path("owners", owner_id))


def events(owner: Owner) -> Call[Event]:
    """A stream of lines."""
    return Call(Event, "POST", "/owners", owner, seconds=SILENCE_SECONDS)


def _path(*segments: str) -> str:
    """Return the path of these segments, each of which stays one, whatever is in it."""
    quoted = [quote(segment, safe="") for segment in segments]
    # What consists of dots only would be taken for a step.
    return "".join(f"/{one if one.strip('.') else one.replace('.', '%2E')}" for one in quoted)


def _visible_gpus() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")
