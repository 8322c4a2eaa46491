"""The interpretation of a kernel's record after the death of the daemon that wrote it, or after an operation that failed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ...errors import KernelLost, record_of
from ...wire.manifest_records import SnapshotInfo
from ...wire.states import ALIVE, KernelState
from .kernel_records import KernelRecord


def recovered(
    record: KernelRecord, *, alive: bool, snapshots: Sequence[SnapshotInfo]
) -> KernelRecord | None:
    """Return the record of a kernel after the death of its daemon; None: the kernel ended and is forgotten.

    `alive`: its init still runs. `snapshots`: those of this kernel. Changes and returns `record`.
    """
    # Exactly the snapshot that the record named before the first step, if it exists: no clock tells which one is new.
    committed = next((info for info in snapshots if info.snapshot_id == record.making), None)
    ended = not alive and bool(record.exit_path) and Path(record.exit_path).exists()
    parked = alive and record.state is KernelState.PARKED
    if parked or record.state in {KernelState.SUSPENDED, KernelState.LOST}:
        return record
    if record.state is KernelState.RESUMING:
        # The new process tree is known only when a resume is complete; the snapshot is untouched.
        return _became(record, record.previous)
    if record.state is KernelState.STARTING or ended:
        return None
    if record.state is KernelState.SUSPENDING and committed and committed.reason == "suspend":
        record.snapshot_id, record.cause = committed.snapshot_id, committed.cause
        record.sizes, record.saved_seconds = committed.sizes, committed.seconds
        record.number = committed.number
        return _became(record, KernelState.SUSPENDED)
    if not alive:
        record.error, record.failed_at = record_of(lost()), time.time()
        return _became(record, KernelState.LOST)
    if record.state is KernelState.SAVING and committed:
        record.snapshot_id = committed.snapshot_id
        record.sizes, record.saved_seconds = committed.sizes, committed.seconds
        record.number = committed.number
    return _became(record, KernelState.RUNNING)


def enter(record: KernelRecord, state: KernelState) -> None:
    """Change the state of a record now. A resume that failed leaves the kernel suspended since it was suspended."""
    has_failed = record.state is KernelState.RESUMING and state is record.previous
    since = record.since_before if has_failed else time.time()
    record.since_before, record.since = record.since, since
    record.previous, record.state = record.state, state


def as_before(record: KernelRecord) -> KernelState:
    """Return the state of a kernel after an operation that neither stopped nor started it."""
    parked = record.previous is KernelState.PARKED
    return KernelState.PARKED if parked else KernelState.RUNNING


def lost() -> KernelLost:
    """Return the error of a kernel that ended without an exit status."""
    return KernelLost(
        "The kernel's process is gone and left no exit status.",
        hint="Resume it from its last snapshot, or restart it.",
    )


def _became(record: KernelRecord, state: KernelState) -> KernelRecord:
    enter(record, state)
    if state not in ALIVE:
        record.tree = None
    return record
