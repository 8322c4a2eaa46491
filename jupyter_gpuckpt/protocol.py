"""The records that the daemon and its clients exchange: HTTP over a unix socket, JSON bodies, streams of JSON lines.

They are the contract, with the requests in `calls.py`: both ends refuse another version. Both import them from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from importlib import metadata
from typing import Annotated, Any

import msgspec

from . import errors
from .errors import ErrorRecord
from .model import Cause, LaunchSpec, RetentionPolicy, SaveOptions, Sizes, SnapshotInfo, Variables
from .progress import ProgressRecord
from .snapshot_records import SnapshotChange
from .states import KernelState

#: Clients and daemon refuse each other when this differs.
PROTOCOL_VERSION = 2
#: The daemon breaks the silence of a stream this often; a client takes one that is silent for longer for a daemon that hangs.
KEEP_ALIVE_SECONDS, SILENCE_SECONDS = 10.0, 30.0
#: How long an owner may take to come back to a daemon that was started again, and how long its requests wait for that.
RESTART_SECONDS = 15.0


class Position(msgspec.Struct, frozen=True, order=True, array_like=True):
    """How much of the daemon's history a record knows: of two records about one thing the later one counts.

    `incarnation`: which daemon of this place, a larger number for a later one. `number`: how many changes it had told.
    """

    incarnation: int = 0
    number: int = 0


def package_version() -> str:
    """Return the version of this installation; clients and daemons of different versions refuse each other."""
    try:
        return metadata.version("jupyter_gpuckpt")
    except metadata.PackageNotFoundError:  # runs from a source tree
        return "0"


class Handshake(msgspec.Struct, frozen=True):
    """GET /handshake: who the daemon is. `place` is compared with the client's own."""

    protocol: int
    version: str
    place: str
    pid: int
    #: Whether kernels can run under the engine here; if not, why and what would help.
    engine_available: bool
    reason: str = ""
    hint: str = ""
    data_dir: str = ""


class OwnerKind(StrEnum):
    """A server's kernels outlive it; a script's (papermill, nbclient, console) die with it."""

    SERVER = "server"
    SCRIPT = "script"


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose kernel it is. Held by an open connection: POST /owners answers with a stream of `Event` lines until either side goes."""

    owner_id: str
    kind: OwnerKind
    #: 0: it has let go of its kernels.
    pid: int
    start_time: float
    hub_server: str = ""
    root_dir: str = ""
    #: Where servers keep their info files (Jupyter's runtime directory); empty for a script.
    jupyter_runtime_dir: str = ""


class LaunchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /kernels."""

    owner_id: str
    spec: LaunchSpec


class Result(msgspec.Struct, frozen=True):
    """What a save, suspend or resume did."""

    snapshot_id: str
    seconds: float
    sizes: Sizes = Sizes()
    frozen_seconds: float = 0.0
    seconds_by_stage: dict[str, float] = {}
    #: Said to the user though the operation succeeded, e.g. files that changed since the snapshot.
    warnings: list[str] = []
    #: Of a resume: the ports of the user's listeners that were taken, old to new.
    moved_ports: dict[int, int] = {}


class OperationKind(StrEnum):
    """What an operation does."""

    SAVE = "save"
    SUSPEND = "suspend"
    RESUME = "resume"
    PARK = "park"
    UNPARK = "unpark"
    #: The first resume of a kernel that was made from a snapshot of another one.
    BRANCH = "branch"
    #: A snapshot of now, then a resume from an older one; done by a server, of two operations.
    ROLL_BACK = "roll_back"
    #: A snapshot comes from a remote; `kernel_id` is that of its kernel.
    FETCH = "fetch"


