"""The records of the REST interface and of events; `rest/openapi.py` describes the interface by them."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..errors import ErrorRecord
from ..wire.manifest_records import Cause, Variable
from ..wire.progress import ProgressRecord
from ..wire.protocol import Kernel, Operation, OperationKind, OperationState
from ..wire.reclaim_records import Notice, NoticeKind
from ..wire.remote_listings import RemoteState
from ..wire.snapshot_records import Snapshot, Upload, UploadState
from ..wire.states import KernelState


class View(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all records. Sizes are in bytes, times in seconds."""


class ErrorView(View, frozen=True):
    """An error. `message` gives the cause, `hint` a remedy."""

    message: str
    code: str
    hint: str | None
    details: str | None = None


class ResultView(View, frozen=True):
    """The result of an operation."""

    snapshot_id: str
    seconds: float
    frozen_seconds: Annotated[float, Meta(description="How long the kernel was paused.")]
    raw_bytes: Annotated[int, Meta(description="Memory and images before compression.")]
    stored_bytes: Annotated[int, Meta(description="Compressed bytes that the snapshot refers to.")]
    new_bytes: Annotated[int, Meta(description="Of these, bytes that were not in the store.")]
    gpu_bytes: Annotated[int, Meta(description="GPU memory among raw_bytes.")]
    warnings: list[str]
    moved_ports: Annotated[
        dict[int, int],
        Meta(
            description="Of a resume or branch: the new port of each listener whose old one was taken, by old port; without Jupyter's own."
        ),
    ]


class OperationView(View, frozen=True):
    """An operation on a kernel. Ended operations remain available for a while."""

    operation_id: str
    kind: OperationKind
    kernel_id: str
    state: OperationState
    progress: ProgressRecord
    result: ResultView | None
    error: ErrorView | None


class BranchView(OperationView, frozen=True):
    """The operation on a new kernel, and the path of its notebook. If it fails, nothing of the branch is left."""

    path: str


class KernelView(View, frozen=True, kw_only=True):
    """A kernel of this server. `reason` and `hint`: why it is not managed, or its last error."""

    kernel_id: str
    state: KernelState
    managed: Annotated[bool, Meta(description="Whether the kernel can be saved.")]
    reason: str | None = None
    hint: str | None = None
    error_code: Annotated[str | None, Meta(description="The code of its last error.")] = None
    snapshot_id: Annotated[
        str | None, Meta(description="The snapshot that a resume would use.")
    ] = None
    operation: Annotated[OperationView | None, Meta(description="The running operation.")] = None
    parent_snapshot_id: Annotated[
        str | None, Meta(description="The snapshot that it was branched from.")
    ] = None
    path: Annotated[
        str, Meta(description="The path of its notebook; the kernelspec's name if it has none.")
    ]
    kernel_name: Annotated[str, Meta(description="The kernelspec's name.")]
    since: Annotated[
        float, Meta(description="When it entered its state, in seconds since the epoch.")
    ] = 0.0
    memory_bytes: Annotated[int, Meta(description="RAM of its processes; 0 while it has none.")] = 0
    gpu_bytes: Annotated[int, Meta(description="GPU memory of its processes.")] = 0
    gpu_utilization: Annotated[
        int | None, Meta(description="Percent of the GPU; null: not known.")
    ] = None
    resume_seconds: Annotated[
        float | None,
        Meta(description="How long a resume may take; null: not known, or it runs."),
    ] = None
    suspended_bytes: Annotated[
        int, Meta(description="RAM and GPU memory in its snapshot, while it has no process.")
    ] = 0
    suspend_cause: Annotated[
        Cause | None, Meta(description="Why it was suspended; null: it is not suspended.")
    ] = None
    taken_over: Annotated[
        str | None,
        Meta(
            description="That another machine has taken its session over, until a user has chosen where its notebook is saved."
        ),
    ] = None
    changed_at: Annotated[
        float | None,
        Meta(
            description="When it was seen to change after its last snapshot, in seconds since the epoch; null if not, or nobody looks."
        ),
    ] = None
    autosave_seconds: Annotated[
        float, Meta(description="How long after that it is saved; 0: only on request.")
    ] = 0.0
    cells_resume: Annotated[
        bool, Meta(description="Whether a cell that is sent to it resumes it.")
    ] = True
    restart_save_seconds: Annotated[
        float,
        Meta(
            description="How long its process is kept at a restart if it cannot be saved; 0: a restart cannot be undone."
        ),
    ] = 0.0
    before_restart: Annotated[
        str | None,
        Meta(description="The snapshot with its state before its last restart; null: none."),
    ] = None
    former_kept: Annotated[
        bool,
        Meta(description="Whether its process before its last restart is kept: `undo_restart`."),
    ] = False
    restart_lost: Annotated[
        str | None,
        Meta(description="Why its last restart cannot be undone; null if it can."),
    ] = None
    suspends_at: Annotated[
        float | None,
        Meta(description="When it will be suspended because it is idle; null: not soon."),
    ] = None
    cell_paused: Annotated[
        bool, Meta(description="Whether it was suspended in the middle of a cell.")
    ] = False


