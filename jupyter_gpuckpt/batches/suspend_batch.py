"""Suspends of many kernels before a deadline: a few at a time, as many as are expected to end in time, in a given order.

Covers: the schedule, the cancellation at the deadline, the outcome of each kernel. Does not cover: the order (the server and the
command line have their own rules) and how one suspend is requested (`Suspender`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

import msgspec

from ..errors import ErrorRecord, GpuCkptError, KernelBusy, OperationCancelled, record_of
from ..wire.manifest_records import SnapshotInfo
from ..wire.protocol import Kernel, Operation, OperationState
from .save_rates import FIXED_SECONDS, TELLING_BYTES, measured_rates

#: The number of concurrent suspends, equal to the daemon's: more would wait there, where they cannot be canceled quickly.
AT_ONCE = 4
#: The time after the deadline that operations have to undo what they did, in seconds.
UNDO_SECONDS = 10.0

#: The rate assumed for an unknown machine, and the factor by which a suspend may exceed its estimate.
_CAREFUL_BYTES_PER_SECOND, _MARGIN = 100e6, 1.25

_NO_TIME_HINT = "It runs on. Allow more time, or save big kernels earlier."


class SuspendOutcome(msgspec.Struct, frozen=True):
    """The result of one kernel in a suspend of many. `error`: the reason why it was not saved; it then runs on, unless it was lost."""

    kernel_id: str
    name: str = ""
    saved: bool = False
    snapshot_id: str = ""
    #: The memory and GPU memory that it used together, and the GPU memory.
    size_bytes: int = 0
    gpu_bytes: int = 0
    #: When it was suspended (seconds since the epoch); 0: it was not.
    since: float = 0.0
    #: The duration of its suspend; 0 for a kernel that was suspended before.
    seconds: float = 0.0
    error: ErrorRecord | None = None


class SuspendReport(msgspec.Struct, frozen=True):
    """The results of a suspend of many kernels, in the order in which they were tried."""

    kernels: list[SuspendOutcome] = []
    seconds: float = 0.0

    @property
    def all_saved(self) -> bool:
        """Return whether every kernel is saved, so that nothing would be lost with this machine."""
        return all(outcome.saved for outcome in self.kernels)


class Suspender(Protocol):
    """An interface for requesting one suspend: from the daemon directly, or through a server's operations."""

    async def begin(self, kernel_id: str) -> Operation:
        """Start the suspend of a kernel; raise GpuCkptError if it is refused."""

    async def finish(self, operation: Operation) -> Operation:
        """Wait for the end of the operation and return it."""

    async def cancel(self, operation: Operation) -> object:
        """Ask the operation to stop and undo its work."""


async def suspend_each(
    kernels: Sequence[Kernel],
    suspender: Suspender,
    within_seconds: float | None,
    on_outcome: Callable[[SuspendOutcome], None] = lambda outcome: None,
    snapshots: Iterable[SnapshotInfo] = (),
    own: Collection[str] = (),
) -> list[SuspendOutcome]:
    """Suspend these kernels in order, at most `AT_ONCE` at a time; return the outcomes in the same order.

    A suspend is started beside others only if all are expected to end before the deadline, by the rate of those that have
    ended, else of earlier `snapshots`, newest first: suspends share the CPUs, and half-done ones save nothing. It never raises,
    and returns at most `UNDO_SECONDS` after the deadline (`within_seconds` from now; None: none). At the deadline incomplete
    suspends are canceled; their kernels run on, with an error as the outcome. An operation that another client had started
    is not canceled; the function only stops waiting for it. `own`: the ids of operations that the caller has started before.
    """
    if not kernels:
        return []
    rate = min(measured_rates(snapshots), default=0.0)
    batch = _Batch(kernels, suspender, within_seconds, rate, own)
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
                "The deadline has passed, and its suspend has not ended yet.",
                hint="It may still be saved.",
                command="`jupyter gpuckpt ps` shows its outcome.",
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
    """A queue that decides which suspend begins when. `deadline`: of the event loop's clock; None: there is none.

    Time is counted in shares: each of two concurrent suspends has half of the machine.
    """

    def __init__(
        self, kernels: Sequence[Kernel], deadline: float | None, bytes_per_second: float
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline, self._rate = deadline, bytes_per_second or _CAREFUL_BYTES_PER_SECOND
        self._waiting = {kernel.kernel_id: kernel for kernel in kernels}
        self._turns = {kernel.kernel_id: asyncio.Event() for kernel in kernels}
        #: The kernels whose suspend has begun, with `_shares` at that time.
        self._begun: dict[str, tuple[Kernel, float]] = {}
        self._shares, self._counted_until = 0.0, self._loop.time()
        #: Bytes and shares of ended suspends that are large enough to measure a rate.
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
        """Record that a suspend has ended, and let the next ones begin."""
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
        # Estimates may be wrong: if nothing runs, the first is tried in any case.
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
        own: Collection[str],
    ) -> None:
        now = asyncio.get_running_loop().time()
        self._deadline = None if within_seconds is None else now + within_seconds
        self._suspender = suspender
        self._queue = _Queue(kernels, self._deadline, bytes_per_second)
        running = {kernel.operation.operation_id for kernel in kernels if kernel.operation}
        self._of_others = running.difference(own)

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
            except Exception as error:  # any error concerns this kernel only; the others continue
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
                raise _late("Another client's suspend of it is still running.") from None
            await self._suspender.cancel(operation)
            return await self._suspender.finish(operation)

    def _outcome(self, kernel: Kernel, ended: Operation, began: float) -> SuspendOutcome:
        if ended.state is OperationState.CANCELLED and self._is_late():
            return not_saved(
                kernel, no_time("Its suspend was not complete in time and was undone.")
            )
        if ended.state is not OperationState.SUCCEEDED or ended.result is None:
            unknown = GpuCkptError(f"The operation ended in the state {ended.state}.")
            return not_saved(kernel, ended.error or record_of(unknown))
        return SuspendOutcome(
            kernel.kernel_id,
            kernel.name,
            saved=True,
            snapshot_id=ended.result.snapshot_id,
            size_bytes=_size(kernel),
            gpu_bytes=kernel.gpu_bytes,
            since=time.time(),
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
