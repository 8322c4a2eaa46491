"""HTTP status and exit code of each error, for the daemon, the server and the command line."""

from __future__ import annotations

from .. import errors
from ..errors import GpuCkptError

#: HTTP status and exit code by error class, looked up along the class's MRO.
STATUS_AND_EXIT: dict[type[GpuCkptError], tuple[int, int]] = {
    errors.GpuCkptError: (500, 1),
    errors.ConfigurationError: (400, 2),
    errors.RemoteNotFound: (404, 2),
    errors.HostError: (501, 3),
    errors.HostIncompatible: (409, 3),
    errors.KernelError: (409, 6),
    errors.KernelNotFound: (404, 5),
    errors.KernelNotCheckpointable: (422, 4),
    errors.KernelLost: (500, 8),
    errors.CheckpointError: (500, 8),
    errors.OperationNotFound: (404, 5),
    errors.OperationCancelled: (409, 6),
    errors.StoreError: (500, 10),
    errors.SnapshotNotFound: (404, 5),
    errors.SnapshotInUse: (409, 6),
    errors.SnapshotExists: (409, 6),
    errors.SnapshotInRemoteOnly: (409, 6),
    errors.ArchiveInvalid: (400, 2),
    errors.StoreUnavailable: (503, 7),
    errors.AccessDenied: (403, 7),
    errors.SessionHeld: (409, 6),
    errors.SessionLost: (409, 6),
    errors.StoreFull: (507, 9),
    errors.DaemonUnavailable: (503, 7),
}

#: The exit code of a command that saved some of several kernels, but not all; not in the table, because it is no error.
SOME_NOT_SAVED = 11


def http_status(kind: type[GpuCkptError]) -> int:
    """Return the HTTP status that answers an error of this class."""
    return next(STATUS_AND_EXIT[c] for c in kind.__mro__ if c in STATUS_AND_EXIT)[0]


def exit_code(kind: type[GpuCkptError]) -> int:
    """Return the exit code of a command that ends with an error of this class."""
    return next(STATUS_AND_EXIT[c] for c in kind.__mro__ if c in STATUS_AND_EXIT)[1]