class KernelElsewhere(View, frozen=True):
    """A kernel of a notebook below this server's folder that belongs to another server which has not ended."""

    kernel_id: str
    path: Annotated[str, Meta(description="The path of its notebook; empty if it is not known.")]
    state: KernelState
    reason: str
    hint: str


class KernelsView(View, frozen=True):
    """All kernels of this server, including unmanaged ones, and those that another server has not released."""

    kernels: list[KernelView]
    elsewhere: list[KernelElsewhere]


class ShutDownView(View, frozen=True):
    """A kernel whose shutdown can be undone. Its processes are stopped until it ends."""

    kernel_id: str
    kernel_name: str
    path: Annotated[str, Meta(description="The path of its notebook; empty if it had none.")]
    ends_at: Annotated[float, Meta(description="Seconds since the epoch.")]


class ShutDownsView(View, frozen=True):
    """The kernels whose shutdown can be undone."""

    kernels: list[ShutDownView]


class UploadView(View, frozen=True):
    """The state of a snapshot's upload to a remote."""

    remote: str
    state: UploadState
    done_bytes: int
    total_bytes: Annotated[int, Meta(description="An upper bound of the bytes to send.")]
    error: Annotated[
        ErrorView | None,
        Meta(description="The error of a failed upload, or of the last attempt of a waiting one."),
    ]


class SnapshotView(View, frozen=True):
    """The current record of a snapshot."""

    snapshot_id: str
    kernel_id: str
    created: Annotated[float, Meta(description="Seconds since the epoch.")]
    reason: Annotated[str, Meta(description="save or suspend")]
    cause: Annotated[Cause, Meta(description="Why it was taken.")]
    name: Annotated[str, Meta(description="The notebook's path, or the kernelspec's name.")]
    title: Annotated[str, Meta(description="The title that its user gave; may be empty.")]
    cell: Annotated[
        int,
        Meta(description="The execution count of the last cell that had begun; 0: not known."),
    ]
    in_cell: Annotated[bool, Meta(description="That cell ran.")]
    note: str
    pinned: Annotated[bool, Meta(description="Retention never removes it.")]
    needed: Annotated[
        bool,
        Meta(description="A suspended kernel would be lost without it; it cannot be deleted."),
    ]
    kernel_live: Annotated[bool, Meta(description="Its kernel exists, running or suspended.")]
    raw_bytes: int
    stored_bytes: int
    new_bytes: int
    gpu_bytes: int
    frozen_seconds: float
    seconds: float
    host_name: str
    variables: Annotated[
        list[Variable], Meta(description="The biggest 20; empty where they are not known.")
    ]
    uploads: Annotated[
        list[UploadView],
        Meta(description="One for each remote to which it was, is being or will be uploaded."),
    ]
    remote_only: Annotated[
        str | None,
        Meta(
            description="The only remote that has its content, from which a resume fetches it; empty: unknown. null: its content is here."
        ),
    ]
    deleted_at: Annotated[
        float | UnsetType, Meta(description="Only in the list of those that can be undeleted.")
    ] = UNSET
    kept_until: Annotated[
        float | UnsetType,
        Meta(description="When its deletion can no longer be undone; only in that list."),
    ] = UNSET


class SnapshotsView(View, frozen=True):
    """Snapshots, newest first."""

    snapshots: list[SnapshotView]


class RemotesView(View, frozen=True):
    """The remotes, in the order in which they were added."""

    remotes: list[RemoteState]


