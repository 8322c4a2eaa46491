"""What the daemon knows of the writes of its kernels between two saves.

Covers: the tracking of each kernel's process from its first save on, and what its last snapshot has of its memory. Does not cover:
how writes are tracked (`write_tracking.py`), the choice and the check of chunks that a save does not read (`snapshots`).

Nothing of it outlives the daemon or the process: after a restart of the daemon, and after a resume, a kernel's first save reads all
memory again. So does every save of a process that uses a GPU, whose memory a device may write.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...host import processes
from ...host.pagemap_scan import Area
from ..criu.images import PAGE, Extent
from ..tree.tree import Tree
from . import write_tracking
from .reader import ProcessMemory
from .write_tracking import Pages, WriteTracking

logger = logging.getLogger(__name__)


class SavedMemory(NamedTuple):
    """The memory of a process as a snapshot has it, in its stream `stream`, whose pages are those of `extents`.

    `known`: a bit for each page, whether writes to it can be seen from then on.
    """

    snapshot_id: str
    stream: str
    extents: list[Extent]
    known: NDArray[np.uint8]


class Unwritten(NamedTuple):
    """The pages that a process has not written since a snapshot: those that are in all of `looks`."""

    saved: SavedMemory
    looks: list[list[Area]]

    def origin(self, extents: Sequence[Extent]) -> NDArray[np.int64]:
        """Return for each page of `extents` the number of the page of the snapshot's stream that it still is; -1: it must be read."""
        before, pages = addresses(self.saved.extents), addresses(extents)
        if not len(before) or (np.diff(before) <= 0).any():
            return np.full(len(pages), -1, np.int64)
        known = np.unpackbits(self.saved.known, count=len(before)).view(np.bool_)
        if self.saved.extents == extents:
            at, same = np.arange(len(pages)), known
        else:
            at = np.minimum(np.searchsorted(before, pages), len(before) - 1)
            same = (before[at] == pages) & known[at]
        for areas in self.looks:
            same &= write_tracking.inside(pages, areas)
        return np.where(same, at, -1)


class TrackedKernel:
    """The tracking of one kernel's process. One operation at a time uses it; `look`, `begin` and `look_again` need a stopped process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._tracking: WriteTracking | None = None
        self._is_off = not write_tracking.is_supported()
        self._saved: SavedMemory | None = None

    @property
    def is_on(self) -> bool:
        """Whether writes are tracked."""
        return self._tracking is not None

    def look(self) -> Unwritten | None:
        """Return what was not written since the last snapshot; None if nothing is known."""
        saved = self._saved
        if saved is None or self._tracking is None:
            return None
        return Unwritten(saved, [self._list(self._tracking.unwritten)])

    def begin(self) -> Unwritten | None:
        """Return what `look` does, and track the writes from now on. `complete` is to be called when the snapshot exists."""
        saved, self._saved = self._saved, None
        if self._is_off:
            return None
        # If this save fails, nobody knows what was written since the last one that did not.
        try:
            if self._tracking is None:
                self._tracking = WriteTracking(self._pid)
            unwritten = self._tracking.protect()
        except (OSError, RuntimeError) as error:  # or no thread can be started
            self.switch_off(str(error))
            return None
        return Unwritten(saved, [unwritten]) if saved is not None else None

    def look_again(self, found: Unwritten) -> Unwritten:
        """Return those of the pages that were not written since `begin` either, for instance by Linux when a thread stopped."""
        again = self._list(self._tracking.still_unwritten) if self._tracking is not None else []
        return Unwritten(found.saved, [*found.looks, again])

    def complete(self, saved: SavedMemory) -> None:
        """Note the snapshot that has the memory of the moment of `begin`."""
        if self._tracking is not None:
            self._saved = saved

    def switch_off(self, reason: str) -> None:
        """Stop tracking this process for good."""
        if not self._is_off:
            logger.info("The writes of process %d are not tracked: %s", self._pid, reason)
        self._is_off, self._saved = True, None
        self.close()

    def close(self) -> None:
        """Let Linux end the tracking."""
        if self._tracking is not None:
            self._tracking.close()
        self._tracking = None

    def _list(self, pages: Callable[[], list[Area]]) -> list[Area]:
        try:
            return pages()
        except OSError as error:
            self.switch_off(str(error))
            return []


class TrackedKernels:
    """The tracked kernels of a daemon, by their processes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[int, int | None], TrackedKernel] = {}

    def of(self, tree: Tree) -> TrackedKernel:
        """Return the tracking of a tree's kernel; that of processes that have ended is closed."""
        process = tree.kernel_pid, processes.start_time(tree.kernel_pid)
        with self._lock:
            for pid, start in list(self._found):
                if not processes.still_alive(pid, start):
                    self._found.pop((pid, start)).close()
            return self._found.setdefault(process, TrackedKernel(tree.kernel_pid))


def addresses(extents: Sequence[Extent]) -> Pages:
    """Return the addresses of all pages of the extents, in their order."""
    parts = [np.arange(one.address, one.address + one.length, PAGE) for one in extents]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def saved_memory(snapshot_id: str, memory: ProcessMemory) -> SavedMemory:
    """Return the record of a snapshot that has the memory of this ghost, which must still be there. Raises OSError."""
    known = write_tracking.shared_with(memory.pid, addresses(memory.extents))
    return SavedMemory(snapshot_id, memory.name, memory.extents, np.packbits(known))
