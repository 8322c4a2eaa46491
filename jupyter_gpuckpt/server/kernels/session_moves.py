"""Moves: a kernel is suspended and uploaded to a remote, so that another machine can go on with it.

A move is two operations of the daemon, a suspend and the move of the suspended kernel. If either fails, or the move is canceled, a
kernel that ran is resumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...client import moving
from ...errors import KernelStateConflict
from ...wire import calls
from ...wire.plurals import counted
from ...wire.progress import ProgressRecord, Stage
from ...wire.protocol import OperationKind
from ...wire.remote_records import chosen
from ...wire.states import ALIVE, KernelState

if TYPE_CHECKING:
    from ...wire.protocol import Operation, Result
    from ..messages.served_kernel import ServedKernel
    from .daemon_link import DaemonLink
    from .kernel_operations import Resume, ServerOperations
    from .tracked_operations import Steps


class Moves:
    """A starter of moves of kernels to remotes."""

    def __init__(self, link: DaemonLink, operations: ServerOperations, resume: Resume) -> None:
        self._link, self._operations, self._resume = link, operations, resume
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
            await daemon.send(calls.remote_sessions(remote))
            done = await moving.move(
                _AsServer(self._operations, self._resume, steps, served, remote)
            )
            others = await self._others(kernel_id)
            return msgspec.structs.replace(done, warnings=[*done.warnings, *others])
        finally:
            self._moving.discard(kernel_id)

    async def _others(self, kernel_id: str) -> list[str]:
        """Return a warning that other kernels run on this machine, which nobody has moved; empty if none do."""
        found = await self._operations.measured()
        count = sum(one.state in ALIVE and one.kernel_id != kernel_id for one in found)
        if not count:
            return []
        return [
            f"Only this kernel was moved: {counted(count, 'other kernel')} on this machine would stop with it."
        ]


class _AsServer:
    """A `Mover` that suspends and resumes as a page's request would."""

    def __init__(
        self,
        operations: ServerOperations,
        resume: Resume,
        steps: Steps,
        served: ServedKernel,
        remote: str,
    ) -> None:
        self._operations, self._resume, self._steps = operations, resume, steps
        self._served, self._remote = served, remote

    async def state(self) -> KernelState:
        return self._served.state

    async def suspend(self) -> None:
        self._steps.check()
        await self._steps.run(await self._operations.suspend(self._served.kernel_id))

    async def move(self) -> Result:
        self._steps.check()
        started = await self._operations.move(self._served.kernel_id, self._remote)
        return await self._steps.run(started)

    async def resume(self) -> None:
        if not self._operations.stopping:
            started = await self._resume(self._served.kernel_id, "")
            await self._steps.run(started, can_cancel=False)
