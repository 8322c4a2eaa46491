"""Moves: a kernel is suspended and uploaded to a remote, so that another machine can go on with it.

A move is two operations of the daemon, a suspend and the move of the suspended kernel. If either fails, or the move is canceled, a
kernel that ran is resumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ... import calls
from ...errors import GpuCkptError, KernelStateConflict
from ...plurals import counted
from ...progress import ProgressRecord, Stage
from ...protocol import OperationKind
from ...remote_records import chosen
from ...states import ALIVE, KernelState

if TYPE_CHECKING:
    import logging

    from ...protocol import Operation, Result
    from ..messages.served_kernel import ServedKernel
    from .daemon_link import DaemonLink
    from .operations import Resume, ServerOperations
    from .tracked_operations import Steps


class Moves:
    """A starter of moves of kernels to remotes."""

    def __init__(
        self, link: DaemonLink, operations: ServerOperations, resume: Resume, log: logging.Logger
    ) -> None:
        self._link, self._operations, self._log = link, operations, log
        self._resume = resume
        #: The kernels that are being moved.
        self._moving: set[str] = set()

    async def move(self, kernel_id: str, remote: str = "") -> Operation:
        """Start moving a kernel to a remote, by default the only one.

        Raises RemoteNotFound, ConfigurationError if there is none or a choice, KernelStateConflict for a kernel that is lost or is
        being moved already.
        """
        served = self._operations.served(kernel_id)
        if served.state is KernelState.LOST:
            raise KernelStateConflict(
                "The kernel is lost, so there is nothing to move.",
                hint="Resume it from one of its snapshots first.",
            )
        known = await self._link.daemon.send(calls.remotes())
        name = chosen(remote, [one.name for one in known])
        if kernel_id in self._moving:
            raise KernelStateConflict("This kernel is being moved already.")
        self._moving.add(kernel_id)
        return self._operations.tracked.compose(
            OperationKind.MOVE, kernel_id, lambda steps: self._work(steps, served, name)
        )

    async def _work(self, steps: Steps, served: ServedKernel, remote: str) -> Result:
        daemon, kernel_id = self._link.daemon, served.kernel_id
        try:
            steps.note(ProgressRecord(Stage.PREFLIGHT))
            # A remote that cannot be used raises its error here, before anything is changed.
            await daemon.send(calls.far_sessions(remote))
            steps.check()
            ran = served.state in ALIVE
            try:
                if ran:
                    await steps.run(await self._operations.suspend(kernel_id))
                    steps.check()
                done = await steps.run(await self._operations.move(kernel_id, remote))
            except GpuCkptError as error:
                if ran:
                    await self._put_back(steps, served, error)
                raise
            others = await self._others(kernel_id)
            return msgspec.structs.replace(done, warnings=[*done.warnings, *others])
        finally:
            self._moving.discard(kernel_id)

    async def _put_back(self, steps: Steps, served: ServedKernel, error: GpuCkptError) -> None:
        """Resume a kernel that was suspended to be moved; add to the error's hint how it is now. Never raises."""
        if served.state is KernelState.SUSPENDED and not self._operations.stopping:
            try:
                started = await self._resume(served.kernel_id, "")
                await steps.run(started, can_cancel=False)
            except GpuCkptError as why:
                self._log.warning(
                    "kernel %s was not moved and is suspended: %s", served.kernel_id, why
                )
        now = "is suspended here" if served.state is KernelState.SUSPENDED else "runs on here"
        error.hint = f"{error.hint} The kernel was not moved and {now}.".strip()

    async def _others(self, kernel_id: str) -> list[str]:
        """Return a warning that other kernels run on this machine, which nobody has moved; empty if none do."""
        found = await self._operations.measured()
        count = sum(one.state in ALIVE and one.kernel_id != kernel_id for one in found)
        if not count:
            return []
        return [
            f"That holds for this kernel only: {counted(count, 'other kernel')} on this machine would end with it."
        ]
