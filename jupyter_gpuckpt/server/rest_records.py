"""The records of the REST interface and of events; `rest/openapi.py` describes the interface by them."""

from __future__ import annotations

import time
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ..errors import ErrorRecord
from ..wire.manifest_records import Cause, Variable
from ..wire.progress import ProgressRecord
from ..wire.protocol import Kernel, Operation, OperationKind, OperationState
from ..wire.reclaim_records import Notice, NoticeKind
from ..wire.remote_listings import RemoteState
from ..wire.snapshot_records import Snapshot, UploadState
from ..wire.states import KernelState

_View = TypeVar("_View", bound="View")


class View(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all records. Sizes are in bytes, times in seconds."""


class ErrorView(View, frozen=True):
    """An error. `message` gives the cause, `hint` a remedy."""

    message: str
    code: str
    hint: str | None
    details: str | None = None


class TemplateView(View, frozen=True):
    """A template, or one that is being built for the first time, which has no title yet.

    - `why`: Why its kernels are no copies now; empty if they are.
    - `error`: The error of the last build.
    """

    name: str
    title: str
    is_being_built: bool
    why: str
    error: ErrorView | None


class TemplatesView(View, frozen=True):
    """The templates of this user, by name."""

    templates: list[TemplateView]


class ResultView(View, frozen=True):
    """The result of an operation.

    - `frozen_seconds`: How long the kernel was paused.
    - `raw_bytes`: Memory and images before compression.
    - `stored_bytes`: Compressed bytes that the snapshot refers to.
    - `new_bytes`: Of these, bytes that were not in the store.
    - `gpu_bytes`: GPU memory among raw_bytes.
    - `moved_ports`: Of a resume or branch: the new port of each listener whose old one was taken, by old port; without Jupyter's own.
    """

    snapshot_id: str
    seconds: float
    frozen_seconds: float
    raw_bytes: int
    stored_bytes: int
    new_bytes: int
    gpu_bytes: int
    warnings: list[str]
    moved_ports: dict[int, int]


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
    """The operation on a kernel of a snapshot, and the path of its notebook. If it fails, nothing of a new kernel is left."""

    path: str


class KernelView(View, frozen=True, kw_only=True):
    """A kernel of this server. `reason` and `hint`: why it is not managed, or its last error.

    - `managed`: Whether the kernel can be saved.
    - `error_code`: The code of its last error.
    - `snapshot_id`: The snapshot that a resume would use.
    - `operation`: The running operation.
    - `parent_snapshot_id`: The snapshot that it was branched from.
    - `path`: The path of its notebook; the kernelspec's name if it has none.
    - `kernel_name`: The kernelspec's name.
    - `since`: When it entered its state, in seconds since the epoch; a resume that failed does not change it.
    - `failed_at`: When its last error was noted, in seconds since the epoch; 0: there is none.
    - `moved_to`: The remote to which it was moved for another machine, until it is resumed here; null: it was not.
    - `memory_bytes`: RAM of its processes; 0 while it has none.
    - `gpu_bytes`: GPU memory of its processes.
    - `gpu_utilization`: Percent of the GPU; null: not known.
    - `resume_seconds`: How long a resume may take; null: not known, or it runs.
    - `suspended_bytes`: RAM and GPU memory in its snapshot, while it has no process.
    - `suspend_cause`: Why it was suspended; null: it is not suspended.
    - `taken_over`: That another machine has taken its session over, until a user has chosen where its notebook is saved.
    - `changed_at`: Since when it may have changed after its last snapshot, in seconds since the epoch; null if not, or nobody looks.
    - `autosave_seconds`: How long after that it is saved; 0: only on request.
    - `cells_resume`: Whether a cell that is sent to it resumes it.
    - `restart_save_seconds`: How long its process is kept at a restart if it cannot be saved; 0: a restart cannot be undone.
    - `before_restart`: The snapshot with its state before its last restart; null: none.
    - `before_tool`: The snapshot with its state before an AI agent's tool restored another, until a user restores one; null: none.
    - `former_kept`: Whether its process before its last restart is kept: `undo_restart`.
    - `restart_lost`: Why its last restart cannot be undone; null if it can.
    - `idle_seconds`: After how long without activity it is suspended; 0: never.
    - `suspends_at`: When it will be suspended because it is idle; null: not soon.
    - `cell_paused`: Whether it was suspended in the middle of a cell.
    - `continues_alone`: Whether the next server resumes it by itself, because this one was stopped in the middle of the cell.
    """

    kernel_id: str
    state: KernelState
    managed: bool
    reason: str | None = None
    hint: str | None = None
    error_code: str | None = None
    snapshot_id: str | None = None
    operation: OperationView | None = None
    parent_snapshot_id: str | None = None
    path: str
    kernel_name: str
    since: float = 0.0
    failed_at: float = 0.0
    moved_to: str | None = None
    memory_bytes: int = 0
    gpu_bytes: int = 0
    gpu_utilization: int | None = None
    resume_seconds: float | None = None
    suspended_bytes: int = 0
    suspend_cause: Cause | None = None
    taken_over: str | None = None
    changed_at: float | None = None
    autosave_seconds: float = 0.0
    cells_resume: bool = True
    restart_save_seconds: float = 0.0
    before_restart: str | None = None
    before_tool: str | None = None
    former_kept: bool = False
    restart_lost: str | None = None
    idle_seconds: float = 0.0
    suspends_at: float | None = None
    cell_paused: bool = False
    continues_alone: bool = False


class KernelElsewhere(View, frozen=True):
    """A kernel of a notebook below this server's folder that belongs to another server which has not ended.

    - `path`: The path of its notebook; empty if it is not known.
    """

    kernel_id: str
    path: str
    state: KernelState
    reason: str
    hint: str


class KernelsView(View, frozen=True):
    """All kernels of this server, including unmanaged ones, and those that another server has not released."""

    kernels: list[KernelView]
    elsewhere: list[KernelElsewhere]


class ShutDownView(View, frozen=True):
    """A kernel whose shutdown can be undone. Its processes are stopped until it ends.

    - `path`: The path of its notebook; empty if it had none.
    - `ends_at`: Seconds since the epoch.
    """

    kernel_id: str
    kernel_name: str
    path: str
    ends_at: float


class ShutDownsView(View, frozen=True):
    """The kernels whose shutdown can be undone."""

    kernels: list[ShutDownView]


class UploadView(View, frozen=True):
    """The state of a snapshot's upload to a remote.

    - `total_bytes`: An upper bound of the bytes to send.
    - `error`: The error of a failed upload, or of the last attempt of a waiting one.
    """

    remote: str
    state: UploadState
    done_bytes: int
    total_bytes: int
    error: ErrorView | None


class SnapshotView(View, frozen=True):
    """The current record of a snapshot.

    - `created`: Seconds since the epoch.
    - `reason`: save or suspend
    - `cause`: Why it was taken.
    - `name`: The notebook's path, or the kernelspec's name.
    - `title`: The title that its user gave; may be empty.
    - `cell`: The execution count of the last cell that had begun; 0: not known.
    - `in_cell`: That cell ran.
    - `has_files`: It has the files of the working folder.
    - `pinned`: Retention never removes it.
    - `needed`: A suspended kernel would be lost without it; it cannot be deleted.
    - `kernel_live`: Its kernel exists, running or suspended.
    - `variables`: The biggest 20; empty where they are not known.
    - `uploads`: One for each remote to which it was, is being or will be uploaded.
    - `remote_only`: The only remote that has its content, from which a resume fetches it; empty: unknown. null: its content is here.
    - `deleted_at`: Only in the list of those that can be undeleted.
    - `kept_until`: When its deletion can no longer be undone; only in that list.
    """

    snapshot_id: str
    kernel_id: str
    created: float
    reason: str
    cause: Cause
    name: str
    title: str
    cell: int
    in_cell: bool
    has_files: bool
    note: str
    pinned: bool
    needed: bool
    kernel_live: bool
    raw_bytes: int
    stored_bytes: int
    new_bytes: int
    gpu_bytes: int
    frozen_seconds: float
    seconds: float
    host_name: str
    variables: list[Variable]
    uploads: list[UploadView]
    remote_only: str | None
    deleted_at: float | UnsetType = UNSET
    kept_until: float | UnsetType = UNSET


class SnapshotsView(View, frozen=True):
    """Snapshots, newest first."""

    snapshots: list[SnapshotView]


class RemotesView(View, frozen=True):
    """The remotes, in the order in which they were added."""

    remotes: list[RemoteState]


class NoticeView(View, frozen=True):
    """A notice that this machine will go: its provider takes it back or stops it, or it is shut down.

    - `deadline`: When the machine goes, in seconds since the epoch; null: at an unknown time.
    - `seconds_left`: Seconds from now; correct even if the clocks of server and client differ.
    - `disk_survives`: Whether local snapshots can be read afterwards; if not, only those in remotes.
    - `is_saving`: Whether kernels are being saved for it; they run on.
    - `is_due`: Whether kernels are being suspended for it.
    - `withdrawn`: The machine stays after all.
    """

    id: str
    kind: NoticeKind
    deadline: float | None
    seconds_left: float | None
    disk_survives: bool
    is_saving: bool
    is_due: bool
    withdrawn: bool


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


def view_of(kind: type[_View], record: msgspec.Struct, **others: object) -> _View:
    """Return a record with the fields of another one; `others`: those that differ or that it lacks."""
    fields = {name: getattr(record, name) for name in kind.__struct_fields__ if name not in others}
    return kind(**fields, **others)


def operation_view(operation: Operation) -> OperationView:
    """Return the record of an operation."""
    result = operation.result and view_of(
        ResultView, operation.result, **msgspec.structs.asdict(operation.result.sizes)
    )
    error = operation.error and error_view(operation.error)
    return view_of(OperationView, operation, result=result, error=error)


def branch_view(operation: Operation, path: str) -> BranchView:
    """Return the record of the operation that makes a branch."""
    return view_of(BranchView, operation_view(operation), path=path)


def error_view(error: ErrorRecord) -> ErrorView:
    """Return the record of an error."""
    return view_of(ErrorView, error, hint=error.hint or None, details=error.details or None)


def notice_view(notice: Notice) -> NoticeView:
    """Return a notice as pages see it."""
    left = notice.seconds_left
    deadline = None if left is None else time.time() + left
    return view_of(NoticeView, notice, deadline=deadline, seconds_left=left)


def snapshot_view(snapshot: Snapshot) -> SnapshotView:
    """Return the record of a snapshot; one that is not deleted has no fields about a deletion."""
    others: dict[str, Any] = msgspec.structs.asdict(snapshot.sizes)
    others["uploads"] = [
        view_of(UploadView, upload, error=upload.error and error_view(upload.error))
        for upload in snapshot.uploads
    ]
    if snapshot.deleted_at is None:
        others |= {"deleted_at": UNSET, "kept_until": UNSET}
    return view_of(SnapshotView, snapshot, **others)


def snapshots_view(found: list[Snapshot]) -> SnapshotsView:
    """Return the records of snapshots, in their order."""
    return SnapshotsView(snapshots=list(map(snapshot_view, found)))


def remotes_view(found: list[RemoteState]) -> RemotesView:
    """Return the records of remotes, in their order."""
    return RemotesView(remotes=found)


def as_event(view: View) -> dict[str, Any]:
    """Return a record as the data of an event."""
    data: dict[str, Any] = msgspec.to_builtins(view, str_keys=True)
    return data
