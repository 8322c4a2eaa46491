"""The errors of the project, one class per cause.

    GpuCkptError                    code, hint, retryable; str() is a sentence
    ├─ ConfigurationError           a setting or a request that cannot work
    ├─ HostError                    this machine cannot do it
    │  ├─ ToolMissing
    │  ├─ PrivilegeMissing
    │  ├─ LimitReached              on open files, processes or threads
    │  └─ HostIncompatible          the snapshot needs something that differs here
    │     ├─ GpuFull                there is no room for its GPU memory
    │     └─ FilesChanged           files of the kernel changed; a user may resume it all the same
    ├─ KernelError                  a kernel cannot do this, or not now
    │  ├─ KernelNotFound
    │  ├─ KernelNotManaged          not launched under the engine
    │  ├─ KernelBusy                an operation of this kind is in flight (retryable)
    │  ├─ KernelStateConflict       the verb makes no sense in the kernel's state
    │  ├─ KernelNotCheckpointable   reasons: what the kernel holds that cannot be saved
    │  └─ KernelLost                the process is gone although it should not be
    ├─ CheckpointError              stage, details (the end of the tool's log)
    │  ├─ FreezeFailed
    │  └─ ThawFailed
    │     └─ ThawDisturbed          another program sent signals to the kernel (retryable)
    ├─ OperationNotFound
    ├─ OperationCancelled
    ├─ StoreError
    │  ├─ SnapshotNotFound, SnapshotInUse, SnapshotExists
    │  ├─ SnapshotInRemoteOnly               its chunks are only in a remote
    │  ├─ ArchiveInvalid            the imported data is no export, or incomplete
    │  ├─ ObjectCorrupt, ManifestInvalid, FormatTooNew
    │  ├─ StoreUnavailable          (retryable)
    │  ├─ AccessDenied              by a remote
    │  │  ├─ CredentialsRefused     expired, rotated or wrong
    │  │  └─ KeyUnavailable         its content cannot be decrypted
    │  ├─ RemoteObjectMissing, RemoteObjectInvalid
    │  ├─ SessionHeld               another machine runs it
    │  │  └─ SessionAhead           another machine has gone on with it
    │  ├─ SessionLost               another machine has taken it over
    │  └─ StoreFull
    └─ DaemonUnavailable            the daemon cannot be reached or started (retryable)
       └─ DaemonSilent              it runs, but does not answer

Every error crosses the process boundary as an `ErrorRecord` and is raised again on the other side as its own class
(`record_of`, `error_from`). `statuses.py` maps classes to HTTP statuses and exit codes.
Secrets never appear in a message, a hint or details.
"""

from __future__ import annotations

import errno
from typing import ClassVar

import msgspec


