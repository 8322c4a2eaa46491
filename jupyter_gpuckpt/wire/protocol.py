"""The version of the protocol between the daemon and its clients, and the records in bodies, replies and events.

HTTP over a unix socket carries them as JSON. Each side refuses another version. `calls.py` has the requests, which only clients import.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib import metadata
from typing import Annotated, Any, Literal

import msgspec

from .. import errors
from ..errors import ErrorRecord
from .manifest_records import MAX_TITLE, Cause, LaunchSpec, SaveOptions, Sizes, Variables
from .progress import ProgressRecord
from .reclaim_records import Notice
from .snapshot_records import RetentionPolicy, SnapshotChange
from .states import KernelState

#: The version of the protocol: clients and daemon refuse each other if it differs.
PROTOCOL_VERSION = 1
#: The interval of keep-alive events in a stream, and the silence after which a client assumes that the daemon hangs.
KEEP_ALIVE_SECONDS, SILENCE_SECONDS = 10.0, 30.0
#: How long an owner may take to reconnect to a restarted daemon, and how long its requests wait for that.
RESTART_SECONDS = 15.0


class Position(msgspec.Struct, frozen=True, order=True, array_like=True):
    """The position of a record in the daemon's history: of two records about one object the later one is valid.

    `incarnation`: the daemon of this place, a larger number for a later one. `number`: the number of changes that it had published.
    """

    incarnation: int = 0
    number: int = 0


@cache
def package_version() -> str:
    """Return the version of the running code, even after an upgrade; clients and daemons of different versions refuse each other."""
    return installed_version()


def installed_version() -> str:
    """Return the version that is installed now: that of programs that start from now on."""
    try:
        return metadata.version("jupyter_gpuckpt")
    except metadata.PackageNotFoundError:  # runs from a source tree
        return "0"


class Handshake(msgspec.Struct, frozen=True):
    """GET /handshake: the daemon's identity. `place` is compared with the client's own."""

    protocol: int
    version: str
    place: str
    pid: int
    #: Whether kernels can run under the engine here; `reason` and `hint`: why not, and a remedy.
    engine_available: bool
    reason: str = ""
    hint: str = ""
    data_dir: str = ""


class OwnerKind(StrEnum):
    """The kind of an owner: a server's and a batch run's kernels outlive it, a script's (papermill, console) die with it."""

    SERVER = "server"
    SCRIPT = "script"
    BATCH = "batch"


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The owner of kernels, registered while its connection is open: POST /owners answers with `Event` lines until either side ends it."""

    owner_id: str
    kind: OwnerKind
    #: The owner's process; 0: it has released its kernels.
    pid: int
    start_time: float
    hub_server: str = ""
    root_dir: str = ""
    #: Jupyter's runtime directory, in which servers keep their info files; empty for a script.
    jupyter_runtime_dir: str = ""
    #: How long after a change a server saves a kernel by itself; 0: never.
    autosave_seconds: float = 0.0


class LaunchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /kernels."""

    owner_id: str
    spec: LaunchSpec


class CopyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /copies: start a new kernel whose process is a copy of the one in a snapshot, instead of starting the program of `spec`.

    Programs in the process know nothing of `spec` until the agent tells them. `visible_gpus`: as in `ResumeRequest`. `store`: the folder
    of another store, which is only read; empty: the daemon's own. `may_be_ready`: a ready copy will do, whose ports are others than those
    of `spec`; `Kernel.moved_ports` then has them.
    """

    owner_id: str
    snapshot_id: str
    spec: LaunchSpec
    visible_gpus: str = ""
    store: str = ""
    may_be_ready: bool = False


class WantedCopies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copies of a snapshot that are to be ready. The fields are those of `CopyRequest`."""

    snapshot_id: str
    count: int
    store: str = ""
    visible_gpus: str = ""


class ReadyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PUT /owners/{owner_id}/ready: the ready copies that the owner wants, and no others."""

    wanted: list[WantedCopies]


class Result(msgspec.Struct, frozen=True):
    """The result of an operation."""

    snapshot_id: str
    seconds: float
    sizes: Sizes = Sizes()
    frozen_seconds: float = 0.0
    seconds_by_stage: dict[str, float] = {}
    #: Messages for the user of a successful operation, e.g. files that changed since the snapshot.
    warnings: list[str] = []
    #: The changed ports of the user's listeners after a resume, old to new.
    moved_ports: dict[int, int] = {}
    #: When the notebook's file that is in the new snapshot was last written, in seconds since the epoch; 0: it contains none.
    notebook_modified: float = 0.0
    #: The processor time of the daemon and its workers during a save, which includes that of other operations at the same time.
    processor_seconds: float = 0.0


class OperationKind(StrEnum):
    """The kind of an operation."""

    SAVE = "save"
    SUSPEND = "suspend"
    RESUME = "resume"
    PARK = "park"
    UNPARK = "unpark"
    #: The first resume of a kernel that was branched from a snapshot of another one.
    BRANCH = "branch"
    #: A suspend, then a resume from an older snapshot; a server's operation that consists of two.
    ROLL_BACK = "roll_back"
    #: A fetch of a snapshot from a remote; `kernel_id`: of the snapshot's kernel.
    FETCH = "fetch"
    #: An upload of a suspended kernel's snapshot and the release of its session, so that another machine can go on with it. A server's
    #: operation of this kind suspends the kernel first.
    MOVE = "move"


class OperationState(StrEnum):
    """The state of an operation."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Operation(msgspec.Struct, frozen=True):
    """An operation: the reply of POST /kernels/{id}/save|suspend|resume|park and GET /operations/{id}, and part of events."""

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
        """Return the result of an ended operation, or raise its error as its own class."""
        if self.error:
            raise errors.error_from(self.error)
        return self.result or Result("", 0.0)


