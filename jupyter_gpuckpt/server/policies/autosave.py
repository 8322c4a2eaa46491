"""Autosave: periodic saves of the kernels that have changed since their last snapshot, which run on meanwhile.

A kernel counts as changed when
 * a cell runs or waits in it, or it has published anything since then, for instance the end of a cell or output of a thread.
   Answers to requests that change nothing, such as completions, do not count. Only this server's own saves are known, so a save
   from the command line may be followed by one that stores next to nothing.
 * it publishes nothing, but its processes have used the CPU (`_WORKING`), for instance in threads that a cell has left behind. A
   thread that uses less is missed until the next cell, and a completion that takes long is mistaken for a change.

A save of the changed kernel is complete `lose_at_most` after the change was seen, so that is the most that can be lost. A save has a
cost: the kernel stands still, and a processor computes. Where both cannot be had, the cost (`client/save_costs.py`) decides how often a
kernel is saved, and users are told how soon that is. One kernel is saved at a time, with pauses in between. A kernel in another
operation is left alone, and explicit requests come first (`before_freeze`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from ...client.save_costs import SaveCost
from ...errors import (
    GpuCkptError,
    KernelBusy,
    KernelNotFound,
    KernelStateConflict,
    OperationCancelled,
)
from ...wire.manifest_records import Cause
from ...wire.states import KernelState
from ..kernels.kernel_listener import KernelListener

if TYPE_CHECKING:
    from ...wire.protocol import Operation
    from ..kernels.kernel_list import KernelList
    from ..kernels.kernel_operations import ServerOperations
    from ..messages.served_kernel import ServedKernel

#: A kernel that publishes nothing counts as working above this share of one CPU and this many CPU seconds.
_WORKING, _WORKING_SECONDS = 0.01, 0.5
#: The checks of the kernels per interval, and the shortest and longest pause between two checks, in seconds.
_LOOKS, _SHORTEST_LOOK, _LONGEST_LOOK = 10, 0.1, 15.0
#: The longest pause between the saves of two kernels, in seconds.
_LONGEST_PAUSE = 1.0
#: Errors that are not logged as warnings: another operation came first, or the save was canceled.
_QUIET = (KernelBusy, KernelNotFound, KernelStateConflict, OperationCancelled)


@dataclass
class _Watched:
    """The state of autosave for a kernel since its last start. Times are the event loop's."""

    served: ServedKernel
    incarnation: str
    saves: int
    #: The CPU time of its processes at its last snapshot, and the time of that measurement.
    worked_seconds: float
    measured_at: float
    #: The last time at which it was seen unchanged: since then it may have changed.
    unchanged_at: float
    changed_at: float | None = None


