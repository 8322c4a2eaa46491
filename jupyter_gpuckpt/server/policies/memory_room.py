"""Memory that is short: idle kernels of this server are suspended, the least recently used first, before Linux kills a process.

The memory of this machine counts, and the limits of the control groups in which kernels run. A suspend needs memory itself, so it
begins while there is some. Kernels that cannot be suspended run on, and others are tried. A kernel that is resumed gets room in the
same way.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from ... import calls
from ...errors import GpuCkptError
from ...model import Cause
from ..kernels.kernel_listener import KernelListener
from .idle import idle_kernels

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

    from ...protocol import MemoryUse
    from ..kernels.daemon_link import DaemonLink
    from ..kernels.operations import ServerOperations
    from ..messages.served_kernel import ServedKernel
    from .idle import IdleSuspends

#: The mean pause between two checks, in seconds. Pauses vary by half, so that not all servers of a machine act at once.
_LOOK_SECONDS = 2.0
#: A server that finds memory short waits for a random time up to this one and checks again: another server may have acted.
_JITTER_SECONDS = 2.0
#: How long a kernel must be idle: it is not suspended between two cells that run one after the other.
_IDLE_SECONDS = 5.0
#: The memory that must be free for a resume beside the kernel's own, as use varies meanwhile.
_RESUME_BYTES = 64 << 20
#: The memory that is kept free in any case: a suspend may need about half of it (`EngineSettings.headroom_bytes`).
_SUSPEND_BYTES = 256 << 20
#: The part of the time in which all processes wait for memory (PSI), in percent, from which on twice as much is kept free.
_STALLED_PERCENT = 10.0
#: How long a kernel that could not be suspended is left alone, in seconds.
_REST_SECONDS = 60.0


class MemoryRoom(KernelListener):
    """A timer that suspends idle kernels while more than the share `high` of some memory is in use, and a resume's maker of room."""

    def __init__(
        self,
        link: DaemonLink,
        kernels: AsyncMappingKernelManager,
        operations: ServerOperations,
        suspends: IdleSuspends,
        *,
        high: float,
        log: logging.Logger,
    ) -> None:
        self._link, self._kernels, self._operations = link, kernels, operations
        self._suspends, self._high, self._log = suspends, high, log
        #: Until when kernels that could not be suspended are left alone, by kernel id, in the event loop's time.
        self._rests_until: dict[str, float] = {}
        self._has_warned = False
        self._mutex = asyncio.Lock()

    def server_started(self) -> None:
        """Start checking the memory, until the server stops."""
        self._operations.spawn(self._run())

    async def is_needed(self, served: ServedKernel) -> bool:
        """Return whether the kernel needs more memory for its resume than is free."""
        needed_bytes = served.kernel.suspended_bytes if served.kernel else 0
        return needed_bytes > 0 and await self._free_bytes() < needed_bytes + _RESUME_BYTES

    async def make(self, served: ServedKernel, check: Callable[[], None]) -> None:
        """Suspend idle kernels until a kernel can be resumed or no other is idle; the resume itself fails then.

        `check`: raises an error if nobody wants the resume any more.
        """
        served.wait_for("It waits for memory: other kernels are suspended first.")
        try:
            async with self._mutex:
                while await self.is_needed(served):
                    check()
                    if not (kernel_id := await self._least_recently_used(after_seconds=0.0)):
                        return
                    self._log.info("kernel %s is suspended to make room in RAM", kernel_id)
                    await self._suspend(kernel_id)
                check()
        finally:
            served.wait_for("")

    async def _run(self) -> None:
        while not self._operations.stopping:
            await asyncio.sleep(_LOOK_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
            try:
                async with self._mutex:
                    await self._make_room()
            except GpuCkptError as error:  # the daemon is being replaced, for instance
                self._log.debug("the use of memory is not known: %s", error)
            except Exception:  # the next round tries again
                self._log.exception("No memory can be made free.")

    async def _make_room(self) -> None:
        while await self._shortage() and not self._operations.stopping:
            await asyncio.sleep(random.uniform(0.0, _JITTER_SECONDS))  # noqa: S311 - no secret
            if not (shortage := await self._shortage()):
                break
            if not (kernel_id := await self._least_recently_used(_IDLE_SECONDS)):
                if not self._has_warned:
                    self._log.warning("%s No idle kernel can be suspended.", shortage)
                self._has_warned = True
                return
            self._log.warning("%s The idle kernel %s is suspended.", shortage, kernel_id)
            await self._suspend(kernel_id)
        self._has_warned = False

    async def _shortage(self) -> str:
        uses = await self._link.daemon.send(calls.memory())
        return next((text for use in uses if (text := shortage(use, self._high))), "")

    async def _free_bytes(self) -> int:
        uses = await self._link.daemon.send(calls.memory())
        return min(use.free_bytes for use in uses)

    async def _least_recently_used(self, after_seconds: float) -> str:
        """Return the kernel to suspend next, which has been idle for so long; empty if there is none."""
        now = asyncio.get_running_loop().time()
        self._rests_until = {one: at for one, at in self._rests_until.items() if at > now}
        measured = await self._operations.measured()
        # A thread of the user's may use the GPU although no cell runs.
        computing = {kernel.kernel_id for kernel in measured if kernel.gpu_utilization}
        idle = idle_kernels(
            self._kernels, self._operations, after_seconds=after_seconds, parked_too=True
        )
        left_alone = computing | set(self._rests_until)
        return next((each for each in idle if each not in left_alone), "")

    async def _suspend(self, kernel_id: str) -> None:
        if why := await self._suspends.suspend(kernel_id, Cause.MEMORY):
            self._log.warning("Idle kernel %s runs on: %s", kernel_id, why)
            now = asyncio.get_running_loop().time()
            self._rests_until[kernel_id] = now + _REST_SECONDS


def shortage(use: MemoryUse, high: float) -> str:
    """Return a sentence if less memory is free than is kept free above the share `high`; else an empty text."""
    kept_free = max((1.0 - high) * use.total_bytes, min(_SUSPEND_BYTES, use.total_bytes / 4))
    if use.stalled_percent >= _STALLED_PERCENT:
        kept_free *= 2
    if use.free_bytes >= kept_free:
        return ""
    free, total = use.free_bytes / 1e9, use.total_bytes / 1e9
    return f"{use.name} is short of memory: {free:.2f} of {total:.2f} GB are free."