def summary(operation: Operation, seconds_by_stage: Mapping[str, float] | None = None) -> str:
    """Return the log line of an operation: outcome, size, ratio, and seconds of every stage."""
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
    """A kernel: GET /kernels, GET /kernels/{id}. `pid` and `pgid` are those of the daemon's namespace; 0 without a process."""

    kernel_id: str
    state: KernelState
    owner_id: str
    pid: int = 0
    init_pid: int = 0
    #: The path of the file to which init writes the kernel's wait status as a decimal number at its end; it does not exist before. The
    #: path changes with every launch and resume.
    exit_path: str = ""
    name: str = ""
    snapshot_id: str = ""
    #: The error of the last operation, or the reason why the kernel was lost.
    error: ErrorRecord | None = None
    operation: Operation | None = None
    memory_bytes: int = 0
    gpu_bytes: int = 0
    #: The time at which it is killed because its user has shut it down (seconds since the epoch); 0: none. Until then it is stopped.
    ends_at: float = 0.0
    #: The snapshot of another kernel from which it was branched.
    parent_snapshot_id: str = ""
    #: The ports that its last resume changed, old to new.
    moved_ports: dict[int, int] = {}
    #: The time at which it entered its state (seconds since the epoch); a resume that failed does not change it.
    since: float = 0.0
    #: The time at which `error` was noted (seconds since the epoch); 0: there is none.
    failed_at: float = 0.0
    #: The remote to which it was moved for another machine, until it is resumed here; empty: it was not.
    moved_to: str = ""
    #: The utilization of the GPU by its processes in percent; None: it uses none, or the driver does not report it.
    gpu_utilization: int | None = None
    #: The RAM and GPU memory in its snapshot, while the kernel has no process, and the GPU memory alone.
    suspended_bytes: int = 0
    suspended_gpu_bytes: int = 0
    #: Why it was suspended; None: it is not suspended.
    cause: Cause | None = None
    #: That another machine has taken its session over, in a sentence, until a user has chosen where its notebook is saved.
    taken_over: str = ""
    #: When its server saw it change for the first time after its last snapshot (seconds since the epoch); 0: it did not, or nobody looks.
    changed_at: float = 0.0
    #: How long after that its server saves it; 0: it does not.
    autosave_seconds: float = 0.0
    #: The estimated duration of its resume, from earlier ones on this machine; None: it has a process, or it is not known.
    resume_seconds: float | None = None
    #: The ports, besides its own, on which it listened, while it has no process.
    listening: list[int] = []
    position: Position = Position()


class State(msgspec.Struct, frozen=True):
    """The full state of a stream: all kernels and operations, including recently ended ones, and standing notices."""

    kernels: list[Kernel] = []
    operations: list[Operation] = []
    notices: list[Notice] = []


class Event(msgspec.Struct, frozen=True):
    """A line of an owner's stream (POST /owners) or of an operation's (GET /operations/{id}/events), in order.

    The first one contains the full state; so does one that replaces events that a slow reader has missed. An event with nothing but
    its position is a keep-alive.
    """

    position: Position
    #: A full state, which replaces all earlier events.
    state: State | None = None
    kernel: Kernel | None = None
    #: An operation that began, advanced or ended. Changes of the kernel by its end come before.
    operation: Operation | None = None
    #: The id of a kernel that was removed (killed, or ended by itself).
    gone: str = ""
    #: With `gone`: a user ended it, not its owner, which is not to start it again.
    by_user: bool = False
    #: A change of a snapshot of any kernel; all owners get it.
    snapshot: SnapshotChange | None = None
    notice: Notice | None = None


#: What a resume does to the working folder: nothing, all as in the snapshot, or only what was changed since its branch began.
FilesChoice = Literal["", "restore", "merge"]


class ResumeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /kernels/{id}/resume, query of GET /kernels/{id}/gpu_room. An empty snapshot_id means the latest one.

    `visible_gpus`: the client's CUDA_VISIBLE_DEVICES; the kernel is resumed on GPUs that it allows. `take_over`: resume it even if
    another machine runs its session, which loses it. `force`: although its files changed (`files_changed`). `files`: what happens to the
    working folder if the snapshot has its files; its present ones are saved first.
    """

    snapshot_id: str = ""
    visible_gpus: str = ""
    take_over: bool = False
    force: bool = False
    files: FilesChoice = ""


class ChangedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PUT /kernels/{id}/changed. `at`: when it changed for the first time after its last snapshot (seconds since the epoch).

    `autosave_seconds`: how long after that it is saved.
    """

    at: Annotated[float, msgspec.Meta(ge=0)]
    autosave_seconds: Annotated[float, msgspec.Meta(ge=0)]


class ParkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /kernels/{id}/park. `peer_access_off`: as in `SaveRequest`.

    `keep_contexts`: CUDA contexts, half a gigabyte each, stay on the GPU where hardly anything else is left there, which is faster.
    """

    peer_access_off: bool = False
    keep_contexts: bool = False


class BranchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /branches: create a new suspended kernel whose resume restores `snapshot_id` beside the snapshot's own kernel.

    It listens on `own_ports` instead of on those of the snapshot's launch, in their order, and clients
    find its own unix sockets in `sockets_folder`. `jupyter` and `name`: as in `SaveRequest`.
    """

    owner_id: str
    snapshot_id: str
    kernel_id: str
    own_ports: list[int]
    name: str = ""
    jupyter: dict[str, Any] = {}
    sockets_folder: str = ""


class GpuRoom(msgspec.Struct, frozen=True):
    """GET /kernels/{id}/gpu_room: the GPU memory that a resume or unpark needs, and the free memory of the chosen GPU."""

    needed_bytes: int = 0
    free_bytes: int = 0


class MemoryUse(msgspec.Struct, frozen=True):
    """GET /memory: the memory of the machine, or below a limit of a control group. Page cache that can be reclaimed counts as free."""

    #: "This machine", or the group, for users.
    name: str
    total_bytes: int
    free_bytes: int
    #: The part of the last ten seconds in which all its processes waited for memory, in percent (PSI); 0 if Linux does not measure it.
    stalled_percent: float = 0.0


class SaveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The body of POST /kernels/{id}/save and /suspend: `jupyter` and `name` replace those of the launch.

    An idle kernel (`Cause.spares_connections`) is not suspended if that would cut its connections, because no user requested it.
    `title`: the user's. `variables`: the kernel's; None: not known. Without `peer_access_off` the kernel must not use several GPUs.
    `cell`, `in_cell`: as in `SnapshotInfo`. `files`: whether the working folder is in it; it is in those of tools, and where the kernel's
    launch says so.
    """

    name: str = ""
    jupyter: dict[str, Any] | None = None
    cause: Cause = Cause.MANUAL
    #: Retention never removes the snapshot.
    pinned: bool = False
    #: The policy by which snapshots are removed after a success; None: none are removed.
    retention: RetentionPolicy | None = None
    title: Annotated[str, msgspec.Meta(max_length=MAX_TITLE)] = ""
    variables: Variables | None = None
    peer_access_off: bool = False
    cell: Annotated[int, msgspec.Meta(ge=0)] = 0
    in_cell: bool = False
    files: bool = False

    def options(self, *, stop: bool, name: str, parked: bool) -> SaveOptions:
        """Return the engine's options; `name` is used if the request has none."""
        return SaveOptions(
            stop=stop,
            name=self.name or name,
            title=self.title,
            pinned=self.pinned,
            cause=self.cause,
            variables=self.variables,
            parked=parked,
            peer_access_off=self.peer_access_off,
            cell=self.cell,
            in_cell=self.in_cell,
            has_files=self.files or self.cause is Cause.TOOL,
        )


class EndRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PUT /kernels/{id}/end: stop the kernel, and kill it after that time unless DELETE /kernels/{id}/end undoes it."""

    after_seconds: Annotated[float, msgspec.Meta(ge=0)]


class SignalRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /kernels/{id}/signal: send a signal to the kernel's process group (as jupyter_client does)."""

    signum: Annotated[int, msgspec.Meta(ge=0, le=64)]


class ClaimRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /owners/{owner_id}/claim: take over kernels of dead servers of this owner's root_dir and hub server, or a batch run's own.

    `kernel_id`: only this kernel, wherever its notebook is; also one that the owner has already.
    """

    kernel_id: str = ""


class SuspendedKernel(msgspec.Struct, frozen=True):
    """A kernel that a claim transfers to a server, which lists it again. `cause`: of its last suspend. `secrets`: as in `LaunchSpec`."""

    kernel: Kernel
    jupyter: dict[str, Any]
    cwd: str = ""
    cause: Cause = Cause.MANUAL
    secrets: dict[str, Any] = {}


class Check(msgspec.Struct, frozen=True):
    """A line of the doctor's report. `ok` None: does not apply here. `fix`: the one command that fixes it."""

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