class Autosave(KernelListener):
    """A timer that saves changed kernels periodically. Used on the event loop.

    `wanted_seconds`: the age of the oldest change that may be lost. `share`: the largest share of a processor that saves of a kernel may
    use.
    """

    def __init__(
        self,
        operations: ServerOperations,
        kernels: KernelList,
        *,
        wanted_seconds: float,
        share: float,
        log: logging.Logger,
    ) -> None:
        self._operations, self._kernels = operations, kernels
        self._wanted_seconds, self._share, self._log = wanted_seconds, share, log
        self._watched: dict[str, _Watched] = {}
        self._looked_at: dict[str, float] = {}
        self._costs: dict[str, SaveCost] = {}
        #: When a kernel may be saved again, on the event loop's clock.
        self._rest_until: dict[str, float] = {}
        #: The reason of a kernel's last failure, by kernel id; it is logged again only when it changes.
        self._failures: dict[str, str] = {}
        self._saving: str = ""
        self._operation: Operation | None = None
        self._unwanted = False
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def server_started(self) -> None:
        """Start the rounds; the first save is due an interval after the first change."""
        self._task = asyncio.ensure_future(self._run())

    async def server_stops(self) -> None:
        """Stop the rounds and cancel a running save. Never raises."""
        if self._task is not None:
            await self.before_freeze(self._saving)
            self._task.cancel()
            await asyncio.wait({self._task})

    async def before_interrupt(self, kernel_id: str) -> None:
        """Cancel a running save: the daemon would deliver the interrupt only after it, which may take minutes."""
        await self.before_freeze(kernel_id)

    async def before_freeze(self, kernel_id: str) -> None:
        """Cancel a running save and wait for its end; chunks that it has stored serve the next one. Never raises."""
        while self._saving and self._saving == kernel_id:
            self._unwanted = True
            await self._cancel()
            await self._over.wait()

    async def _run(self) -> None:
        pause = min(max(self._wanted_seconds / _LOOKS, _SHORTEST_LOOK), _LONGEST_LOOK)
        while not self._operations.stopping:
            await asyncio.sleep(pause)
            try:
                await self._round()
            except Exception:  # the next round tries again
                self._log.exception("The periodic save of kernels failed.")

    async def _round(self) -> None:
        kernel_ids = self._kernels.ids()
        for known in (
            self._watched,
            self._looked_at,
            self._costs,
            self._rest_until,
            self._failures,
        ):
            for kernel_id in set(known) - set(kernel_ids):
                del known[kernel_id]
        for kernel_id in kernel_ids:
            await self._look(kernel_id)
        due = sorted((self._due_at(kernel_id), kernel_id) for kernel_id in self._watched)
        for at, kernel_id in due:
            if at > self._now() or self._operations.stopping:
                return
            # Time has passed since the last check.
            await self._look(kernel_id)
            watched = self._watched.get(kernel_id)
            if watched is not None and self._due_at(kernel_id) <= self._now():
                await self._save(kernel_id, watched)
                await asyncio.sleep(min(self._wanted_seconds / (2 * len(due)), _LONGEST_PAUSE))

    def _due_at(self, kernel_id: str) -> float:
        changed_at = self._watched[kernel_id].changed_at
        if changed_at is None:
            return float("inf")
        # A save counts when it is complete.
        lead = min(self._cost(kernel_id).seconds, self._wanted_seconds)
        begin = changed_at + self._wanted_seconds - lead
        return max(begin, self._rest_until.get(kernel_id, 0.0))

    def _cost(self, kernel_id: str) -> SaveCost:
        return self._costs.get(kernel_id, SaveCost())

    def _given_seconds(self, kernel_id: str) -> float:
        """Return how soon after a change a save of a kernel is complete."""
        cost = self._cost(kernel_id)
        return max(self._wanted_seconds, cost.least_seconds(self._share) + cost.seconds)

    async def _look(self, kernel_id: str) -> None:
        """Record whether a kernel has changed; drop one that cannot be saved now, until it can."""
        looked_at = self._now()
        looked_before = self._looked_at.get(kernel_id, looked_at)
        self._looked_at[kernel_id] = looked_at
        try:
            served = self._operations.served(kernel_id)
        except GpuCkptError:  # not under the engine, or just being started
            self._watched.pop(kernel_id, None)
            return
        if served.state is not KernelState.RUNNING or not served.gate_is_open:
            return
        watched = self._watched.get(kernel_id)
        life = _life(served)
        if watched is None or (watched.served, watched.incarnation, watched.saves) != life:
            worked = await _processor_seconds(served)
            # It was saved, resumed or started at some time since it was looked at before.
            watched = _Watched(*life, worked, self._now(), looked_before)
            self._watched[kernel_id] = watched
        if watched.changed_at is not None:
            return
        if not (served.changed or await self._has_worked(watched)):
            watched.unchanged_at = looked_at
            return
        watched.changed_at = watched.unchanged_at
        at = time.time() - (self._now() - watched.changed_at)
        await self._operations.note_changed(kernel_id, at, self._given_seconds(kernel_id))

    async def _has_worked(self, watched: _Watched) -> bool:
        served = watched.served
        if not served.output.changes and not (served.kernel and served.kernel.snapshot_id):
            return False  # no cell has run yet that could have left a thread behind
        used = await _processor_seconds(watched.served) - watched.worked_seconds
        spent = self._now() - watched.measured_at
        return used >= max(_WORKING_SECONDS, _WORKING * spent)

    async def _save(self, kernel_id: str, watched: _Watched) -> None:
        began = self._now()
        self._saving, self._operation, self._unwanted = kernel_id, None, False
        self._over.clear()
        rest_seconds = 0.0
        try:
            await self._save_and_wait(kernel_id, watched)
        except _QUIET as error:
            self._log.debug("kernel %s was not saved this time: %s", kernel_id, error)
            rest_seconds = self._wanted_seconds
        except GpuCkptError as error:
            rest_seconds = self._wanted_seconds
            self._note_failure(kernel_id, error)
        else:
            self._failures.pop(kernel_id, None)
        finally:
            self._saving, self._operation = "", None
            self._over.set()
        rested = began + self._cost(kernel_id).least_seconds(self._share)
        self._rest_until[kernel_id] = max(rested, self._now() + rest_seconds)

    async def _save_and_wait(self, kernel_id: str, watched: _Watched) -> None:
        served, began = watched.served, self._now()
        operation = await self._operations.save(kernel_id, cause=Cause.AUTOSAVE)
        self._operation = operation
        if self._unwanted:
            await self._cancel()
        end = asyncio.ensure_future(self._operations.finish(operation))
        # Changes made after the kernel runs again are not in the snapshot.
        while not end.done() and not served.gate_is_open:
            change = asyncio.ensure_future(served.change())
            await asyncio.wait({end, change}, return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
        worked, at = await _processor_seconds(served), self._now()
        result = (await end).outcome()
        seconds = self._now() - began
        self._costs[kernel_id] = SaveCost(seconds, result.frozen_seconds, result.processor_seconds)
        # The snapshot is of a moment after `began`; since then the kernel may have changed again.
        self._watched[kernel_id] = _Watched(*_life(served), worked, at, began)

    async def _cancel(self) -> None:
        """Cancel the save in flight; one that the daemon has not begun yet is canceled by `_save_and_wait`."""
        if self._operation is not None:
            with suppress(GpuCkptError):  # it is over, or the daemon has gone
                await self._operations.cancel(self._operation.operation_id)

    def _note_failure(self, kernel_id: str, error: GpuCkptError) -> None:
        if self._failures.get(kernel_id) != error.message:
            self._failures[kernel_id] = error.message
            self._log.warning("Kernel %s is not saved periodically: %s", kernel_id, error)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _life(served: ServedKernel) -> tuple[ServedKernel, str, int]:
    """Return the values that change when a kernel is started again or saved: the first fields of `_Watched`."""
    return served, served.provisioner.incarnation, served.saves


async def _processor_seconds(served: ServedKernel) -> float:
    """Return the CPU time of all processes of a kernel, in seconds, including those that have ended."""
    pid = served.kernel.init_pid if served.kernel is not None else 0
    return await asyncio.to_thread(_used_seconds, pid) if pid else 0.0


def _used_seconds(init_pid: int) -> float:
    try:
        init = psutil.Process(init_pid)
        processes = [init, *init.children(recursive=True)]
    except psutil.Error:
        return 0.0
    used = 0.0
    for process in processes:
        try:
            used += sum(process.cpu_times()[:4])
        except psutil.Error:  # it has ended, and its time is counted with its parent
            continue
    return used
