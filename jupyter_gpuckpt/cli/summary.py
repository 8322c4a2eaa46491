"""Summaries of operations and snapshots as short texts."""

from __future__ import annotations

import time

from ..wire.manifest_records import SnapshotInfo
from ..wire.protocol import Operation, OperationKind
from . import printing


def of_operation(operation: Operation) -> str:
    """Summarize a successful save, suspend or resume in a sentence or two."""
    result = operation.result
    if result is None:
        return "Nothing had to be done."
    sizes, took = result.sizes, printing.duration(result.seconds)
    if operation.kind is OperationKind.PARK:
        return f"Parked kernel {operation.kernel_id} in {took}: {printing.size(sizes.gpu_bytes)} of GPU memory are free."
    if operation.kind is OperationKind.UNPARK:
        return f"Kernel {operation.kernel_id} has its GPU memory back after {took}."
    if operation.kind in {OperationKind.RESUME, OperationKind.BRANCH}:
        return f"Resumed kernel {operation.kernel_id} from snapshot {result.snapshot_id} in {took}."
    done = "Suspended" if operation.kind is OperationKind.SUSPEND else "Saved"
    text = (
        f"{done} kernel {operation.kernel_id} as snapshot {result.snapshot_id} in {took}:"
        f" {printing.size(sizes.raw_bytes)} of memory,"
    )
    if sizes.gpu_bytes:
        text += f" {printing.size(sizes.gpu_bytes)} of it on the GPU,"
    text += f" {printing.size(sizes.new_bytes)} new in the store."
    if result.notebook_modified:
        written = printing.age(time.time() - result.notebook_modified)
        text += f" Its cells and outputs are those of the notebook's file, written {written}."
    if operation.kind is OperationKind.SAVE:
        text += f" The kernel was paused for {printing.duration(result.frozen_seconds)}."
    return text


def of_snapshot(info: SnapshotInfo, *, now: float) -> str:
    """Summarize a snapshot in one line."""
    name = f" of {printing.printable(info.name)}" if info.name else ""
    title = f", {printing.printable(repr(info.heading))}" if info.heading else ""
    made = printing.age(now - info.created)
    size = f"{printing.size(info.sizes.raw_bytes)} of memory"
    pinned = ", pinned" if info.pinned else ""
    return f"{info.snapshot_id}{name}{title}, {made}, {size}{pinned}"