class NoticeView(View, frozen=True):
    """A notice that this machine will go: its provider takes it back or stops it, or it is shut down."""

    id: str
    kind: NoticeKind
    deadline: Annotated[
        float | None,
        Meta(
            description="When the machine goes, in seconds since the epoch; null: at an unknown time."
        ),
    ]
    seconds_left: Annotated[
        float | None,
        Meta(
            description="Seconds from now; correct even if the clocks of server and client differ."
        ),
    ]
    disk_survives: Annotated[
        bool,
        Meta(
            description="Whether local snapshots can be read afterwards; if not, only those in remotes."
        ),
    ]
    is_saving: Annotated[
        bool, Meta(description="Whether kernels are being saved for it; they run on.")
    ]
    is_due: Annotated[bool, Meta(description="Whether kernels are being suspended for it.")]
    withdrawn: Annotated[bool, Meta(description="The machine stays after all.")]


class NoticesView(View, frozen=True):
    """All standing notices."""

    notices: list[NoticeView]


class VariablesView(View, frozen=True):
    """A kernel's variables, the biggest first, at most 1000. They were examined without running any user code."""

    variables: list[Variable]


def elsewhere_view(kernel: Kernel) -> KernelElsewhere:
    """Return the record of a kernel of another server that shows the same notebooks."""
    return KernelElsewhere(
        kernel_id=kernel.kernel_id,
        path=kernel.name,
        state=kernel.state,
        reason="It is a session of another server, which has not ended.",
        hint="It is listed by the first server that is started after that one has ended.",
    )


def operation_view(operation: Operation) -> OperationView:
    """Return the record of an operation."""
    result, error = operation.result, operation.error
    return OperationView(
        operation_id=operation.operation_id,
        kind=operation.kind,
        kernel_id=operation.kernel_id,
        state=operation.state,
        progress=operation.progress,
        result=None
        if result is None
        else ResultView(
            snapshot_id=result.snapshot_id,
            seconds=result.seconds,
            frozen_seconds=result.frozen_seconds,
            **msgspec.structs.asdict(result.sizes),
            warnings=result.warnings,
            moved_ports=result.moved_ports,
        ),
        error=error_view(error) if error else None,
    )


def branch_view(operation: Operation, path: str) -> BranchView:
    """Return the record of the operation that makes a branch."""
    return BranchView(**msgspec.structs.asdict(operation_view(operation)), path=path)


def error_view(error: ErrorRecord) -> ErrorView:
    """Return the record of an error."""
    return ErrorView(
        message=error.message,
        code=error.code,
        hint=error.hint or None,
        details=error.details or None,
    )


def notice_view(notice: Notice) -> NoticeView:
    """Return a notice as pages see it."""
    left = notice.seconds_left
    return NoticeView(
        id=notice.id,
        kind=notice.kind,
        deadline=None if left is None else time.time() + left,
        seconds_left=left,
        disk_survives=notice.disk_survives,
        is_saving=notice.is_saving,
        is_due=notice.is_due,
        withdrawn=notice.withdrawn,
    )


def snapshot_view(snapshot: Snapshot) -> SnapshotView:
    """Return the record of a snapshot; one that is not deleted has no fields about a deletion."""
    fields: dict[str, Any] = msgspec.structs.asdict(snapshot)
    fields |= msgspec.structs.asdict(fields.pop("sizes"))
    fields["uploads"] = list(map(_upload_view, snapshot.uploads))
    del fields["number"]  # lists are in its order
    if snapshot.deleted_at is None:
        del fields["deleted_at"], fields["kept_until"]
    return SnapshotView(**fields)


def snapshots_view(found: list[Snapshot]) -> SnapshotsView:
    """Return the records of snapshots, in their order."""
    return SnapshotsView(snapshots=list(map(snapshot_view, found)))


def remotes_view(found: list[RemoteState]) -> RemotesView:
    """Return the records of remotes, in their order."""
    return RemotesView(remotes=found)


def _upload_view(upload: Upload) -> UploadView:
    error = error_view(upload.error) if upload.error else None
    return UploadView(**{**msgspec.structs.asdict(upload), "error": error})


def as_event(view: View) -> dict[str, Any]:
    """Return a record as the data of an event."""
    data: dict[str, Any] = msgspec.to_builtins(view, str_keys=True)
    return data
