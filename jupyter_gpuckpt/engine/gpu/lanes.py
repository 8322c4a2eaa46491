"""The lanes of a tree's processes during one freeze: how their memory leaves them, where it is meanwhile, and how it comes back.

Covers: the order of the lane's steps around the driver's, the files with copied memory. Does not cover: the orders to one
process (`lane.py`), Checkpoint and Restore (`processes.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from ...errors import CheckpointError, GpuCkptError
from ...host import gpu, processes
from ..tree.tree import Tree
from . import cuda
from .digests import EarlierMemory
from .lane import Lane
from .lane_copies import LaneCopy, LaneCopying
from .lane_orders import Allocation
from .staging import StagingFile

logger = logging.getLogger(__name__)


class Lanes:
    """The lanes of one tree. `reopen` undoes `close_gate` and `empty`. All methods ignore processes without a lane.

    `earlier`: what the store has of their memory already. Without it everything is copied, and nothing is said of its digests.
    """

    def __init__(self, tree: Tree, earlier: EarlierMemory | None = None) -> None:
        self._tree, self._earlier = tree, earlier
        #: Lanes whose gates are closed, by pid.
        self.waiting: dict[int, Lane] = {}
        #: The files with the memory that was copied out of each lane, by pid.
        self.files: dict[int, list[StagingFile]] = {}
        #: What must be stored of these files, by the names of their streams.
        self.copies: dict[str, LaneCopy] = {}
        #: The memory that was handed over for a save, by pid.
        self._handed_over: dict[int, list[Allocation]] = {}

    def close_gate(self, pid: int, limit_seconds: float) -> None:
        """Keep the process's threads from entering the driver. Raises FreezeFailed after the limit; the gate is open then."""
        lane = Lane(self._tree, pid)
        if not lane.is_there:
            return
        lane.reopen()  # an earlier operation may have failed
        self.waiting[pid] = lane
        lane.close_gate(limit_seconds)

    def empty(self, pid: int, lock_seconds: float, used: Mapping[str, int], *, stays: bool) -> None:
        """Take from a locked process the memory that its lane allocated; the process is locked on return, too.

        `used`: its bytes on each GPU. With `stays` the memory stays on the GPU, held by init, if there is room to give it back as a
        copy; otherwise it is copied to a file. The process is unlocked meanwhile, and its threads wait at the gate: inside the driver
        they would delay the second Lock. The first Lock has waited for the work on the GPU. Raises FreezeFailed.
        """
        if (lane := self.waiting.get(pid)) is None:
            return
        cuda.unlock(pid)
        allocations = lane.allocations()
        free = gpu.free_bytes()
        if stays and all(free.get(uuid, 0) > size for uuid, size in used.items()):
            self._handed_over[pid] = allocations
            lane.hand_over()
        elif allocations:
            self._copy(pid, lane, allocations, handed_over=False)
            lane.free()
        cuda.lock(pid, lock_seconds)

    def handed_bytes(self, pid: int) -> int:
        """Return how many bytes of a process's memory init holds on the GPU."""
        return sum(one.bytes for one in self._handed_over.get(pid, []))

    def find(self, among: Iterable[int]) -> None:
        """Add processes to those that `reopen` examines: another freeze, or another daemon, may have left their gates closed."""
        lanes = {pid: Lane(self._tree, pid) for pid in among}
        self.waiting |= {pid: lane for pid, lane in lanes.items() if lane.is_there}

    def reopen(self, not_restored: Collection[int]) -> dict[int, GpuCkptError]:
        """Give processes their memory back and open their gates; return the errors by pid.

        Their threads must run, so that none is held with a lock that the lane waits for. The gates of processes that the driver has
        not restored stay closed until the next call, and so do those of processes with an error.
        """
        failed: dict[int, GpuCkptError] = {}
        for pid, lane in list(self.waiting.items()):
            if pid in not_restored or cuda.state(pid) is cuda.ProcessState.CHECKPOINTED:
                continue
            try:
                lane.reopen()
            except GpuCkptError as error:
                if processes.start_time(pid) is None:
                    continue  # it has ended
                logger.exception("GPU memory of process %d could not be given back", pid)
                failed[pid] = error
            else:
                del self.waiting[pid]
        return failed

    @property
    def has_handed_over(self) -> bool:
        """Whether handed-over memory must still be copied to files when the processes run again."""
        return any(self._handed_over.values())

    def copy_handed_over(self) -> None:
        """Copy the handed-over memory to files, while the processes run on with their own copies. Raises FreezeFailed."""
        for pid, allocations in self._handed_over.items():
            if allocations:
                lane = Lane(self._tree, pid)
                self._copy(pid, lane, allocations, handed_over=True)
                lane.drop_handed_over()
        self._handed_over.clear()

    def drop_handed_over(self, among: Iterable[int] = ()) -> None:
        """Free the handed-over memory of a save that will not be completed, of this daemon or another one; never raises."""
        for pid in {*among, *self._handed_over} - set(self.waiting):
            lane = Lane(self._tree, pid)
            if lane.is_there:
                with suppress(CheckpointError):
                    lane.drop_handed_over()

    def _copy(
        self, pid: int, lane: Lane, allocations: list[Allocation], *, handed_over: bool
    ) -> None:
        with suppress(FileNotFoundError):
            self._tree.inside(lane.file_path).unlink()
        copying = LaneCopying(self._tree, pid, lane, allocations, self._earlier, handed_over)
        file, self.copies[copying.stream] = copying.copy(all_of_it=not handed_over)
        self.files[pid] = [file]
