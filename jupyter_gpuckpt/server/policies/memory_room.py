"""Memory that is short: idle kernels of this server are suspended, the least recently used first, before Linux kills a process.

The memory of this machine counts, and the limits of the control groups in which kernels run. A suspend needs memory itself, so it
begins while there is some. Kernels that cannot be suspended run on, and others are tried. A kernel that is resumed gets room in the
same way.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from ...errors import GpuCkptError
from ...wire import calls
from ...wire.manifest_records import Cause
from ..kernels.kernel_listener import KernelListener
from .idle import idle_kernels, is_long_ago

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable

    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

    from ...wire.protocol import Kernel, MemoryUse
    from ..kernels.daemon_link import DaemonLink
    from ..kernels.kernel_operations import ServerOperations
    from ..messages.served_kernel import ServedKernel
    from .idle import IdleSuspends

#: The mean pause between two checks, in seconds. Pauses vary by half, so that not all servers of a machine act at once.
_LOOK_SECONDS = 2.0
#: A server that finds memory short waits for a random time up to this one and checks again: another server may have acted.
_JITTER_SECONDS = 2.0
#: How long a kernel must be idle: it is not suspended between two cells that run one after the other. A resume waits as long for such a
#: kernel, and then suspends one that is idle for less.
_IDLE_SECONDS = 5.0
#: The memory that must be free for a resume beside the kernel's own, as use varies meanwhile.
_RESUME_BYTES = 64 << 20
#: The memory that is kept free in any case: a suspend may need about half of it (`EngineSettings.headroom_bytes`).
_SUSPEND_BYTES = 256 << 20
#: The part of the time in which all processes wait for memory (PSI), in percent, from which on twice as much is kept free.
_STALLED_PERCENT = 10.0
#: How long a kernel that could not be suspended is left alone, in seconds.
_REST_SECONDS = 60.0
#: How long no kernel is suspended for a shortage after a suspend that freed no memory, in seconds.
_USELESS_SECONDS = 10.0
#: The interval at which a resume that waits for memory looks again.
_PAUSE_SECONDS = 0.2
_WAITS_FOR_OTHERS = "It waits for memory: another kernel is suspended or resumed first."


class MemoryClaim:
    """The memory that a resume needs. `claims`: those of the resumes that have room, until each `end`."""

    def __init__(self, needed_bytes: int, claims: set[MemoryClaim]) -> None:
        self.needed_bytes, self._claims = needed_bytes, claims

    @property
    def has_room(self) -> bool:
        """Return whether there is room for it, which no other resume gets."""
        return not self.needed_bytes or self in self._claims

    def begin(self) -> None:
        """Count its memory as used from now on."""
        self._claims.add(self)

    def end(self) -> None:
        """No longer count its memory: the resume has ended, so the memory is in use, or not needed."""
        self._claims.discard(self)


class MemoryRoom(KernelListener):
    """A policy that suspends idle kernels while more than the share `high` of some memory is in use, and before resumes that lack some."""

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
        #: Until when no shortage is acted on, because a suspend did not help.
        self._pauses_until = 0.0
        self._has_warned = False
        #: Held while kernels are suspended. Nobody waits for it without looking whether that is still wanted.
        self._mutex = asyncio.Lock()
        self._claims: set[MemoryClaim] = set()

    def server_started(self) -> None:
        """Start checking the memory, until the server stops."""
        self._operations.spawn(self._run())

    async def claim(self, served: ServedKernel, snapshot_id: str = "") -> MemoryClaim:
        """Return the memory that the resume of a kernel needs; it has room if enough is free. The caller ends it."""
        kernel = served.kernel
        needed_bytes = kernel.suspended_bytes if kernel else 0
        if kernel and needed_bytes and snapshot_id not in {"", kernel.snapshot_id}:
            found = await self._operations.snapshots()
            sizes = (one.sizes.raw_bytes for one in found if one.snapshot_id == snapshot_id)
            needed_bytes = next(sizes, needed_bytes)
        claim = MemoryClaim(needed_bytes, self._claims)
        if needed_bytes:
            await self._lacking(claim)
        return claim

    async def make(
        self, served: ServedKernel, claim: MemoryClaim, check: Callable[[], None]
    ) -> None:
        """Suspend idle kernels until there is room for a resume; if there cannot be, suspend none: the resume itself fails then.

        `check`: raises an error if nobody wants the resume any more.
        """
        try:
            while self._mutex.locked():
                served.wait_for(_WAITS_FOR_OTHERS)
                check()
                await asyncio.sleep(_PAUSE_SECONDS)
            async with self._mutex:
                await self._make(served, claim, check)
            check()
        finally:
            served.wait_for("")
        claim.begin()

    async def _make(
        self, served: ServedKernel, claim: MemoryClaim, check: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _IDLE_SECONDS
        before: MemoryUse | None = None
        while lacking := await self._lacking(claim):
            check()
            use, lacking_bytes = lacking
            is_patient = loop.time() < deadline
            if self._claims and is_patient:
                # What the other resumes have taken already is counted twice until they end.
                served.wait_for(_WAITS_FOR_OTHERS)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if before is not None and use.free_bytes <= before.free_bytes:
                return  # the last suspend did not help
            measured = await self._operations.measured()
            idle = self._idle(measured, 0.0)
            # It must also be possible to suspend enough of them.
            if claim.needed_bytes > use.total_bytes or sum(idle.values()) < lacking_bytes:
                return
            served.wait_for("It waits for memory: other kernels are suspended first.")
            chosen = next(iter(self._idle(measured, _IDLE_SECONDS)), "")
            if not chosen and is_patient:
                # A kernel that was used a moment ago is likely to be used again.
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            kernel_id = chosen or next(iter(idle))
            self._log.info("kernel %s is suspended to make room in RAM", kernel_id)
            before = use if await self._suspend(kernel_id) else None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._operations.stopping:
            await asyncio.sleep(_LOOK_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
            if self._mutex.locked() or loop.time() < self._pauses_until:
                continue
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
            if not (use := await self._shortage()):
                break
            text = shortage(use, self._high)
            measured = await self._operations.measured()
            if not (kernel_id := next(iter(self._idle(measured, _IDLE_SECONDS)), "")):
                if not self._has_warned:
                    self._log.warning("%s No idle kernel can be suspended.", text)
                self._has_warned = True
                return
            self._log.warning("%s The idle kernel %s is suspended.", text, kernel_id)
            if await self._suspend(kernel_id) and not await self._has_grown(use):
                self._log.warning("%s The suspend of kernel %s freed none.", text, kernel_id)
                self._pauses_until = asyncio.get_running_loop().time() + _USELESS_SECONDS
                return
        self._has_warned = False

    async def _uses(self) -> list[MemoryUse]:
        return await self._link.daemon.send(calls.memory())

    async def _shortage(self) -> MemoryUse | None:
        """Return a memory that is short; None if none is."""
        return next((use for use in await self._uses() if shortage(use, self._high)), None)

    async def _has_grown(self, before: MemoryUse) -> bool:
        """Return whether more of this memory is free than before."""
        key = (before.name, before.total_bytes)
        same = (use for use in await self._uses() if (use.name, use.total_bytes) == key)
        return any(use.free_bytes > before.free_bytes for use in same)

    async def _lacking(self, claim: MemoryClaim) -> tuple[MemoryUse, int] | None:
        """Return the memory in which a resume lacks room, and how many bytes; if it has room, begin its claim and return None."""
        claims = set(self._claims)
        uses = await self._uses()
        # A claim that ended meanwhile may not be in `uses` yet.
        claimed_bytes = sum(one.needed_bytes for one in claims | self._claims)
        tightest = min(uses, key=lambda use: use.free_bytes)
        lacking_bytes = claim.needed_bytes + _RESUME_BYTES + claimed_bytes - tightest.free_bytes
        if lacking_bytes <= 0:
            claim.begin()
            return None
        return tightest, lacking_bytes

    def _idle(self, measured: Iterable[Kernel], after_seconds: float) -> dict[str, int]:
        """Return the memory of the kernels that can be suspended, by id, the least recently used first.

        `measured`: all kernels. `after_seconds`: how long ago their last cell must have ended, or their resume.
        """
        now = asyncio.get_running_loop().time()
        self._rests_until = {one: at for one, at in self._rests_until.items() if at > now}
        known = {kernel.kernel_id: kernel for kernel in measured}
        idle = idle_kernels(
            self._kernels, self._operations, after_seconds=after_seconds, parked_too=True
        )
        day = time.time()
        return {
            each: kernel.memory_bytes
            for each in idle
            if (kernel := known.get(each))
            and is_long_ago(day - kernel.since, after_seconds)
            # A thread of the user's may use the GPU although no cell runs.
            and not kernel.gpu_utilization
            and each not in self._rests_until
        }

    async def _suspend(self, kernel_id: str) -> bool:
        """Suspend a kernel; return whether it is suspended."""
        why = await self._suspends.suspend(kernel_id, Cause.MEMORY)
        if why:
            self._log.warning("Idle kernel %s runs on: %s", kernel_id, why)
            now = asyncio.get_running_loop().time()
            self._rests_until[kernel_id] = now + _REST_SECONDS
        return not why


def shortage(use: MemoryUse, high: float) -> str:
    """Return a sentence if less memory is free than is kept free above the share `high`; else an empty text."""
    kept_free = max((1.0 - high) * use.total_bytes, min(_SUSPEND_BYTES, use.total_bytes / 4))
    if use.stalled_percent >= _STALLED_PERCENT:
        kept_free *= 2
    if use.free_bytes >= kept_free:
        return ""
    free, total = use.free_bytes / 1e9, use.total_bytes / 1e9
    return f"{use.name} is short of memory: {free:.2f} of {total:.2f} GB are free."
