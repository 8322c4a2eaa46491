"""A watch over memory during a save: it drops the ghost before memory runs out, so that the user's kernel is not killed.

While the ghost lives, every page that the kernel rewrites exists twice. The OOM killer would choose the ghost first
(oom_score_adj 1000), but only after the kernel had to wait for memory. And it kills the whole control group together where
memory.oom.group is set, as Kubernetes does.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Self

from ...errors import FreezeFailed
from ...host import processes
from .ghost import Ghost

logger = logging.getLogger(__name__)

#: The polling interval. A kernel writes to new pages at some GB/s: a few dozen MB in this time, well below the headroom.
_LOOK_SECONDS = 0.01


class MemoryWatch:
    """A watcher that drops `ghost`, the twin of process `pid`, when less than `headroom_bytes` are left to that process.

    It watches while the `with` block lasts. If the ghost was dropped by this watch or killed by the OOM killer, an error that
    leaves the block becomes a FreezeFailed that says so.
    """

    def __init__(self, ghost: Ghost, pid: int, headroom_bytes: int) -> None:
        self._ghost, self._pid, self._headroom = ghost, pid, headroom_bytes
        self._end = threading.Event()
        self._left = 0
        self._thread = threading.Thread(target=self._watch, name=f"memory-of-{pid}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()
        ended = processes.state(self._pid) in (None, "Z")
        if isinstance(error, FreezeFailed) and not self._ghost.alive and not ended:
            raise FreezeFailed(
                "Memory became short while the kernel was being saved, so the save was given up. The kernel runs on.",
                hint="A kernel that changes its memory needs up to twice of it during a save. Suspend it instead, which needs"
                " no second copy; or free memory, or save when it is idle.",
                details=f"{self._left >> 20} MB were left; {error.details}",
            ) from error

    def _watch(self) -> None:
        available = processes.AvailableMemory(self._pid)
        while not self._end.wait(_LOOK_SECONDS):
            self._left = available.read_bytes()
            if self._left < self._headroom:
                logger.warning("%d MB of memory are left: the save is given up", self._left >> 20)
                self._ghost.drop()
                return
