"""Suspends of many kernels within a deadline: for the stop of the server by the hub or a user, and before the machine goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ...batches.suspend_batch import SuspendOutcome, SuspendReport, no_time, not_saved, suspend_each
from ...errors import ErrorRecord, GpuCkptError, record_of
from ...wire.manifest_records import Cause
from ...wire.protocol import Kernel
from ...wire.states import KernelState

if TYPE_CHECKING:
    from ...wire.protocol import Operation
    from ...wire.snapshot_records import Snapshot
    from ..kernels.kernel_operations import ServerOperations

#: A function that sorts kernels for a suspend; its further arguments are all snapshots, newest first, and the remaining seconds.
Order = Callable[["Iterable[Kernel]", "list[Snapshot]", "float | None"], "list[Kernel]"]

_log = logging.getLogger(__name__)


def smallest_first(
    kernels: Iterable[Kernel], snapshots: list[Snapshot], within_seconds: float | None
) -> list[Kernel]:
    """Sort kernels by memory and GPU memory together, so that most notebooks are saved before a deadline. An `Order`."""
    return sorted(kernels, key=lambda kernel: kernel.memory_bytes + kernel.gpu_bytes)


async def suspend_all(
    operations: ServerOperations,
    kernel_ids: Iterable[str],
    within_seconds: float | None,
    cause: Cause = Cause.SHUTDOWN,
    begun: set[str] | None = None,
    order: Order = smallest_first,
) -> SuspendReport:
    """Suspend these kernels, wait for the end, and return the outcomes. Never raises.

    A few are suspended at a time, in this `order`. A suspend that is not complete `within_seconds` from now (None: no limit) is
    undone, and that kernel runs on under the daemon; this returns at most `suspend_batch.UNDO_SECONDS` later. Kernels that are
    already suspended count as saved. `begun`: the ids of suspends that the caller has begun for an earlier deadline, which are
    undone as well; more are added.
    """
    began = asyncio.get_running_loop().time()
    wanted = list(dict.fromkeys(kernel_ids))
    begun = set() if begun is None else begun
    try:
        async with asyncio.timeout(within_seconds):
            await operations.require_answer()
            known = {kernel.kernel_id: kernel for kernel in await operations.measured()}
            # Earlier snapshots show how fast suspends are, which matters only with a deadline.
            snapshots = await operations.snapshots() if within_seconds and len(wanted) > 1 else []
    except TimeoutError:
        report = _none_begun(
            operations, wanted, no_time("There was no time left to measure the kernels.")
        )
    except GpuCkptError as error:
        report = _none_begun(operations, wanted, record_of(error))
    except Exception as error:  # the server's stop must continue in any case
        _log.exception("the kernels' use of memory is not known")
        report = _none_begun(operations, wanted, record_of(error))
    else:
        decided, to_do = _sorted_out(operations, wanted, known)
        spent = asyncio.get_running_loop().time() - began
        left = None if within_seconds is None else max(0.0, within_seconds - spent)
        try:
            to_do = order(to_do, snapshots, left)
        except Exception:  # they must be suspended in any case
            _log.exception("kernels are suspended in any order")
        asked = _AsServer(operations, cause, begun)
        done = await suspend_each(to_do, asked, left, snapshots=snapshots, own=frozenset(begun))
        report = SuspendReport([*done, *decided], asyncio.get_running_loop().time() - began)
    for outcome in report.kernels:
        if outcome.error is not None:
            _log.error(
                "Kernel %s was not suspended: %s",
                outcome.kernel_id,
                outcome.error.message,
            )
    return report


def _none_begun(
    operations: ServerOperations, wanted: Iterable[str], why: ErrorRecord
) -> SuspendReport:
    """Return the report of a suspend that could not begin: only kernels that were suspended before are saved."""
    decided, left = _sorted_out(operations, wanted, {})
    return SuspendReport([*(not_saved(kernel, why) for kernel in left), *decided])


def _sorted_out(
    operations: ServerOperations, wanted: Iterable[str], known: dict[str, Kernel]
) -> tuple[list[SuspendOutcome], list[Kernel]]:
    """Return the outcomes of kernels that cannot or need not be suspended, and the remaining kernels."""
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
            decided.append(_suspended_before(kernel))
        elif kernel.state is KernelState.LOST and kernel.error is not None:
            decided.append(not_saved(kernel, kernel.error))
        else:
            to_do.append(kernel)
    return decided, to_do


def _suspended_before(kernel: Kernel) -> SuspendOutcome:
    return SuspendOutcome(
        kernel.kernel_id,
        kernel.name,
        saved=True,
        snapshot_id=kernel.snapshot_id,
        size_bytes=kernel.suspended_bytes,
        gpu_bytes=kernel.suspended_gpu_bytes,
        since=kernel.since,
    )


class _AsServer:
    """A `Suspender` that suspends as a page's request would: the kernel's output is kept, its gate is shut."""

    def __init__(self, operations: ServerOperations, cause: Cause, begun: set[str]) -> None:
        self._operations, self._cause, self._begun = operations, cause, begun

    async def begin(self, kernel_id: str) -> Operation:
        operation = await self._operations.suspend(kernel_id, cause=self._cause)
        self._begun.add(operation.operation_id)
        return operation

    async def finish(self, operation: Operation) -> Operation:
        return await self._operations.finish(operation)

    async def cancel(self, operation: Operation) -> None:
        await self._operations.cancel(operation.operation_id)
