"""The records of the REST interface and of events, as `openapi.yaml` and `events/*.yaml` describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from ..client.batch import SuspendReport
    from ..errors import ErrorRecord
    from ..protocol import Kernel, Operation
    from ..snapshot_records import Snapshot


def elsewhere_view(kernel: Kernel) -> dict[str, Any]:
    """Return the record of a kernel of another server that shows the same notebooks."""
    return {
        "kernel_id": kernel.kernel_id,
        "path": kernel.name,
        "state": str(kernel.state),
        "reason": "It is a session of another server, which has not ended.",
        "hint": "It is listed by the first server that is started after that one has ended.",
    }


def measures_view(kernel: Kernel | None) -> dict[str, Any]:
    """Return what a kernel uses, as the daemon has reported last; zeros for one that it does not know."""
    return {
        "since": kernel.since if kernel else 0.0,
        "memory_bytes": kernel.memory_bytes if kernel else 0,
        "gpu_bytes": kernel.gpu_bytes if kernel else 0,
        "gpu_utilization": kernel.gpu_utilization if kernel else None,
        "resume_seconds": kernel.resume_seconds if kernel else None,
        "suspended_bytes": kernel.suspended_bytes if kernel else 0,
    }


def operation_view(operation: Operation) -> dict[str, Any]:
    """Return the record of an operation."""
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
    """Return the record of a suspend of many kernels."""
    kernels = [
        {**msgspec.to_builtins(outcome), "error": error_view(outcome.error)}
        for outcome in report.kernels
    ]
    return {"seconds": report.seconds, "kernels": kernels}


def error_view(error: ErrorRecord | None) -> dict[str, Any] | None:
    """Return the record of an error, if there is one."""
    if error is None:
        return None
    return {
        "message": error.message,
        "code": error.code,
        "hint": error.hint or None,
        "details": error.details or None,
    }


def snapshot_view(snapshot: Snapshot) -> dict[str, Any]:
    """Return the record of a snapshot; one that is not deleted has no fields about a deletion."""
    view = record_view(snapshot)
    if snapshot.deleted_at is None:
        del view["deleted_at"], view["kept_until"]
    sizes = view.pop("sizes")
    return {**view, **sizes}


def record_view(record: Any) -> dict[str, Any]:
    """Return a record that is shown as it is."""
    view: dict[str, Any] = msgspec.to_builtins(record)
    return view
