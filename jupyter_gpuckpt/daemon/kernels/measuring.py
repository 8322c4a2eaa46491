"""Measurement of kernels' use of memory and GPUs: on request, and periodically for running kernels.

Changes are published on the owners' streams, so that servers and pages need not poll. `machine.usage` does the measurement.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ...wire.deadlines import since_boot
from ...wire.states import KernelState
from ..repeating import Tasks, repeat
from .kernels import Kernels, ManagedKernel
from .machine import Machine
from .usage import Usage

#: The interval of checks whether a measurement is due, and the delay of the first one after a start or resume.
_LOOK_SECONDS = 1.0
#: The interval at which a running kernel is measured.
_EVERY_SECONDS = 10.0
#: States in which no operation on the kernel runs.
_MEASURED = frozenset({KernelState.RUNNING, KernelState.PARKED})

_log = logging.getLogger(__name__)


class Measuring:
    """A timer that measures running kernels."""

    def __init__(self, kernels: Kernels, machine: Machine) -> None:
        self._kernels, self._machine = kernels, machine
        self._tasks = Tasks()

    def start(self) -> None:
        """Start measuring."""
        self._tasks.start(
            repeat(self._measure_due, _LOOK_SECONDS, _log, "kernels could not be measured")
        )

    async def close(self) -> None:
        """Stop measuring."""
        await self._tasks.cancel()

    async def measure(self, kernels: Sequence[ManagedKernel], *, exactly: bool = True) -> None:
        """Measure these kernels in a thread; publish the usage of those for which it changed noticeably.

        Unless `exactly`, memory is counted again only if a cheap check shows a change.
        """
        looked_at = [
            (kernel, tree, None if exactly else kernel.usage)
            for kernel in kernels
            if (tree := kernel.record.tree) is not None
        ]

        def look() -> list[Usage]:
            found = [self._machine.usage(tree, before) for _, tree, before in looked_at]
            for usage in found:
                self._machine.expect(usage.memory_bytes + usage.gpu_bytes)
            return found

        found = await asyncio.to_thread(look)
        for (kernel, tree, _), usage in zip(looked_at, found, strict=True):
            if kernel.record.tree is tree:  # else the tree changed during the measurement
                kernel.usage, kernel.measured_at = usage, since_boot()
                if usage.differs(kernel.published_usage):
                    self._kernels.announce(kernel)

    async def _measure_due(self) -> None:
        due = [kernel for kernel in self._kernels if self._is_due(kernel)]
        await self.measure(due, exactly=False)

    def _is_due(self, kernel: ManagedKernel) -> bool:
        if kernel.state not in _MEASURED or kernel.in_flight or kernel.record.ends:
            return False
        entered, measured, now = kernel.entered_at, kernel.measured_at, since_boot()
        return measured < entered + _LOOK_SECONDS <= now or now - measured >= _EVERY_SECONDS
