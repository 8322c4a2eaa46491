"""Resumes and unparks that make room on the GPU by parking idle kernels of this server, the least recently used first.

So more notebooks can be open than fit on a GPU, and each is unparked for its next cell. Their CUDA contexts stay on the GPU at first,
because a park and an unpark are faster so; they are taken when their room is needed, or after a minute.

Kernels that need the GPU wait in one queue; while those that hold it compute, the first of the queue waits. A kernel that needs no
more than what is free may pass those that wait for more, but none of them more than a few times.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from ...errors import GpuCkptError, GpuFull
from ...wire import calls
from ...wire.protocol import OperationKind, Result
from ...wire.states import KernelState
from ..kernels.notebook_sessions import manager_of
from .idle import idle_kernels

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

    from ...wire.protocol import FilesChoice, Kernel, Operation
    from ...wire.protocol import GpuRoom as Room
    from ..kernels.daemon_link import DaemonLink
    from ..kernels.kernel_operations import ServerOperations
    from ..kernels.tracked_operations import Steps
    from ..messages.served_kernel import ServedKernel
    from .memory_room import MemoryClaim, MemoryRoom

#: Seconds between two searches for a kernel that holds GPU memory and is idle now.
_LOOK_SECONDS = 1.0
#: How often a waiting kernel may be passed by others.
_MOST_PASSES = 3
#: Contexts of parked kernels stay on the GPU if so much is free beside the kernel that comes back: its cells may take more memory.
_SPARE_BYTES = 4 << 30
#: How many seconds after a park a context stays on the GPU.
_CONTEXT_SECONDS = 60.0
#: How long no cell ran in a kernel that is parked for another one whose page has got the focus.
_UNUSED_SECONDS = 30.0
_ITS_TURN = "It waits for its turn on the GPU: another kernel is resumed first."


@dataclass(eq=False)
class _Waiting:
    """A kernel in the queue. `check`: raises an error if nobody wants the room any more."""

    kernel_id: str
    snapshot_id: str
    check: Callable[[], None]
    #: Whether no kernel could be parked for it when it was the first.
    is_short: bool = False
    passes: int = 0
    deadline: float = 0.0


class GpuRoom:
    """A queue of kernels that need room on the GPU, which is made by parking others.

    `wait_seconds`: how long the first of the queue waits for kernels that compute. `memory`: makes room in RAM before a resume; None:
    nothing does.
    """

    def __init__(
        self,
        link: DaemonLink,
        kernels: AsyncMappingKernelManager,
        operations: ServerOperations,
        memory: MemoryRoom | None,
        *,
        wait_seconds: float,
        log: logging.Logger,
    ) -> None:
        self._link, self._kernels, self._operations = link, kernels, operations
        self._memory = memory
        self._wait_seconds, self._log = wait_seconds, log
        #: In the order in which they came.
        self._queue: list[_Waiting] = []
        #: Held while room is looked for and until it is used; notified when the queue or the room has changed.
        self._turn = asyncio.Condition()

    async def resume(
        self,
        kernel_id: str,
        snapshot_id: str = "",
        *,
        take_over: bool = False,
        force: bool = False,
        files: FilesChoice = "",
    ) -> Operation:
        """Start resuming a suspended or parked kernel, after making room for it, on the GPU and in RAM, if it needs some.

        `take_over`: even if another machine runs its session. `force`: although its files changed (`FilesChanged`). `files`: as in
        `ResumeRequest`.
        """
        operations = self._operations
        served = operations.served(kernel_id)
        chosen = {"take_over": take_over, "force": force}
        begin = partial(operations.resume, kernel_id, snapshot_id, **chosen, files=files)
        needs_gpu = await self.is_needed(kernel_id, snapshot_id)
        memory = self._memory
        claim = await memory.claim(served, snapshot_id) if memory else None
        if not needs_gpu and (claim is None or claim.has_room):
            return await self._resume(begin, claim)

        async def work(steps: Steps) -> Result:
            async with AsyncExitStack() as rooms:
                if memory and claim:
                    rooms.callback(claim.end)
                    if not claim.has_room:
                        await memory.make(served, claim, steps.check)
                if needs_gpu:
                    await rooms.enter_async_context(self.made(kernel_id, snapshot_id, steps.check))
                return await steps.run(await begin())

        return operations.tracked.compose(OperationKind.RESUME, kernel_id, work)

    async def expect_cell(self, kernel_id: str) -> None:
        """Unpark a kernel whose page has got the focus, if its turn costs no other kernel anything.

        A kernel that a user has parked stays so until its next cell. Nothing is done while kernels wait for the GPU, and no kernel is
        parked for it that was used lately.
        """
        served = self._operations.served(kernel_id)
        if self._turn.locked() or self._queue or not served.is_parked_automatically:
            return
        if served.state is not KernelState.PARKED or served.is_wanted:
            return
        # Otherwise it would be the next to be parked.
        manager_of(self._kernels, kernel_id).last_activity = datetime.now(UTC)
        async with self._turn:
            try:
                coming = _Waiting(kernel_id, "", lambda: None)
                room = await self._park_others(coming, {}, unused_seconds=_UNUSED_SECONDS)
                if _fits(room):
                    await self._operations.finish(await self._operations.resume(kernel_id))
            finally:
                self._turn.notify_all()

    async def is_needed(self, kernel_id: str, snapshot_id: str) -> bool:
        """Return whether the kernel will need GPU memory when it is resumed."""
        return (await self._room(kernel_id, snapshot_id)).needed_bytes > 0

    @asynccontextmanager
    async def made(
        self, kernel_id: str, snapshot_id: str, check: Callable[[], None] = lambda: None
    ) -> AsyncIterator[None]:
        """Wait for room, then hold the queue for the resume inside the block. Raises GpuFull if there is no room in time.

        `check`: raises an error if nobody wants the room any more.
        """
        served = self._operations.served(kernel_id)
        waiting = _Waiting(kernel_id, snapshot_id, check)
        if self._queue or self._turn.locked():
            served.wait_for(_ITS_TURN)
        self._queue.append(waiting)
        try:
            async with self._turn:
                try:
                    while not await self._make(waiting):
                        with suppress(TimeoutError):
                            async with asyncio.timeout(_LOOK_SECONDS):
                                await self._turn.wait()
                    self._queue.remove(waiting)
                    check()
                    served.wait_for("")
                    yield
                finally:
                    self._turn.notify_all()
        finally:
            if waiting in self._queue:
                self._queue.remove(waiting)
            served.wait_for("")

    async def _resume(
        self, begin: Callable[[], Awaitable[Operation]], claim: MemoryClaim | None
    ) -> Operation:
        """Start a resume that has room; its claim ends with it."""
        try:
            started = await begin()
        except BaseException:
            if claim:
                claim.end()
            raise
        if claim:
            self._operations.spawn(self._end_after(claim, started))
        return started

    async def _end_after(self, claim: MemoryClaim, started: Operation) -> None:
        try:
            await self._operations.finish(started)
        finally:
            claim.end()

    async def _room(self, kernel_id: str, snapshot_id: str) -> Room:
        return await self._link.daemon.send(calls.gpu_room(kernel_id, snapshot_id))

    async def _make(self, waiting: _Waiting) -> bool:
        """Return whether a waiting kernel has room now; park others for the first of the queue. Raises GpuFull when its time is over."""
        waiting.check()
        before = self._queue[: self._queue.index(waiting)]
        if before:
            if not await self._may_pass(waiting, before):
                self._operations.served(waiting.kernel_id).wait_for(_ITS_TURN)
                return False
            for each in before:
                each.passes += 1
            return True
        now = asyncio.get_running_loop().time()
        waiting.deadline = waiting.deadline or now + self._wait_seconds
        #: The reasons why kernels could not be parked, by kernel id.
        refused: dict[str, str] = {}
        room = await self._park_others(waiting, refused)
        if _fits(room):
            return True
        text = (
            f"{room.needed_bytes / 1e9:.1f} GB of GPU memory are needed,"
            f" {room.free_bytes / 1e9:.1f} GB are free, and no other kernel of this server that holds some is idle."
        )
        if asyncio.get_running_loop().time() > waiting.deadline:
            raise GpuFull(
                text,
                hint="Wait for a computation to end, or suspend a kernel, then run the cell again.",
                details="\n".join(why for why in refused.values() if why),
            )
        waiting.is_short = True
        self._operations.served(waiting.kernel_id).wait_for(f"It waits for the GPU: {text}")
        return False

    async def _park_others(
        self, waiting: _Waiting, refused: dict[str, str], *, unused_seconds: float = 0.0
    ) -> Room:
        """Park idle kernels until a kernel has room, or none of them is left; return its room then.

        `unused_seconds`: only kernels in which no cell ran for so long.
        """
        while True:
            room = await self._room(waiting.kernel_id, waiting.snapshot_id)
            if _spare(room) >= _SPARE_BYTES:
                return room
            others = {waiting.kernel_id, *refused}
            chosen = await self._next_to_park(others, unused_seconds, contexts_only=_fits(room))
            if chosen is None:
                return room
            keep_contexts = _spare(room) + chosen.gpu_bytes >= _SPARE_BYTES
            reason = await self._park(chosen.kernel_id, keep_contexts=keep_contexts)
            if reason or not keep_contexts or chosen.state is KernelState.PARKED:
                refused[chosen.kernel_id] = reason  # there is nothing more to be had from it
            waiting.check()

    async def _may_pass(self, waiting: _Waiting, before: list[_Waiting]) -> bool:
        """Return whether a kernel has room now, and those before it have not and were not passed too often."""
        if not before[0].is_short or any(each.passes >= _MOST_PASSES for each in before):
            return False
        for each in before:
            if _fits(await self._room(each.kernel_id, each.snapshot_id)):
                return False
        return _fits(await self._room(waiting.kernel_id, waiting.snapshot_id))

    async def _next_to_park(
        self, others: Collection[str], unused_seconds: float, *, contexts_only: bool
    ) -> Kernel | None:
        """Return the least recently used idle kernel that is not one of `others`; None: there is none.

        Parked ones, of which only contexts are on the GPU, come last. `contexts_only`: none but these.
        """
        holding = {
            kernel.kernel_id: kernel
            for kernel in await self._operations.measured()
            if kernel.gpu_bytes and kernel.kernel_id not in others
        }
        idle = idle_kernels(
            self._kernels, self._operations, after_seconds=unused_seconds, parked_too=True
        )
        found = [holding[each] for each in idle if each in holding]
        parked = [each for each in found if each.state is KernelState.PARKED]
        running = [each for each in found if each.state is not KernelState.PARKED]
        return next(iter(parked if contexts_only else running + parked), None)

    async def _park(self, kernel_id: str, *, keep_contexts: bool) -> str:
        """Park a kernel; return the reason why it could not be parked, empty if it was. A parked one gives up its contexts."""
        served = self._operations.served(kernel_id)
        is_parked = served.state is KernelState.PARKED
        keep_contexts = keep_contexts and not is_parked
        is_automatic = served.is_parked_automatically or not is_parked
        self._log.info("kernel %s is parked to make room on the GPU", kernel_id)
        try:
            operation = await self._operations.park(
                kernel_id, keep_contexts=keep_contexts, is_automatic=is_automatic
            )
            ended = await self._operations.finish(operation)
        except GpuCkptError as error:
            return error.message
        if ended.error:
            return ended.error.message
        if keep_contexts:
            self._operations.spawn(self._park_contexts_later(served))
        return ""

    async def _park_contexts_later(self, served: ServedKernel) -> None:
        """Let a kernel give up its contexts, if it is parked for a while from now on."""
        parked = served.kernel
        await asyncio.sleep(_CONTEXT_SECONDS)
        now = served.kernel
        was_back = not now or not parked or now.since != parked.since
        if was_back or served.state is not KernelState.PARKED or served.is_wanted or served.waits:
            return
        if reason := await self._park(served.kernel_id, keep_contexts=False):
            self._log.info("kernel %s keeps its context: %s", served.kernel_id, reason)


def _spare(room: Room) -> int:
    return room.free_bytes - room.needed_bytes


def _fits(room: Room) -> bool:
    return _spare(room) >= 0
