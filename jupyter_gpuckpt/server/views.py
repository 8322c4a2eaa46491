"""The records of the REST interface and of events, as `openapi.yaml` and `events/kernel.yaml` describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..protocol import OperationState
from ..states import KernelState
from .kernels.sessions import sessions_of
from .messages.served_kernel import not_managed

if TYPE_CHECKING:
    from jupyter_server.services.sessions.sessionmanager import SessionManager

    from ..errors import ErrorRecord
    from ..protocol import Kernel, Operation, SuspendReport
    from ..snapshot_records import Snapshot
    from .kernels.kernel_manager import GpuCkptKernels
    from .kernels.operations import ServerOperations
    from .policies.shut_downs import ShutDown


def kernel_view(
    kernel_id: str,
    kernels: GpuCkptKernels,
    sessions: SessionManager,
    operations: ServerOperations | None,
) -> dict[str, Any]:
    """A kernel of this server. `reason` and `hint`: why it is not managed, or what went wrong last."""
    kernel_name = kernels.get_kernel(kernel_id).kernel_name
    rows = sessions_of(sessions, kernel_id)
    served = kernels.gpuckpt_owner.served.get(kernel_id) if operations is not None else None
    view: dict[str, Any] = {
        "kernel_id": kernel_id,
        "state": str(KernelState.RUNNING),
        "managed": False,
        "reason": None,
        "hint": None,
        "snapshot_id": None,
        "operation": None,
        "parent_snapshot_id": None,
        "path": rows[0]["path"] if rows else kernel_name,
        "kernel_name": kernel_name,
        **measures_view(None),
    }
    if served is None or operations is None:
        reason, hint = not_managed(kernels.get_kernel(kernel_id))
        return view | {"reason": reason or None, "hint": hint or None}
    view |= {"managed": True, "state": str(served.state)}
    if served.kernel is None:
        return view
    kernel = served.kernel
    error = kernel.error
    operation = operations.tracked.as_seen(kernel.operation) if kernel.operation else None
    in_flight = operation is not None and operation.state is OperationState.RUNNING
    return view | {
        "reason": served.waits or (error.message if error else None),
        "hint": (error.hint or None) if error else None,
        "snapshot_id": kernel.snapshot_id or None,
        "parent_snapshot_id": kernel.parent_snapshot_id or None,
        "operation": operation_view(operation) if operation and in_flight else None,
        **measures_view(kernel),
    }


def elsewhere_view(kernel: Kernel) -> dict[str, Any]:
    """A kernel of another server that shows the same notebooks."""
    return {
        "kernel_id": kernel.kernel_id,
        "path": kernel.name,
        "state": str(kernel.state),
        "reason": "It is a session of another server, which has not ended.",
        "hint": "It is listed by the first server that is started after that one has ended.",
    }


def measures_view(kernel: Kernel | None) -> dict[str, Any]:
    """What a kernel uses, as the daemon told last; zeros for one that it does not know."""
    return {
        "since": kernel.since if kernel else 0.0,
        "memory_bytes": kernel.memory_bytes if kernel else 0,
        "gpu_bytes": kernel.gpu_bytes if kernel else 0,
        "gpu_utilization": kernel.gpu_utilization if kernel else None,
        "resume_seconds": kernel.resume_seconds if kernel else None,
        "suspended_bytes": kernel.suspended_bytes if kernel else 0,
    }


def operation_view(operation: Operation) -> dict[str, Any]:
    """An operation."""
    result, error = operation.result, operation.error
    return {
        "operation_id": operation.operation_id,
        "kind": str(operation.kind),
        "kernel_id": operation.kernel_id,
        "state": str(operation.state),
        "progress": msgspec.to_builtins(operation.progress),
        "result": None
        if result is None
        else {
            "snapshot_id": result.snapshot_id,
            "seconds": result.seconds,
            "frozen_seconds": result.frozen_seconds,
            **msgspec.to_builtins(result.sizes),
            "warnings": result.warnings,
            "moved_ports": msgspec.to_builtins(result.moved_ports, str_keys=True),
        },
        "error": error_view(error),
    }


def report_view(report: SuspendReport) -> dict[str, Any]:
    """What became of many kernels."""
    kernels = [
        {**msgspec.to_builtins(outcome), "error": error_view(outcome.error)}
        for outcome in report.kernels
    ]
    return {"seconds": report.seconds, "kernels": kernels}


def error_view(error: ErrorRecord | None) -> dict[str, Any] | None:
    """An error, if there is one."""
    if error is None:
        return None
    return {
        "message": error.message,
        "code": error.code,
        "hint": error.hint or None,
        "details": error.details or None,
    }


def shut_down_view(kernel_id: str, kept: ShutDown) -> dict[str, Any]:
    """A kernel whose shutdown can be undone."""
    return {
        "kernel_id": kernel_id,
        "kernel_name": kept.manager.kernel_name,
        "path": kept.sessions[0]["path"] if kept.sessions else "",
        "ends_at": kept.ends_at,
    }


def snapshot_view(snapshot: Snapshot) -> dict[str, Any]:
    """A line of the list of snapshots; of one that is not deleted nothing says that it was."""
    told = record_view(snapshot)
    if snapshot.deleted_at is None:
        del told["deleted_at"], told["kept_until"]
    sizes = told.pop("sizes")
    return {**told, **sizes}


def record_view(record: Any) -> dict[str, Any]:
    """A record that is shown as it is."""
    told: dict[str, Any] = msgspec.to_builtins(record)
    return told
