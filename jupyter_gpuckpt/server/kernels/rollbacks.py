"""Rollbacks: a kernel is resumed from one of its older snapshots, after its current state was saved in a new one.

A rollback is two operations of the daemon, and nothing is lost if only the first succeeds: then the kernel is suspended with
its present state, from which it is resumed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...errors import (
    ConfigurationError,
    FilesChanged,
    GpuCkptError,
    HostIncompatible,
    KernelStateConflict,
)
from ...wire import calls
from ...wire.manifest_records import Cause
from ...wire.protocol import FilesChoice, OperationKind, Result
from ...wire.snapshot_records import Change, PruneRequest
from ...wire.states import KernelState
from ...wire.tool_branches import is_branch_of

if TYPE_CHECKING:
    import logging
    from collections.abc import Awaitable, Callable

    from ...wire.protocol import Operation
    from ..messages.served_kernel import ServedKernel
    from .daemon_link import DaemonLink
    from .kernel_operations import Resume, ServerOperations
    from .tracked_operations import Steps


class Rollbacks:
    """A starter of rollbacks of kernels to older snapshots."""

    def __init__(
        self, link: DaemonLink, operations: ServerOperations, resume: Resume, log: logging.Logger
    ) -> None:
        self._link, self._operations, self._log = link, operations, log
        self._resume = resume

    async def roll_back(
        self,
        kernel_id: str,
        snapshot_id: str,
        *,
        force: bool = False,
        cause: Cause = Cause.ROLLBACK,
        files: FilesChoice = "",
    ) -> Operation:
        """Start a rollback to a snapshot. A suspended kernel is just resumed from it: its current state is saved.

        `cause`: why its current state is saved, a person's restore or a tool's. `files`: as in `wire.protocol.ResumeRequest`.

        Raises KernelStateConflict while a cell runs, SnapshotNotFound, ConfigurationError for another kernel's snapshot,
        HostIncompatible where it could not be resumed, and FilesChanged, unless `force`, for files with which it would end or do harm; then
        the kernel was not touched.
        """
        served = self._operations.served(kernel_id)
        is_branch = await self._check(served, snapshot_id, force=force, with_files=bool(files))
        resume = partial(self._resume, kernel_id, snapshot_id, force=force, files=files)
        if served.state in {KernelState.SUSPENDED, KernelState.LOST}:
            served.is_new_branch = is_branch
            now = served.kernel.snapshot_id if served.kernel else ""
            served.before_tool = now if cause is Cause.TOOL else ""
            return await resume()
        if served.output.runs_cell:
            raise KernelStateConflict(
                "A cell is running.",
                hint="Wait until it ends or interrupt it, then restore the snapshot.",
            )
        if served.is_rolling_back:
            raise KernelStateConflict("A snapshot of this kernel is being restored already.")
        end = served.roll_back()
        return self._operations.tracked.compose(
            OperationKind.ROLL_BACK,
            kernel_id,
            lambda steps: self._work(
                steps, served, resume, end, cause, is_branch=is_branch, with_files=bool(files)
            ),
        )

    async def _check(
        self, served: ServedKernel, snapshot_id: str, *, force: bool, with_files: bool
    ) -> bool:
        """Raise an error if the kernel cannot go back to a snapshot; return whether that is of a tool's branch of it."""
        daemon = self._link.daemon
        launch = await daemon.send(calls.launch_spec(snapshot_id))
        parent = served.kernel.parent_snapshot_id if served.kernel else ""
        is_own = launch.kernel_id == served.kernel_id or snapshot_id == parent
        is_branch = is_branch_of(str(launch.jupyter.get("path", "")), served.kernel_id)
        if not is_own and not is_branch:
            raise ConfigurationError(
                f"Snapshot {snapshot_id} does not belong to this kernel.",
                hint="Start a branch of it, with a notebook of its own.",
            )
        found = await daemon.send(calls.changes(snapshot_id, files=with_files))
        if found.obstacles:
            raise HostIncompatible(
                "The snapshot cannot be restored here now. " + " ".join(found.obstacles),
                hint="Undo these changes first. The kernel was not touched.",
            )
        forced = {Change.MISSING, Change.TOO_SHORT, Change.IN_TRANSACTION}
        changed = [file.path for file in found.files if file.change in forced]
        if changed and not force:
            raise FilesChanged(
                "Files have changed, and the kernel would end or do harm when it goes on with them:"
                f" {', '.join(changed)}.",
                hint="Put them back as they were, or restore the snapshot all the same (`force`). The kernel was not touched.",
            )
        return is_branch and not is_own

    async def _work(
        self,
        steps: Steps,
        served: ServedKernel,
        resume: Callable[[], Awaitable[Operation]],
        end: Callable[[], None],
        cause: Cause,
        *,
        is_branch: bool,
        with_files: bool,
    ) -> Result:
        operations, kernel_id = self._operations, served.kernel_id
        try:
            # The snapshot to which it goes back may be the oldest that is kept, so retention does not run before it is resumed.
            suspended = await operations.suspend(
                kernel_id, cause=cause, removes=False, with_files=with_files
            )
            kept = await steps.run(suspended)
            try:
                steps.check()
                # The branch may still run: this kernel must not go on in the same history.
                served.is_new_branch = is_branch
                result = await steps.run(await resume())
                served.before_tool = kept.snapshot_id if cause is Cause.TOOL else ""
            except Exception:
                served.is_new_branch = False
                self._log.warning(
                    "kernel %s could not be rolled back; its former state is resumed", kernel_id
                )
                before = await self._resume(kernel_id, kept.snapshot_id)
                await steps.run(before, can_cancel=False)
                raise
        finally:
            end()
        if cause is Cause.TOOL:  # a person's restores are few, and the next save runs retention
            await self._thin()
        return result

    async def _thin(self) -> None:
        """Remove the snapshots that no rule keeps. Never raises: the next save does so, too."""
        try:
            await self._link.daemon.send(calls.prune(PruneRequest(self._operations.retention)))
        except GpuCkptError as error:
            self._log.warning("snapshots that no rule keeps were not removed: %s", error)
