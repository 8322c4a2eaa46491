"""Removal of snapshots: one that a user names, or those that retention does not keep (`store/retention.py` decides).

A deletion by a user can be undone for a while. The end of that time is recorded beside the snapshot, so that the next daemon
keeps to it. The periodic saves of a kernel that its user has shut down are deleted with it, the newest a day later: it is listed among
the deleted snapshots until then.

Retention runs after every save and suspend with a policy, once no operation runs: reading all manifests must not
delay a suspend that is racing against the end of the machine. It never fails an operation.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

from ...errors import GpuCkptError, SnapshotInUse, SnapshotNotFound
from ...store import retention
from ...wire.deadlines import Deadline
from ...wire.manifest_records import SnapshotInfo
from ...wire.protocol import OperationState
from ...wire.snapshot_order import newest_first
from ...wire.snapshot_records import PruneReport, RetentionPolicy, Verdict
from ..kernels.jobs import Job
from ..kernels.machine import Machine
from ..kernels.operations import Operations, RunningOperation
from ..repeating import Tasks, until
from . import user_deletions
from .inventory import Inventory, needed_ids

#: The periodic saves that are not the newest of their kernels may take this part of the room that is free beside them.
_HISTORY_PART = 0.1
#: How long the last periodic save of a kernel that was shut down can be undeleted.
_ENDED_SECONDS = 86_400.0

_log = logging.getLogger(__name__)


class Removal:
    """A remover of the store's snapshots: deletion, undeletion and retention.

    `on_deleted`: called when deletions by users can no longer be undone, so that they are sent to remotes. `uploading`: returns the
    snapshots that are being uploaded.
    """

    def __init__(
        self,
        inventory: Inventory,
        machine: Machine,
        operations: Operations,
        *,
        data_dir: Path,
        undo_seconds: float,
        on_deleted: Callable[[], None],
        uploading: Callable[[], set[str]],
    ) -> None:
        self._inventory, self._machine, self._operations = inventory, machine, operations
        self._data_dir, self._undo_seconds, self._on_deleted = data_dir, undo_seconds, on_deleted
        self._uploading = uploading
        self._wanted: RetentionPolicy | None = None
        self._task: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._purges = Tasks()

    async def delete(
        self, snapshot_id: str, *, undo_seconds: float | None = None, here_only: bool = False
    ) -> None:
        """Delete a snapshot, which can be undone for a while; with `here_only` it is not sent to remotes.

        `undo_seconds` None: as long as the settings say. Raises SnapshotNotFound, and SnapshotInUse when an operation reads it or a
        suspended kernel needs it.
        """
        await self._inventory.require_unneeded(snapshot_id)
        mark = partial(self._mark_deleted, snapshot_id, undo_seconds, here_only=here_only)
        self._purges.start(self._purge(await asyncio.to_thread(mark)))

    async def delete_periodic(self, kernel_id: str) -> None:
        """Delete the periodic saves of a kernel that its user has shut down; of the newest this can be undone for a day. Never raises."""
        try:
            found = await asyncio.to_thread(self._machine.store.snapshots, kernel_id)
            for place, info in enumerate(filter(retention.is_periodic, newest_first(found))):
                with suppress(SnapshotNotFound, SnapshotInUse):
                    await self.delete(
                        info.snapshot_id, undo_seconds=0.0 if place else _ENDED_SECONDS
                    )
        except GpuCkptError as error:
            _log.warning("periodic saves of kernel %s are kept: %s", kernel_id, error)

    async def undelete(self, snapshot_id: str) -> SnapshotInfo:
        """Undo a deletion. Raises SnapshotNotFound if it is too late."""
        return await asyncio.to_thread(self._undelete, snapshot_id)

    def expect_all(self) -> None:
        """Set the timers of the deletions that an earlier daemon accepted."""
        self._purges.start(self._look_for_deleted())

    def _mark_deleted(
        self, snapshot_id: str, undo_seconds: float | None = None, *, here_only: bool = False
    ) -> Deadline:
        """Mark a snapshot as deleted, and record for the remotes that it was; return when it is removed for good."""
        store = self._machine.store
        known = [info for info in store.snapshots() if info.snapshot_id == snapshot_id]
        identity = store.stubs.identity()
        is_unreadable = not known and snapshot_id not in {
            one.info.snapshot_id for one in store.deleted()
        }
        if here_only and known:
            user_deletions.forget_in_all(self._data_dir, [snapshot_id])
        noted = [] if here_only else known
        for info in noted:
            # This comes first, so that no crash loses it. It is sent only after it became final.
            user_deletions.note_in_all(self._data_dir, info, time.time(), identity)
        seconds = self._undo_seconds if undo_seconds is None else undo_seconds
        until = store.mark_deleted(snapshot_id, seconds)
        for info in noted:
            # Again, with another time: until now the snapshot was listed, and the sender removes such a record as that of a deletion
            # that was undone.
            user_deletions.note_in_all(self._data_dir, info, time.time(), identity)
        if is_unreadable and not here_only:
            _log.warning(
                "no remote is told that snapshot %s was deleted: its manifest cannot be read",
                snapshot_id,
            )
        if not until.left:  # it was removed at once
            user_deletions.finish_in_all(self._data_dir, [snapshot_id], identity)
        return until

    def _undelete(self, snapshot_id: str) -> SnapshotInfo:
        store = self._machine.store
        info = store.undelete(snapshot_id)
        try:
            user_deletions.forget_in_all(self._data_dir, [snapshot_id], store.stubs.identity())
        except GpuCkptError as error:
            # The deletion never becomes final, so it is never sent.
            _log.warning("the record of a deletion that was undone stays: %s", error)
        return info

    def _purge_due(self) -> list[str]:
        """Record as final the deletions that can no longer be undone, and remove their snapshots; return the ids. Raises StoreError."""
        found = self._machine.deleted_snapshots()
        due = [one.info.snapshot_id for one in found if not one.annotations.kept.left]
        self._finish(due)
        gone = self._machine.store.purge()
        # These can no longer be undone since a moment ago.
        self._finish([one for one in gone if one not in due])
        return gone

    def _finish(self, ids: list[str]) -> None:
        if ids:
            identity = self._machine.store.stubs.identity()
            user_deletions.finish_in_all(self._data_dir, ids, identity)

    async def prune(self, policy: RetentionPolicy, *, dry_run: bool = False) -> PruneReport:
        """Remove the snapshots that `policy` does not keep, or only list them. Raises StoreError."""
        async with self._one_at_a_time:
            records, snapshots = await self._inventory.look()
            # A lost kernel could be resumed from the snapshot that its record names.
            needed = {record.snapshot_id for record in records} | needed_ids(
                records, snapshots
            ).keys()
            # Or an upload that takes longer than a few periodic saves would never be complete.
            needed |= self._uploading()
            living = {record.kernel_id for record in records}
            return await asyncio.to_thread(
                self._prune, policy, snapshots, needed, living, dry_run=dry_run
            )

    def after(self, job: Job, operation: RunningOperation) -> None:
        """Apply retention after an operation that made a snapshot, as soon as no operation runs."""
        if operation.state is OperationState.SUCCEEDED:
            self._wanted = job.retention or self._wanted
        idle = self._task is None or self._task.done()
        if self._wanted is not None and idle and not self._operations.any_running:
            self._task = asyncio.create_task(self._apply())

    async def close(self) -> None:
        """Wait for running removals; the next daemon removes snapshots that can still be undeleted now."""
        await self._purges.cancel()
        if self._task:
            await asyncio.wait({self._task})

    async def _apply(self) -> None:
        while self._wanted is not None:
            policy, self._wanted = self._wanted, None
            if policy.removes_nothing:
                continue
            try:
                await self.prune(policy)
            except GpuCkptError as error:
                _log.warning("no snapshots were removed: %s", error)
            except Exception:
                _log.exception("no snapshots were removed")

    async def _look_for_deleted(self) -> None:
        try:
            found = await asyncio.to_thread(self._machine.deleted_snapshots)
        except GpuCkptError as error:
            _log.warning("deleted snapshots stay for now: %s", error)
            return
        for one in found:
            self._purges.start(self._purge(one.annotations.kept))

    async def _purge(self, when: Deadline) -> None:
        await until(when)
        try:
            gone = await asyncio.to_thread(self._purge_due)
        except GpuCkptError as error:
            _log.warning("deleted snapshots stay for now: %s", error)
        else:
            self._on_deleted()
            if gone:
                _log.info("deleted for good: %s", ", ".join(gone))

    def _prune(
        self,
        policy: RetentionPolicy,
        snapshots: list[SnapshotInfo],
        needed: Collection[str],
        living: Collection[str],
        *,
        dry_run: bool,
    ) -> PruneReport:
        store = self._machine.store
        verdicts: list[Verdict] = retention.judge(
            snapshots,
            policy,
            needed=needed,
            living=living,
            scales=store.weights(),
            history=retention.History(int(_HISTORY_PART * store.free_bytes()), store.weights()),
        )
        gone = [verdict.snapshot.snapshot_id for verdict in verdicts if verdict.removed]
        if not gone:
            return PruneReport(verdicts)
        if dry_run:
            return PruneReport(verdicts, retention.would_free(verdicts, store.weights()))
        # A deletion that was undone, or whose snapshot has come back, must not count as the reason of this removal.
        user_deletions.forget_in_all(self._data_dir, gone)
        freed = store.delete(*gone)
        _log.info("retention removed %s; %.1f MB became free", ", ".join(gone), freed / 1e6)
        return PruneReport(verdicts, freed)
