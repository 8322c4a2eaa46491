"""Suspends of many kernels against a deadline: a few at a time, as many as are expected to end in time, in a given order.

Covers: what is tried when, what is cancelled at the deadline, what is said of each kernel. Does not cover: the order (each
door has its own rule) and how one suspend is asked for (`Suspender`: of the daemon, or as a server does it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from ..errors import ErrorRecord, GpuCkptError, KernelBusy, OperationCancelled, record_of
from ..model import SnapshotInfo
from ..protocol import Kernel, Operation, OperationState
from ..save_rates import FIXED_SECONDS, TELLING_BYTES, measured_rates

#: As many as the daemon works on; more would wait there, where they cannot be cancelled quickly.
AT_ONCE = 4
#: How long after the deadline operations have to undo what they did, in seconds.
UNDO_SECONDS = 10.0

#: What is expected of a machine of which nothing is known; and how much longer than expected a suspend may take.
_CAREFUL_BYTES_PER_SECOND, _MARGIN = 100e6, 1.25

_NO_TIME_HINT = "It runs on. Allow more time, or save big kernels earlier."


class SuspendOutcome(msgspec.Struct, frozen=True):
    """Result of one kernel when many were to be suspended. `error`: why it was not saved; it runs on then."""

    kernel_id: str
    name: str = ""
    saved: bool = False
    snapshot_id: str = ""
    #: Memory and GPU memory that it used.
    size_bytes: int = 0
    #: How long its suspend took; 0 for one that was suspended before.
    seconds: float = 0.0
    error: ErrorRecord | None = None


class SuspendReport(msgspec.Struct, frozen=True):
    """Results of a suspend of many kernels, in the order in which they were tried."""

    kernels: list[SuspendOutcome] = []
    seconds: float = 0.0

    @property
    def all_saved(self) -> bool:
        """Return whether every kernel is saved, so that nothing would be lost with this machine."""
        return all(outcome.saved for outcome in self.kernels)


class Suspender(Protocol):
    """Way to ask for one suspend: of the daemon, or as a server does it."""

    async def begin(self, kernel_id: str) -> Operation:
        """Start the suspend of a kernel; raise what refuses it."""

    async def finish(self, operation: Operation) -> Operation:
        """Wait for the end of the operation and return it."""

    async def cancel(self, operation: Operation) -> object:
        """Ask the operation to stop and undo what it did."""


async def suspend_each(
    kernels: Sequence[Kernel],
    suspender: Suspender,
    within_seconds: float | None,
    on_outcome: Callable[[SuspendOutcome], None] = lambda outcome: None,
    snapshots: Iterable[SnapshotInfo] = (),
) -> list[SuspendOutcome]:
    """Suspend these kernels in order, at most `AT_ONCE` at a time; return what became of each, in the same order.

    Beside others one is begun only where all are expected to end before the deadline, by the rate of those that have ended
    and else of earlier `snapshots`, newest first: suspends share the processors, and several that are half done are none.
    Never raises, and returns at most `UNDO_SECONDS` after the deadline (`within_seconds` from now; None: there is none).
    At the deadline what is not complete is cancelled: the kernel runs on, its outcome says so. An operation that somebody
    else had begun before is not cancelled, only waited for no longer.
    """
    if not kernels:
        return []
    batch = _Batch(kernels, suspender, within_seconds, min(measured_rates(snapshots), default=0.0))
    tasks = [asyncio.ensure_future(batch.suspend(kernel, on_outcome)) for kernel in kernels]
    limit = None if within_seconds is None else within_seconds + UNDO_SECONDS
    try:
        _, late = await asyncio.wait(tasks, timeout=limit)
    except asyncio.CancelledError:
        late = set(tasks)
        raise
    finally:
        for task in late:
            task.cancel()
    outcomes = []
    for kernel, task in zip(kernels, tasks, strict=True):
        if task in late:
            why = KernelBusy(
                "The deadline has passed, and its suspend has not come to an end yet.",
                hint="`jupyter gpuckpt ps` shows what becomes of it.",
            )
            outcomes.append(not_saved(kernel, record_of(why)))
        else:
            outcomes.append(task.result())
    return outcomes


def not_saved(kernel: Kernel, error: ErrorRecord) -> SuspendOutcome:
    """Return the outcome of a kernel that runs on."""
    return SuspendOutcome(kernel.kernel_id, kernel.name, size_bytes=_size(kernel), error=error)


def _size(kernel: Kernel) -> int:
    return kernel.memory_bytes + kernel.gpu_bytes


class _Queue:
    """Queue that decides which suspend begins when. `deadline`: of the event loop's clock; None: there is none.

    Time is counted in shares: of two suspends side by side each has half of the machine.
    """

    def __init__(
        self, kernels: Sequence[Kernel], deadline: float | None, bytes_per_second: float
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline, self._rate = deadline, bytes_per_second or _CAREFUL_BYTES_PER_SECOND
        self._waiting = {kernel.kernel_id: kernel for kernel in kernels}
        self._turns = {kernel.kernel_id: asyncio.Event() for kernel in kernels}
        #: Those that have begun, with `_shares` at that time.
        self._begun: dict[str, tuple[Kernel, float]] = {}
        self._shares, self._counted_until = 0.0, self._loop.time()
        #: Bytes and shares of those that have ended and are large enough to tell.
        self._ended_bytes, self._ended_shares = 0, 0.0
        self._admit()

    async def turn(self, kernel: Kernel) -> None:
        """Wait until the suspend of this kernel may begin; raise TimeoutError at the deadline."""
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._turns[kernel.kernel_id].wait()
        except TimeoutError:
            self._waiting.pop(kernel.kernel_id, None)
            raise

    def end(self, kernel: Kernel, *, saved: bool) -> None:
        """Note that a suspend has ended, and let the next ones begin."""
        self._count()
        _, began = self._begun.pop(kernel.kernel_id)
        if saved and _size(kernel) >= TELLING_BYTES:
            shares = self._shares - began
            self._ended_bytes += _size(kernel)
            self._ended_shares += max(shares - FIXED_SECONDS, shares / 2)
            self._rate = self._ended_bytes / self._ended_shares
        self._admit()

    def _admit(self) -> None:
        self._count()
        while (kernel := self._next()) is not None:
            del self._waiting[kernel.kernel_id]
            self._begun[kernel.kernel_id] = (kernel, self._shares)
            self._turns[kernel.kernel_id].set()

    def _next(self) -> Kernel | None:
        if len(self._begun) >= AT_ONCE:
            return None
        fitting = (kernel for kernel in self._waiting.values() if self._fits(kernel))
        # An estimate is no more than that: one that has the machine for itself is tried all the same.
        anyway = None if self._begun else next(iter(self._waiting.values()), None)
        return next(fitting, anyway)

    def _fits(self, kernel: Kernel) -> bool:
        if self._deadline is None:
            return True
        left = sum(
            max(0.0, self._cost(other) - (self._shares - began))
            for other, began in self._begun.values()
        )
        return self._loop.time() + left + self._cost(kernel) <= self._deadline

    def _cost(self, kernel: Kernel) -> float:
        return _MARGIN * (FIXED_SECONDS + _size(kernel) / self._rate)

    def _count(self) -> None:
        now = self._loop.time()
        if self._begun:
            self._shares += (now - self._counted_until) / len(self._begun)
        self._counted_until = now


class _Batch:
    def __init__(
        self,
        kernels: Sequence[Kernel],
        suspender: Suspender,
        within_seconds: float | None,
        bytes_per_second: float,
    ) -> None:
        now = asyncio.get_running_loop().time()
        self._deadline = None if within_seconds is None else now + within_seconds
        self._suspender = suspender
        self._queue = _Queue(kernels, self._deadline, bytes_per_second)
        self._of_others = {kernel.operation.operation_id for kernel in kernels if kernel.operation}

    async def suspend(
        self, kernel: Kernel, on_outcome: Callable[[SuspendOutcome], None]
    ) -> SuspendOutcome:
        try:
            await self._queue.turn(kernel)
        except TimeoutError:
            outcome = not_saved(kernel, no_time("There was no time left to begin with it."))
        else:
            saved = False
            try:
                began = asyncio.get_running_loop().time()
                outcome = self._outcome(kernel, await self._operate(kernel), began)
                saved = outcome.saved
            except Exception as error:  # whatever it is, it is this kernel's, and the others go on
                outcome = not_saved(kernel, record_of(error))
            finally:
                self._queue.end(kernel, saved=saved)
        on_outcome(outcome)
        return outcome

    async def _operate(self, kernel: Kernel) -> Operation:
        if self._is_late():
            raise _late("There was no time left to begin with it.")
        operation = await self._suspender.begin(kernel.kernel_id)
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._suspender.finish(operation)
        except TimeoutError:
            if operation.operation_id in self._of_others:
                raise _late("Somebody else's suspend of it is still under way.") from None
            await self._suspender.cancel(operation)
            return await self._suspender.finish(operation)

    def _outcome(self, kernel: Kernel, ended: Operation, began: float) -> SuspendOutcome:
        if ended.state is OperationState.CANCELLED and self._is_late():
            return not_saved(kernel, no_time("Its suspend was not complete in time and undone."))
        if ended.state is not OperationState.SUCCEEDED or ended.result is None:
            unknown = GpuCkptError(f"The operation ended in the state {ended.state}.")
            return not_saved(kernel, ended.error or record_of(unknown))
        return SuspendOutcome(
            kernel.kernel_id,
            kernel.name,
            saved=True,
            snapshot_id=ended.result.snapshot_id,
            size_bytes=_size(kernel),
            seconds=asyncio.get_running_loop().time() - began,
        )

    def _is_late(self) -> bool:
        now = asyncio.get_running_loop().time()
        return self._deadline is not None and now >= self._deadline


def _late(message: str) -> OperationCancelled:
    return OperationCancelled(message, hint=_NO_TIME_HINT)


def no_time(message: str) -> ErrorRecord:
    """Return why a kernel was not saved before the deadline."""
    return record_of(_late(message))
