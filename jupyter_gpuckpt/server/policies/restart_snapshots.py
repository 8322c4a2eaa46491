"""Restart snapshots: saves of kernels just before a restart, so that the restart can be undone."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from ... import calls
from ...errors import GpuCkptError
from ...manifest_records import Cause
from ...states import KernelState
from ..kernels.kernel_listener import KernelListener

if TYPE_CHECKING:
    import logging

    from ..kernels.daemon_link import DaemonLink
    from ..kernels.operations import ServerOperations


class RestartSnapshots(KernelListener):
    """A policy that saves a kernel before a restart and keeps the last of these snapshots.

    `within_seconds`: how long a restart waits for the save.
    """

    def __init__(
        self,
        link: DaemonLink,
        operations: ServerOperations,
        *,
        within_seconds: float,
        log: logging.Logger,
    ) -> None:
        self._link, self._operations = link, operations
        self._within_seconds, self._log = within_seconds, log

    async def before_restart(self, kernel_id: str) -> None:
        """Save a kernel, unless that takes too long. Never raises: the user wants a fresh kernel in any case."""
        served = self._link.served.get(kernel_id)
        if served is None or served.kernel is None:
            return
        before, served.before_restart = served.before_restart, ""
        if not served.changed and served.state in {KernelState.RUNNING, KernelState.SUSPENDED}:
            # The last snapshot suffices. A kernel without one has run nothing since the restart before this one.
            served.before_restart = served.kernel.snapshot_id or before
            return
        if served.state is not KernelState.RUNNING:
            return
        begun = None
        try:
            async with asyncio.timeout(self._within_seconds):
                begun = await self._operations.save(kernel_id, cause=Cause.RESTART)
                kept = await self._operations.tracked.result(begun)
            served.before_restart = kept.snapshot_id
            self._operations.spawn(self._drop_others(kernel_id, kept.snapshot_id))
        except TimeoutError:
            self._log.info(
                "kernel %s is restarted without a snapshot: it would take too long", kernel_id
            )
            if begun is not None:
                with suppress(GpuCkptError):
                    await self._operations.cancel(begun.operation_id)
                    await self._operations.finish(begun)
        except GpuCkptError as error:
            self._log.info("kernel %s is restarted without a snapshot: %s", kernel_id, error)

    async def _drop_others(self, kernel_id: str, kept: str) -> None:
        """Delete the snapshots of earlier restarts: they may be frequent, and no user requested them."""
        daemon = self._link.daemon
        with suppress(GpuCkptError):
            for info in await daemon.send(calls.snapshots(kernel_id)):
                if info.cause is Cause.RESTART and not info.pinned and info.snapshot_id != kept:
                    await daemon.send(calls.delete_snapshot(info.snapshot_id, here_only=True))
