"""Shutdowns that can be undone for a while: a kernel's processes are stopped at first, and killed when that time is over.

The kernel's record holds the time of the kill, so that the next daemon keeps to it. A suspended kernel has no process and is only
forgotten at that time. Its snapshots stay, except for periodic saves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ...errors import GpuCkptError, KernelNotFound
from ...wire.deadlines import Deadline, after
from ...wire.states import Verb
from ..repeating import until
from . import stopped_trees
from .kernels import Kernels, ManagedKernel
from .verbs import Verbs

_log = logging.getLogger(__name__)


class Endings:
    """The timers of kernels that were shut down. `delete_periodic`: deletes the periodic saves of one that has ended; never raises."""

    def __init__(
        self, kernels: Kernels, verbs: Verbs, delete_periodic: Callable[[str], Awaitable[None]]
    ) -> None:
        self._kernels, self._verbs, self._delete_periodic = kernels, verbs, delete_periodic
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def set(self, kernel_id: str, after_seconds: float) -> ManagedKernel:
        """Stop a kernel's processes now and kill it `after_seconds` from now; a second call sets a new time.

        An operation in flight is canceled or waited for. If the kernel cannot be stopped it runs on, and the error is raised.
        """
        kernel = self._kernels.get(kernel_id)
        await self._verbs.when_free(kernel, Verb.END)
        first = not kernel.record.ends
        await self._note(kernel, after(after_seconds))
        try:
            if first and kernel.record.tree:
                await asyncio.to_thread(stopped_trees.stop, kernel.record.tree)
        except BaseException:
            await self._note(kernel, Deadline())
            raise
        self._expect(kernel)
        return kernel

    async def undo(self, kernel_id: str) -> ManagedKernel:
        """Let the kernel run on; do nothing if it was not shut down."""
        kernel = self._kernels.get(kernel_id)
        if not kernel.record.ends:
            return kernel
        self._cancel(kernel_id)
        # The record is changed first: a daemon that takes over in between lets the processes run on.
        await self._note(kernel, Deadline())
        if kernel.record.tree:
            await asyncio.to_thread(stopped_trees.go_on, kernel.record.tree)
        return kernel

    def expect_all(self) -> None:
        """Set the timers of the shutdowns that an earlier daemon accepted."""
        for kernel in self._kernels:
            if kernel.record.ends:
                self._expect(kernel)

    def _note(self, kernel: ManagedKernel, ends: Deadline) -> Awaitable[None]:
        return self._kernels.update(kernel, ends=ends)

    def _expect(self, kernel: ManagedKernel) -> None:
        self._cancel(kernel.kernel_id)
        self._tasks[kernel.kernel_id] = asyncio.create_task(self._end(kernel))

    def _cancel(self, kernel_id: str) -> None:
        if task := self._tasks.pop(kernel_id, None):
            task.cancel()

    async def _end(self, kernel: ManagedKernel) -> None:
        record = kernel.record
        await until(record.ends)
        self._tasks.pop(kernel.kernel_id, None)
        if self._kernels.find(kernel.kernel_id) is not kernel:
            return
        _log.info("the shutdown of kernel %s was not undone", kernel.kernel_id)
        try:
            await self._verbs.kill(kernel.kernel_id)
        except KernelNotFound:
            _log.debug("kernel %s had ended", kernel.kernel_id)
        except GpuCkptError as error:
            _log.error("kernel %s could not be killed: %s", kernel.kernel_id, error)
        else:
            await self._delete_periodic(kernel.kernel_id)