class OperationState(StrEnum):
    """How an operation stands."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Operation(msgspec.Struct, frozen=True):
    """POST /kernels/{id}/save|suspend|resume|park, GET /operations/{id}, and what streams tell of it."""

    operation_id: str
    kind: OperationKind
    kernel_id: str
    state: OperationState
    progress: ProgressRecord = ProgressRecord()
    result: Result | None = None
    error: ErrorRecord | None = None
    position: Position = Position()

    @property
    def is_over(self) -> bool:
        """Return whether the operation has ended."""
        return self.state is not OperationState.RUNNING

    def outcome(self) -> Result:
        """Return what an operation that is over did; raise its error as its own class."""
        if self.error:
            raise errors.error_from(self.error)
        return self.result or Result("", 0.0)


def summary(operation: Operation, seconds_by_stage: Mapping[str, float] | None = None) -> str:
    """Return the line of the logs about an operation: how it ended, size, ratio, and seconds of every stage."""
    parts = [f"{operation.kind} of kernel {operation.kernel_id} {operation.state}"]
    result = operation.result
    if result:
        sizes = result.sizes
        ratio = sizes.raw_bytes / sizes.stored_bytes if sizes.stored_bytes else 1.0
        parts.append(f"snapshot {result.snapshot_id or '-'}")
        parts.append(f"{sizes.raw_bytes / 1e6:.1f} MB raw, {sizes.new_bytes / 1e6:.1f} MB new")
        parts.append(f"ratio {ratio:.2f}, frozen {result.frozen_seconds:.3f} s")
    if operation.error:
        parts.append(f"{operation.error.code}: {operation.error.message}")
    parts.append(f"{operation.progress.seconds:.3f} s")
    stages = seconds_by_stage or (result.seconds_by_stage if result else {})
    if stages:
        parts.append(" ".join(f"{name} {spent:.3f}" for name, spent in stages.items()))
    return "; ".join(parts)


class Kernel(msgspec.Struct, frozen=True):
    """GET /kernels, GET /kernels/{id}. `pid` and `pgid` are seen from the daemon's namespace; 0 when there is no process."""

    kernel_id: str
    state: KernelState
    owner_id: str
    pid: int = 0
    init_pid: int = 0
    #: Where init writes the kernel's wait status as a decimal number when the kernel ends; absent while it lives. It changes
    #: with every launch and resume.
    exit_path: str = ""
    name: str = ""
    snapshot_id: str = ""
    #: Why the last operation failed or why the kernel was lost.
    error: ErrorRecord | None = None
    operation: Operation | None = None
    memory_bytes: int = 0
    gpu_bytes: int = 0
    #: When it is killed because its user has shut it down (seconds since the epoch); 0: not. Until then it stands still.
    ends_at: float = 0.0
    #: The snapshot of another kernel that it was made from.
    parent_snapshot_id: str = ""
    #: The ports that its last resume gave it instead of those of the snapshot, old to new.
    moved_ports: dict[int, int] = {}
    #: When it entered its state (seconds since the epoch).
    since: float = 0.0
    #: Percent of the GPU that its processes keep busy; None: it uses none, or the driver does not tell.
    gpu_utilization: int | None = None
    #: What its snapshot holds, RAM and GPU memory, while the kernel has no process.
    suspended_bytes: int = 0
    #: How long its resume may take, by earlier ones on this machine; None: it has a process, or nothing is known.
    resume_seconds: float | None = None
    position: Position = Position()


class State(msgspec.Struct, frozen=True):
    """All kernels and operations of a stream. Ended operations are among them for a while."""

    kernels: list[Kernel] = []
    operations: list[Operation] = []


class Event(msgspec.Struct, frozen=True):
    """One line of an owner's stream (POST /owners) or of an operation's (GET /operations/{id}/events), in order.

    The first one holds the full state; so does one in place of those that a slow reader has missed. Without anything but its
    position it only says that the daemon lives.
    """

    position: Position
    #: In place of everything that was told before.
    state: State | None = None
    kernel: Kernel | None = None
    #: It began, went on or ended. What its end did to the kernel has been told by then.
    operation: Operation | None = None
    #: The kernel is forgotten (killed, or ended by itself).
    gone: str = ""
    #: Of any kernel: all owners hear of it.
    snapshot: SnapshotChange | None = None


class ResumeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /kernels/{id}/resume, query of GET /kernels/{id}/gpu_room. An empty snapshot_id means the latest one.

    `visible_gpus`: CUDA_VISIBLE_DEVICES of who asks; it comes back on GPUs that this allows.
    """

    snapshot_id: str = ""
    visible_gpus: str = ""


class ParkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /kernels/{id}/park. `peer_access_off`: as in `SaveRequest`."""

    peer_access_off: bool = False


class BranchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /branches: a new kernel, suspended, whose resume brings back what `snapshot_id` holds, beside the kernel it is of.

    It listens on `own_ports` instead of on those of the snapshot's launch, in their order. `jupyter` and `name`: as in
    `SaveRequest`.
    """

    owner_id: str
    snapshot_id: str
    kernel_id: str
    own_ports: list[int]
    name: str = ""
    jupyter: dict[str, Any] = {}


class GpuRoom(msgspec.Struct, frozen=True):
    """GET /kernels/{id}/gpu_room: the GPU memory that a resume or unpark needs, and what is free where it would go."""

    needed_bytes: int = 0
    free_bytes: int = 0


class SaveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /kernels/{id}/save and /suspend: `jupyter` and `name` replace what the snapshot would carry from launch.

    An idle kernel (`cause`) is left alone if a suspend would cut its connections: nobody is waiting for it.
    """

    name: str = ""
    jupyter: dict[str, Any] | None = None
    cause: Cause = Cause.MANUAL
    #: Retention never removes the snapshot.
    pinned: bool = False
    #: What is removed when this has succeeded, of all snapshots; None: nothing.
    retention: RetentionPolicy | None = None
    #: What its user calls the snapshot.
    title: Annotated[str, msgspec.Meta(max_length=300)] = ""
    #: What the kernel's variables are; None: not known.
    variables: Variables | None = None
    #: See `SaveOptions`: without that the kernel may not use several GPUs.
    peer_access_off: bool = False

    def options(self, *, stop: bool, name: str, parked: bool) -> SaveOptions:
        """Return what the engine is asked for; `name` stands in where the request has none."""
        return SaveOptions(
            stop=stop,
            name=self.name or name,
            title=self.title,
            pinned=self.pinned,
            cause=self.cause,
            variables=self.variables,
            parked=parked,
            peer_access_off=self.peer_access_off,
        )


class EndRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PUT /kernels/{id}/end: the kernel stands still and is killed after that time, unless DELETE /kernels/{id}/end undoes it."""

    after_seconds: Annotated[float, msgspec.Meta(ge=0)]


class SignalRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /kernels/{id}/signal: to the kernel's process group (as jupyter_client does)."""

    signum: Annotated[int, msgspec.Meta(ge=0, le=64)]


class PruneRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /snapshots/prune: remove the snapshots that `policy` does not keep; `dry_run`: only say which."""

    policy: RetentionPolicy
    dry_run: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """What retention says of a snapshot: whether it goes, and why it stays or goes."""

    snapshot: SnapshotInfo
    removed: bool
    reason: str


class PruneReport(msgspec.Struct, frozen=True):
    """What was removed, or would be, newest first, and what stays. `freed_bytes`: on the disk; 0 for a dry run."""

    verdicts: list[Verdict] = []
    freed_bytes: int = 0


class ClaimRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /owners/{owner_id}/claim: take over the kernels of dead servers that belong to this owner's root_dir and hub server."""


class SuspendedKernel(msgspec.Struct, frozen=True):
    """What a claim hands over, for a server to list it again. `cause`: of its last suspend. `secrets`: as in `LaunchSpec`."""

    kernel: Kernel
    jupyter: dict[str, Any]
    cwd: str = ""
    cause: Cause = Cause.MANUAL
    secrets: dict[str, Any] = {}


class Change(StrEnum):
    """What became of a file."""

    CHANGED = "changed"
    REMOVED = "removed"
    SMALLER = "smaller"


class FileChange(msgspec.Struct, frozen=True):
    """A file that a kernel had open, then and now. `mtime`: seconds since the epoch, 0: it is gone. Lengths in bytes, None: unknown."""

    path: str
    change: Change
    mtime: float
    length_then: int | None = None
    length_now: int | None = None


class Changes(msgspec.Struct, frozen=True):
    """GET /snapshots/{id}/changes: files that differ, and what keeps it from being resumed here, a sentence each."""

    files: list[FileChange] = []
    obstacles: list[str] = []


class Check(msgspec.Struct, frozen=True):
    """One line of the doctor's report. `ok` None: does not apply here. `fix` is the one command that changes it."""

    name: str
    ok: bool | None
    message: str
    fix: str = ""
    required: bool = False


class HostReport(msgspec.Struct, frozen=True):
    """GET /host."""

    engine_available: bool
    reason: str
    hint: str
    checks: list[Check]
