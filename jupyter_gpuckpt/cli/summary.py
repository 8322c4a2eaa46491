"""Summaries of operations and snapshots as short texts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

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


def of_record(record: dict[str, Any], *, now: float) -> str:
    """Format a record as indented lines; the unit of a value follows from its name (`_bytes`, `seconds` ...)."""
    return "\n".join(_lines(record, now, ""))


def _lines(record: dict[str, Any], now: float, indent: str) -> Iterator[str]:
    width = max((len(key) for key in record), default=0)
    for key, value in record.items():
        title = key.replace("_", " ")
        if isinstance(value, dict) and value:
            yield f"{indent}{title}"
            yield from _lines(_with_units(key, value), now, indent + "    ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"{indent}{title}"
            for item in value:
                parts = (f"{name} {_text(name, part, now)}" for name, part in item.items())
                yield f"{indent}    {', '.join(parts)}"
        else:
            yield f"{indent}{title:<{width}}  {_text(key, value, now)}".rstrip()


def _with_units(key: str, value: dict[str, Any]) -> dict[str, Any]:
    """Format the numbers of a nested record such as `seconds_by_stage`, whose own keys state no unit, as durations."""
    if not key.startswith("seconds_by_"):
        return value
    return {
        name: printing.duration(part) if isinstance(part, int | float) else part
        for name, part in value.items()
    }


def _text(key: str, value: object, now: float) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if key.endswith("_bytes") or key == "length":
            return printing.size(int(value))
        if key == "seconds" or key.endswith("_seconds"):
            return printing.duration(value)
        if key == "created":
            local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
            return f"{local} ({printing.age(now - value)})"
    if isinstance(value, list | tuple):
        return ", ".join(printing.printable(str(item)) for item in value) or "-"
    if value in ("", None, {}):
        return "-"
    return printing.printable(str(value))
