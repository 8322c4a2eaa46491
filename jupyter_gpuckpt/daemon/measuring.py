"""Measurement of what kernels use: when asked, and every few seconds those that run.

Owners of those for which it changed are told on their streams, so that servers and pages need not ask. How it is measured:
`machine.usage`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from ..states import KernelState
from .kernels import Kernels, ManagedKernel
from .machine import Machine

#: How often it is looked whether a measurement is due, and how long after a kernel came (back) the first one is.
_LOOK_SECONDS = 1.0
#: States in which nothing is being done with the kernel.
_MEASURED = frozenset({KernelState.RUNNING, KernelState.PARKED})

_log = logging.getLogger(__name__)


class Measuring:
    """Timer that measures the kernels that run every `every_seconds` (0: only when asked)."""

    def __init__(self, kernels: Kernels, machine: Machine, every_seconds: float) -> None:
        self._kernels, self._machine = kernels, machine
        self._every_seconds = every_seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start measuring."""
        if self._every_seconds:
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Stop measuring."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def measure(self, kernels: Sequence[ManagedKernel], *, exactly: bool = True) -> None:
        """Measure what these kernels use, in a thread; tell the owners of those for which it changed noticeably.

        Not `exactly`: memory is counted anew only where it seems to have changed.
        """
        looked_at = [
            (kernel, tree, None if exactly else kernel.usage)
            for kernel in kernels
            if (tree := kernel.record.tree) is not None
        ]
        found = await asyncio.to_thread(
            lambda: [self._machine.usage(tree, before) for _, tree, before in looked_at]
        )
        for (kernel, tree, _), usage in zip(looked_at, found, strict=True):
            if kernel.record.tree is tree:  # else it was measured in vain
                kernel.usage, kernel.measured_at = usage, time.time()
                if usage.differs(kernel.told_usage):
                    self._kernels.announce(kernel)

    async def _run(self) -> None:
        pause = min(_LOOK_SECONDS, self._every_seconds)
        while True:
            await asyncio.sleep(pause)
            due = [kernel for kernel in self._kernels if self._is_due(kernel, pause)]
            try:
                await self.measure(due, exactly=False)
            except Exception:  # the next round may do better
                _log.exception("what kernels use could not be measured")

    def _is_due(self, kernel: ManagedKernel, pause: float) -> bool:
        if kernel.state not in _MEASURED or kernel.in_flight or kernel.record.ends_at:
            return False
        since, measured, now = kernel.record.since, kernel.measured_at, time.time()
        first = measured < since + pause <= now
        return first or not 0 <= now - measured < self._every_seconds
