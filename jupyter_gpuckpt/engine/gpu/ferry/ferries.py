"""The ferries of a tree's processes during one freeze: how their memory leaves them, where it is meanwhile, and how it comes back.

Covers: the order of the ferry's steps around the driver's, the files with copied memory. Does not cover: the orders to one
process (`ferry.py`), Checkpoint and Restore (`gpu_processes.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from enum import Enum

from ....errors import CheckpointError, FreezeFailed, GpuCkptError
from ....host import processes
from ...tree.tree import Tree
from ..driver import cuda
from ..driver.digests import EarlierMemory
from ..driver.gpu_staging import StagingFile
from ..placement import UNKNOWN
from . import ferry_errors
from .ferry import Ferry
from .ferry_copies import FerryCopy, FerryCopying
from .ferry_orders import Allocation
from .ferry_room import by_gpu, fits_by_parts, fits_twice, located, rooms, without
from .ferry_windows import NO_NEEDS, RamNeeds, StoreWindow

logger = logging.getLogger(__name__)

#: The most room that is held for what Checkpoint takes from a GPU: contexts, and not memory that went the driver's way.
_MAX_RESERVED_BYTES = 2 << 30


class Until(Enum):
    """How long memory is away from its process: until a save gives it back, until a suspended tree ends, or while it is parked."""

    GIVEN_BACK = "given back"
    ENDED = "ended"
    UNPARKED = "unparked"


class Ferries:
    """The ferries of one tree. `reopen` undoes `close_gate` and `empty`. All methods ignore processes without a ferry.

    `earlier`: what the store has of their memory already. Without it everything is copied, and no digests are computed.
    `store_window`: stores memory of a suspended tree where RAM is short for a copy of it. `needs`: the RAM that the freeze needs.
    """

    def __init__(
        self,
        tree: Tree,
        earlier: EarlierMemory | None = None,
        store_window: StoreWindow | None = None,
        needs: RamNeeds = NO_NEEDS,
    ) -> None:
        self._tree, self._earlier = tree, earlier
        self._store_window, self._needs = store_window, needs
        #: Ferries whose gates are closed, by pid.
        self.waiting: dict[int, Ferry] = {}
        #: The files with the memory that was copied out of each ferry, by pid.
        self.files: dict[int, list[StagingFile]] = {}
        #: What must be stored of these files, by the names of their streams.
        self.copies: dict[str, FerryCopy] = {}
        #: How many bytes of memory each ferry had.
        self._bytes: dict[int, int] = {}
        #: The memory that was handed over, by pid, and its bytes by GPU; and the processes of which it must still be copied.
        self._handed_over: dict[int, list[Allocation]] = {}
        self._handed_bytes: dict[int, dict[str, int]] = {}
        self._uncopied: set[int] = set()

    def close_gate(self, pid: int, limit_seconds: float) -> None:
        """Keep the process's threads from entering the driver. Raises FreezeFailed after the limit; the gate is open then."""
        ferry = Ferry(self._tree, pid)
        if not ferry.is_there:
            return
        # An earlier operation may have failed. What init holds of it would be taken for the memory if that is parked later.
        ferry.reopen()
        ferry.drop_handed_over()
        self.waiting[pid] = ferry
        ferry.close_gate(limit_seconds)

    def empty(self, pid: int, lock_seconds: float, used: Mapping[str, int], until: Until) -> None:
        """Take from a locked process the memory that its ferry allocated; the process is locked on return, too.

        `used`: its bytes on each GPU. Unless the process is parked, the memory stays on the GPUs, held by init. In a save for which all
        of them have room for it twice, it is copied later; otherwise what the store lacks of it is copied to files first. Where one has
        no room to give it back, and for parking, all of it is copied. The process is unlocked meanwhile, and its threads wait at the gate:
        inside the driver they would delay the second Lock. The first Lock has waited for the work on the GPUs. Raises FreezeFailed.
        """
        if (ferry := self.waiting.get(pid)) is None:
            return
        cuda.unlock(pid)
        ferry.switch_peers_off()
        allocations = ferry.allocations()
        self._bytes[pid] = sum(one.bytes for one in allocations)
        where = located(ferry.devices(), allocations, used)
        memory = by_gpu(allocations, where)
        room = {
            uuid: free - self._promised(uuid) for uuid, free in rooms(pid, memory, used).items()
        }
        rest = _rest(used, memory, where)
        if until is Until.GIVEN_BACK and all(fits_twice(memory[uuid], room[uuid]) for uuid in room):
            self._uncopied.add(pid)
            self._hand_over(pid, ferry, allocations, memory, rest)
        elif allocations:
            stays = until is not Until.UNPARKED and fits_by_parts(min(room.values()))
            store = self._store_window if until is Until.ENDED else None
            self._copy(pid, ferry, allocations, all_of_it=not stays, store=store)
            if stays:
                self._hand_over(pid, ferry, allocations, memory, rest)
            else:
                ferry.free()
        cuda.lock(pid, lock_seconds)

    def _promised(self, uuid: str) -> int:
        """Return the bytes that other processes of this freeze will have twice on a GPU, including those whose GPU is not known."""
        return sum(
            size
            for pid in self._uncopied
            for other, size in self._handed_bytes[pid].items()
            if UNKNOWN in (uuid, other) or other == uuid
        )

    def _hand_over(
        self,
        pid: int,
        ferry: Ferry,
        allocations: list[Allocation],
        memory: dict[str, int],
        rest: Mapping[int, int],
    ) -> None:
        """Hand the memory over; without enough file descriptors for that, copy and free it. Raises FreezeFailed."""
        self._handed_over[pid], self._handed_bytes[pid] = allocations, memory
        try:
            ferry.hand_over(rest)
        except FreezeFailed as error:
            copy = self.copies.get(f"gpu{ferry.file_path}")
            if not ferry_errors.lacks_descriptors(error) or (copy is not None and copy.is_stored):
                raise
            logger.warning("GPU memory of process %d is copied: %s", pid, error.details)
            ferry.drop_handed_over()
            del self._handed_over[pid], self._handed_bytes[pid]
            self._uncopied.discard(pid)
            self._copy(pid, ferry, allocations, all_of_it=True)
            ferry.free()

    def drop_reserved(self) -> None:
        """Free the room on the GPU that is held for the processes' Restore; never raises."""
        for ferry in self.waiting.values():
            with suppress(CheckpointError):
                ferry.drop_reserved()

    def taken_bytes(self, pid: int) -> int:
        """Return how many bytes of memory were taken from a process by `empty`."""
        return self._bytes.get(pid, 0)

    def has_given(self, pid: int) -> bool:
        """Return whether init holds memory of a process, which therefore must come back on the GPUs that it had."""
        if self._handed_over.get(pid):
            return True
        with suppress(CheckpointError):
            return pid in self.waiting and self.waiting[pid].is_held
        return False

    def to_restore(self, pid: int, needs: Mapping[str, int]) -> dict[str, int]:
        """Return the bytes that Restore takes on each GPU: the needs without the handed-over memory, which is still there."""
        return without(needs, self._handed_bytes.get(pid, {}))

    def find(self, among: Iterable[int]) -> None:
        """Add processes to those that `reopen` examines: another freeze, or another daemon, may have left their gates closed."""
        ferries = {pid: Ferry(self._tree, pid) for pid in among}
        self.waiting |= {pid: ferry for pid, ferry in ferries.items() if ferry.is_there}

    def reopen(self, not_restored: Collection[int]) -> dict[int, GpuCkptError]:
        """Give processes their memory back and open their gates; return the errors by pid.

        Their threads must run, so that none is held with a lock that the ferry waits for. The gates of processes that the driver has
        not restored stay closed until the next call, and so do those of processes with an error.
        """
        failed: dict[int, GpuCkptError] = {}
        for pid, ferry in list(self.waiting.items()):
            if pid in not_restored or cuda.state(pid) is cuda.ProcessState.CHECKPOINTED:
                continue
            try:
                ferry.reopen(keep=pid in self._uncopied)
                if pid not in self._uncopied:
                    ferry.drop_handed_over()
            except GpuCkptError as error:
                if processes.start_time(pid) is None:  # it has ended
                    del self.waiting[pid]
                    continue
                logger.exception("GPU memory of process %d could not be given back", pid)
                failed[pid] = error
            else:
                del self.waiting[pid]
        return failed

    @property
    def has_handed_over(self) -> bool:
        """Whether handed-over memory must still be copied to files when the processes run again."""
        return any(self._handed_over[pid] for pid in self._uncopied)

    def copy_handed_over(self) -> None:
        """Copy the handed-over memory to files, while the processes run on with their own copies. Raises FreezeFailed."""
        for pid in list(self._uncopied):
            if allocations := self._handed_over[pid]:
                ferry = Ferry(self._tree, pid)
                self._copy(pid, ferry, allocations, handed_over=True)
                ferry.drop_handed_over()
            self._uncopied.remove(pid)
            del self._handed_over[pid], self._handed_bytes[pid]

    def drop_handed_over(self, among: Iterable[int] = ()) -> None:
        """Free the handed-over memory of a save that will not be completed, of this daemon or another one; never raises."""
        for pid in {*among, *self._handed_over} - set(self.waiting):
            ferry = Ferry(self._tree, pid)
            if ferry.is_there:
                with suppress(CheckpointError):
                    ferry.drop_handed_over()

    def remove_files(self, among: Iterable[int]) -> None:
        """Remove files that another daemon left for ferries whose gates are open; never raises.

        Such ferries have their memory back, so the files have no use. One can be a window that was being stored (`ferry_windows.py`).
        """
        for pid in set(among) - set(self.waiting):
            ferry = Ferry(self._tree, pid)
            with suppress(CheckpointError, OSError):
                if ferry.is_there and not ferry.status().closed:
                    ferry.remove_file()

    def _copy(
        self,
        pid: int,
        ferry: Ferry,
        allocations: list[Allocation],
        *,
        handed_over: bool = False,
        all_of_it: bool = False,
        store: StoreWindow | None = None,
    ) -> None:
        # What is copied after the tasks run again needs no RAM beside what the freeze has taken by then.
        needs = NO_NEEDS if handed_over else self._needs.beside(sum(self._bytes.values()))
        copying = FerryCopying(
            self._tree, pid, ferry, allocations, self._earlier, handed_over, store, needs
        )
        file, self.copies[copying.stream] = copying.copy(all_of_it=all_of_it)
        self.files[pid] = [file]


def _rest(
    used: Mapping[str, int], memory: Mapping[str, int], where: Mapping[int, str]
) -> dict[int, int]:
    """Return the bytes of room to hold on each GPU, by the process's number of it; none if the GPU is not certain or needs too much."""
    rest = without(used, memory)
    return {
        number: rest[uuid]
        for number, uuid in where.items()
        if 0 < rest.get(uuid, 0) <= _MAX_RESERVED_BYTES
    }
