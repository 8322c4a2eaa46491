"""Suspends of many kernels within a deadline, smallest first: for the hub's stop and for the server's own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...client.batch import SuspendOutcome, SuspendReport, no_time, not_saved, suspend_each
from ...errors import ErrorRecord, GpuCkptError, record_of
from ...model import Cause
from ...protocol import Kernel
from ...states import KernelState

if TYPE_CHECKING:
    from ...protocol import Operation
    from ..kernels.operations import ServerOperations

_log = logging.getLogger(__name__)


async def suspend_all(
    operations: ServerOperations,
    kernel_ids: Iterable[str],
    within_seconds: float | None,
    cause: Cause = Cause.SHUTDOWN,
) -> SuspendReport:
    """Suspend these kernels, wait for it, and return what became of each. Never raises.

    A few are suspended at a time, the smallest first by memory and GPU memory, so that most notebooks are saved before the
    time is up. A suspend that is not complete `within_seconds` from now (None: as long as it takes) is undone, and that
    kernel runs on under the daemon; this returns at most `batch.UNDO_SECONDS` later. Kernels that are suspended already count
    as saved.
    """
    began = asyncio.get_running_loop().time()
    wanted = list(dict.fromkeys(kernel_ids))
    try:
        async with asyncio.timeout(within_seconds):
            known = {kernel.kernel_id: kernel for kernel in await operations.measured()}
            # They show how fast suspends are, which matters only where there is a deadline.
            snapshots = await operations.snapshots() if within_seconds and len(wanted) > 1 else []
    except TimeoutError:
        report = _none_saved(wanted, no_time("There was no time left to ask what the kernels use."))
    except GpuCkptError as error:
        report = _none_saved(wanted, record_of(error))
    except Exception as error:  # a stop of the server must go on whatever happens here
        _log.exception("what the kernels use is not known")
        report = _none_saved(wanted, record_of(error))
    else:
        decided, to_do = _sorted_out(operations, wanted, known)
        spent = asyncio.get_running_loop().time() - began
        left = None if within_seconds is None else max(0.0, within_seconds - spent)
        asked = _AsServer(operations, cause)
        done = await suspend_each(smallest_first(to_do), asked, left, snapshots=snapshots)
        report = SuspendReport([*done, *decided], asyncio.get_running_loop().time() - began)
    for outcome in report.kernels:
        if outcome.error is not None:
            _log.error(
                "Kernel %s runs on, it was not suspended: %s",
                outcome.kernel_id,
                outcome.error.message,
            )
    return report


def _none_saved(kernel_ids: Iterable[str], why: ErrorRecord) -> SuspendReport:
    return SuspendReport([SuspendOutcome(kernel_id, error=why) for kernel_id in kernel_ids])


def smallest_first(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Sort kernels by memory and GPU memory together."""
    return sorted(kernels, key=lambda kernel: kernel.memory_bytes + kernel.gpu_bytes)


def _sorted_out(
    operations: ServerOperations, wanted: Iterable[str], known: dict[str, Kernel]
) -> tuple[list[SuspendOutcome], list[Kernel]]:
    """Return the outcomes of those for which nothing can or need be done, and the others."""
    decided: list[SuspendOutcome] = []
    to_do: list[Kernel] = []
    for kernel_id in wanted:
        try:
            served = operations.served(kernel_id)
        except GpuCkptError as error:
            decided.append(SuspendOutcome(kernel_id, error=record_of(error)))
            continue
        kernel = known.get(kernel_id) or served.kernel
        if kernel is None:
            continue  # `served` raises then
        if kernel.state is KernelState.SUSPENDED:
            decided.append(
                SuspendOutcome(kernel_id, kernel.name, saved=True, snapshot_id=kernel.snapshot_id)
            )
        elif kernel.state is KernelState.LOST and kernel.error is not None:
            decided.append(not_saved(kernel, kernel.error))
        else:
            to_do.append(kernel)
    return decided, to_do


class _AsServer:
    """`Suspender` that suspends as a page would: the kernel's output is kept, its gate is shut."""

    def __init__(self, operations: ServerOperations, cause: Cause) -> None:
        self._operations, self._cause = operations, cause

    async def begin(self, kernel_id: str) -> Operation:
        return await self._operations.suspend(kernel_id, cause=self._cause)

    async def finish(self, operation: Operation) -> Operation:
        return await self._operations.finish(operation)

    async def cancel(self, operation: Operation) -> None:
        await self._operations.cancel(operation.operation_id)
