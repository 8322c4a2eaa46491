"""Suspend many kernels against a deadline: a few at a time, in the order that is given.

Covers: what is tried when, what is cancelled at the deadline, what is said of each kernel. Does not cover: the order (each
door has its own rule) and how one suspend is asked for (`Suspender`: of the daemon, or as a server does it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from ..errors import ErrorRecord, GpuCkptError, KernelBusy, OperationCancelled, record_of
from ..protocol import Kernel, Operation, OperationState, SuspendOutcome

#: As many as the daemon works on; more would wait there, where they cannot be cancelled quickly.
AT_ONCE = 4
#: How long after the deadline operations have to undo what they did, in seconds.
UNDO_SECONDS = 10.0

_NO_TIME_HINT = "It runs on. Allow more time, or save big kernels earlier."


class Suspender(Protocol):
    """How a suspend is asked for."""

    async def begin(self, kernel_id: str) -> Operation:
        """Start it; raises what refuses it."""

    async def finish(self, operation: Operation) -> Operation:
        """The operation when it is over."""

    async def cancel(self, operation: Operation) -> object:
        """Ask it to stop and undo what it did."""


async def suspend_each(
    kernels: Sequence[Kernel],
    suspender: Suspender,
    within_seconds: float | None,
    on_outcome: Callable[[SuspendOutcome], None] = lambda outcome: None,
) -> list[SuspendOutcome]:
    """Suspend these kernels, the first ones first, `AT_ONCE` at a time; what became of each, in the same order.

    Never raises, and returns at most `UNDO_SECONDS` after the deadline (`within_seconds` from now; None: there is none).
    At the deadline what is not complete is cancelled: the kernel runs on, its outcome says so. An operation that somebody
    else had begun before is not cancelled, only waited for no longer.
    """
    if not kernels:
        return []
    batch = _Batch(kernels, suspender, within_seconds)
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
    """The outcome of a kernel that runs on."""
    size_bytes = kernel.memory_bytes + kernel.gpu_bytes
    return SuspendOutcome(kernel.kernel_id, kernel.name, size_bytes=size_bytes, error=error)


class _Batch:
    def __init__(
        self, kernels: Sequence[Kernel], suspender: Suspender, within_seconds: float | None
    ) -> None:
        now = asyncio.get_running_loop().time()
        self._deadline = None if within_seconds is None else now + within_seconds
        self._suspender = suspender
        self._room = asyncio.Semaphore(AT_ONCE)  # first come, first served
        self._of_others = {kernel.operation.operation_id for kernel in kernels if kernel.operation}

    async def suspend(
        self, kernel: Kernel, on_outcome: Callable[[SuspendOutcome], None]
    ) -> SuspendOutcome:
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._room.acquire()
        except TimeoutError:
            outcome = not_saved(kernel, no_time("There was no time left to begin with it."))
        else:
            try:
                began = asyncio.get_running_loop().time()
                outcome = self._outcome(kernel, await self._operate(kernel), began)
            except Exception as error:  # whatever it is, it is this kernel's, and the others go on
                outcome = not_saved(kernel, record_of(error))
            finally:
                self._room.release()
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
            size_bytes=kernel.memory_bytes + kernel.gpu_bytes,
            seconds=asyncio.get_running_loop().time() - began,
        )

    def _is_late(self) -> bool:
        now = asyncio.get_running_loop().time()
        return self._deadline is not None and now >= self._deadline


def _late(message: str) -> OperationCancelled:
    return OperationCancelled(message, hint=_NO_TIME_HINT)


def no_time(message: str) -> ErrorRecord:
    """Why a kernel was not saved before the deadline."""
    return record_of(_late(message))