class GpuCkptError(Exception):
    """The base of all errors. `hint`: what the user can do; `details`: technical text for a dialog or a log.

    `command`: a sentence about the command by which the user can do it, for terminals: pages do not show it.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, hint: str = "", details: str = "", command: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.command = command
        self.details = details


class ConfigurationError(GpuCkptError):
    """A setting, an argument or a request that cannot work."""

    code = "configuration"


class RemoteNotFound(ConfigurationError):
    """There is no remote of this name."""

    code = "remote_not_found"


class HostError(GpuCkptError):
    """This machine cannot do it."""

    code = "host"


class ToolMissing(HostError):
    """A program or library that is needed is absent or too old."""

    code = "tool_missing"


class PrivilegeMissing(HostError):
    """The daemon lacks a right that the kernel of the operating system asks for."""

    code = "privilege_missing"


class LimitReached(HostError):
    """A limit on open files, or on processes and threads, is reached."""

    code = "limit_reached"


class HostIncompatible(HostError):
    """The snapshot needs something that this machine does not have or has differently."""

    code = "host_incompatible"


class GpuFull(HostIncompatible):
    """There is no room on the GPU, and none can be made."""

    code = "gpu_full"


class FilesChanged(HostIncompatible):
    """Files changed so that the kernel would end, or do harm. It is resumed only if a user wants that all the same."""

    code = "files_changed"


class KernelError(GpuCkptError):
    """The kernel cannot do this, or not now."""

    code = "kernel"


class KernelNotFound(KernelError):
    """No kernel of this id is known."""

    code = "kernel_not_found"


class KernelNotManaged(KernelError):
    """The kernel was not launched under the engine, so it cannot be saved."""

    code = "kernel_not_managed"


class KernelBusy(KernelError):
    """An operation is in flight for this kernel."""

    code = "kernel_busy"
    retryable = True


class KernelStateConflict(KernelError):
    """The verb makes no sense in the state that the kernel is in."""

    code = "kernel_state_conflict"


class KernelNotCheckpointable(KernelError):
    """The kernel holds something that cannot be saved; nothing was touched."""

    code = "kernel_not_checkpointable"


class KernelLost(KernelError):
    """The process is gone although it should not be."""

    code = "kernel_lost"


class CheckpointError(GpuCkptError):
    """The engine failed at one of its steps."""

    code = "checkpoint"


class FreezeFailed(CheckpointError):
    """A save or suspend failed; the kernel runs on as before."""

    code = "freeze_failed"


class ThawFailed(CheckpointError):
    """A resume failed; the snapshot is untouched."""

    code = "thaw_failed"


class ThawDisturbed(ThawFailed):
    """A resume that failed because another program sent signals to the kernel; another attempt can succeed."""

    code = "thaw_disturbed"
    retryable = True


class OperationNotFound(GpuCkptError):
    """No operation of this id is known (the daemon keeps ended ones for a while only)."""

    code = "operation_not_found"


class OperationCancelled(GpuCkptError):
    """The operation was canceled before it was complete; everything it did was undone."""

    code = "operation_cancelled"


class StoreError(GpuCkptError):
    """The snapshot store failed or refused a request."""

    code = "store"


class SnapshotNotFound(StoreError):
    """No snapshot of this id is in the store."""

    code = "snapshot_not_found"


class SnapshotInUse(StoreError):
    """The snapshot is being read by an operation, or a suspended kernel would be lost with it."""

    code = "snapshot_in_use"


class SnapshotExists(StoreError):
    """A snapshot of this id is in the store already."""

    code = "snapshot_exists"


class SnapshotInRemoteOnly(StoreError):
    """The content of a snapshot is only in a remote and must be fetched first."""

    code = "snapshot_in_remote_only"


class ArchiveInvalid(StoreError):
    """The imported data is not an export of a snapshot, or is truncated or altered."""

    code = "archive_invalid"


class ObjectCorrupt(StoreError):
    """A chunk in a pack differs from its digest."""

    code = "object_corrupt"


class ManifestInvalid(StoreError):
    """A manifest is truncated, altered or does not make sense."""

    code = "manifest_invalid"


class FormatTooNew(StoreError):
    """The data was written by a newer version of this project."""

    code = "format_too_new"


class StoreUnavailable(StoreError):
    """The store cannot be reached or written."""

    code = "store_unavailable"
    retryable = True


class AccessDenied(StoreError):
    """A remote refused a request: the credentials are wrong or lack a right. A missing object is another error."""

    code = "access_denied"


class CredentialsRefused(AccessDenied):
    """A remote refused the credentials themselves: they have expired, were rotated or are wrong."""

    code = "credentials_refused"


class KeyUnavailable(AccessDenied):
    """The key of a remote is not available: a wrong password, a missing key file, a removed entry."""

    code = "key_unavailable"


class RemoteObjectMissing(StoreError):
    """A remote reports that an object does not exist."""

    code = "remote_object_missing"


class RemoteObjectInvalid(StoreError):
    """An object of a remote is invalid: altered, of another store, older than one seen before, or not decodable."""

    code = "remote_object_invalid"


class SessionHeld(StoreError):
    """A remote session that another machine runs: its lease has not ended."""

    code = "session_held"


class SessionAhead(SessionHeld):
    """A remote session with a newer snapshot of another machine, while an older one was to be resumed."""

    code = "session_ahead"


class SessionLost(StoreError):
    """The error for a remote session that another machine has taken over: what this machine saves from then on is a branch."""

    code = "session_lost"


class StoreFull(StoreError):
    """The disk or the remote has no room left."""

    code = "store_full"


class DaemonUnavailable(GpuCkptError):
    """The daemon cannot be reached or started."""

    code = "daemon_unavailable"
    retryable = True


class DaemonSilent(DaemonUnavailable):
    """The daemon runs but does not answer: it is busy, or was stopped by a signal."""

    code = "daemon_silent"


class ErrorRecord(msgspec.Struct, frozen=True):
    """An error in its JSON form, as in `GpuCkptError`."""

    message: str
    code: str
    hint: str = ""
    details: str = ""
    command: str = ""


def subclasses(root: type[GpuCkptError] = GpuCkptError) -> list[type[GpuCkptError]]:
    """Return `root` and all its subclasses, parents first."""
    found = [root]
    for child in root.__subclasses__():
        found += subclasses(child)
    return found


#: What Linux and Python say of a limit, and the words for users.
_LIMITS = {
    errno.EMFILE: (
        "The limit of open files of a process is reached",
        "Raise it for the server (`ulimit -n`, docker --ulimit nofile=1048576), or close kernels, then try again.",
    ),
    errno.ENFILE: (
        "The limit of open files of this machine is reached",
        "End programs that have many files open, or raise the limit (sysctl fs.file-max), then try again.",
    ),
    errno.EAGAIN: (
        "The limit of processes and threads is reached",
        "End some, or raise the limit (`ulimit -u`, pids.max of the control group, docker --pids-limit), then try again.",
    ),
}


def is_descriptor_limit(error: OSError) -> bool:
    """Return whether an error means that no further file can be opened."""
    return error.errno in {errno.EMFILE, errno.ENFILE}


def limit_reached(number: int, failed: BaseException, why: object) -> LimitReached:
    """Return the error for a limit that Linux reports by an error number. `failed`: what failed for it."""
    reason, hint = _LIMITS[number]
    if not isinstance(failed, GpuCkptError):
        return LimitReached(f"{reason}.", hint=hint, details=str(why))
    return LimitReached(
        f"{reason}. {failed}", hint=hint, details=f"{failed.details}\n{why}".strip()
    )


def limit_of(error: BaseException) -> LimitReached | None:
    """Return the error that names the limit by which another error was caused, for all but the end of a kernel and a cancellation."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(
        cause, (KernelLost, OperationCancelled, LimitReached)
    ):
        number = cause.errno if isinstance(cause, OSError) else None
        if isinstance(cause, RuntimeError) and str(cause) == "can't start new thread":
            number = errno.EAGAIN
        elif number == errno.EAGAIN and cause is error:
            number = (
                None  # of a read or a lock: who starts a process raises another error from this one
            )
        if number in _LIMITS:
            return limit_reached(number, error, cause)
        cause = cause.__cause__
    return None


def record_of(error: BaseException) -> ErrorRecord:
    """Return the record of any exception; a foreign one gets code `internal` and a message with its class name.

    An error that was caused by a limit of the machine becomes `LimitReached`.
    """
    error = limit_of(error) or error
    if isinstance(error, GpuCkptError):
        return ErrorRecord(error.message, error.code, error.hint, error.details, error.command)
    return ErrorRecord(
        f"An unexpected error occurred: {type(error).__name__}: {error}",
        "internal",
        "This is a defect of jupyter-gpuckpt; the log of the daemon or of the Jupyter server has the traceback.",
    )


def error_from(record: ErrorRecord) -> GpuCkptError:
    """Return the exception of a record; an unknown code gives the base class."""
    kind = next((c for c in subclasses() if c.code == record.code), GpuCkptError)
    return kind(record.message, hint=record.hint, details=record.details, command=record.command)


def is_disk_full(error: OSError) -> bool:
    """Return whether an error means a lack of space: a full disk or an exceeded quota."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT}
