"""The ferry: GPU memory is handed to init instead of being copied by the driver (the daemon's side of ferry.c and of init.c).

Memory that the ferry library allocates stays on the GPU as long as some process has its descriptors open. For a save the library
closes the process's gate, through which all calls of the driver go, gives the descriptors to init, and unmaps the memory. The
driver's Checkpoint then copies the context only. Memory that must leave the GPU is copied to a file on scratch instead. `reopen`
undoes both, even for another daemon.

Covers: the orders to one process, the descriptors that init holds for it. Does not cover: the order of steps in a freeze
(`ferries.py`, `gpu_processes.py`), the driver's Checkpoint (`cuda.py`).
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ....errors import CheckpointError
from ....host import processes
from ....linux.control_groups import processor_limit
from ....wire import stripes
from ....wire.manifest_records import SCRATCH
from ...tree.ferry_library import DIRECTORY
from ...tree.tree import Tree
from ..driver import digests
from ..driver.gpu_staging import StagingFile, further_path
from . import ferry_errors
from .ferry_orders import (
    BATCH,
    Allocation,
    Library,
    NoRoomError,
    Order,
    Range,
    RefusedError,
    Sharing,
    close,
    opened,
    receive,
    runs_of_handed,
    send,
)
from .ferry_room import parts_at_once

logger = logging.getLogger(__name__)

#: The folder of files with GPU memory, on a tmpfs with huge pages.
FILES = f"{SCRATCH}/gpu"
#: What the paths of a ferry's files begin with; others there are the driver's.
FERRY_FILES = f"{FILES}/ferry-"
_HOLDER = f"{SCRATCH}/hold.socket"
#: The name that the library's thread gives itself.
THREAD_NAME = "gpuckpt-ferry"

#: The most ranges in one order: a fraction of MAX_RANGES in ferry.c.
_MAX_RANGES = 1 << 16
#: Added to a process's number for the room that is reserved for it; Linux has fewer pids.
_RESERVED = 1 << 24
_HOLD, _HELD = struct.Struct("iII"), struct.Struct("I")
#: The most seconds that one order may take, in addition to its own limit; copies of 80 GB take 10 s.
_ANSWER_SECONDS = 120.0
_CONNECT_SECONDS = 5.0

#: The libraries' threads that were found last, by process: a process may have thousands of others.
_threads: dict[int, int] = {}

#: Fills all memory by orders to the library; the path is that of the first of its files.
Fill = Callable[[Library, Path], None]


class Status(NamedTuple):
    """The state of a process: is its gate closed, how many parts are handed over now, the library's thread (id inside)."""

    closed: bool
    handed: int
    thread: int


class Ferry:
    """The ferry library of one process; `is_there` is False for a process without one.

    No connection outlives a call, because CRIU cannot dump one. All methods raise FreezeFailed when the library refuses or does not
    answer.
    """

    def __init__(self, tree: Tree, pid: int) -> None:
        self._tree, self._pid = tree, pid
        self._owner = processes.nspid(pid) or 0
        self._socket = tree.inside(f"{DIRECTORY}/{self._owner}")

    @property
    def file_path(self) -> str:
        """The path of the file for memory that is copied out, or of the first file, in the kernel's mount namespace."""
        return f"{FERRY_FILES}{self._owner}"

    @property
    def file(self) -> StagingFile | None:
        """The memory that was copied out; None if there is none. Raises FreezeFailed if a part of it is not there."""
        lengths = []
        for number in itertools.count():
            path = further_path(self.file_path, number) if number else self.file_path
            try:
                lengths.append(self._tree.inside(path).stat().st_size)
            except FileNotFoundError:
                break
        if not lengths:
            return None
        if stripes.file_lengths(sum(lengths), len(lengths)) != lengths:
            raise self._failed(f"files of its GPU memory are not there or too short: {lengths}")
        return StagingFile(self.file_path, sum(lengths), len(lengths))

    @property
    def bytes_in_files(self) -> int:
        """Return the number of bytes of the memory that are only in the files; 0 if that cannot be determined."""
        with suppress(CheckpointError):
            if self.is_there and (file := self.file) is not None and not self._hold(b"l")[0]:
                return file.length
        return 0

    def remove_file(self) -> None:
        """Remove the memory that was copied out."""
        for path in StagingFile(self.file_path, 0, stripes.MAX_FILES).paths:
            self._tree.inside(path).unlink(missing_ok=True)

    @property
    def is_there(self) -> bool:
        """Return whether the library runs in the process and accepts connections (ferry.c, `obey`).

        The socket's file alone may be that of an earlier process with the same pid.
        """
        with suppress(OSError):
            return bool(self._socket.stat().st_mode & 0o400) and self.thread is not None
        return False

    @property
    def thread(self) -> int | None:
        """Return the id of the library's thread on the host; None if there is none."""
        known = _threads.get(self._pid)
        if known is not None and self._is_thread(known):
            return known
        for tid in processes.threads(self._pid):
            if self._is_thread(tid):
                _threads[self._pid] = tid
                return tid
        _threads.pop(self._pid, None)
        return None

    def _is_thread(self, tid: int) -> bool:
        with suppress(OSError):
            return Path(f"/proc/{self._pid}/task/{tid}/comm").read_text().strip() == THREAD_NAME
        return False

    def status(self) -> Status:
        """Return the state of the process."""
        with self._connected() as library:
            closed, handed, thread = library.ask(Order.STATUS)
            return Status(bool(closed), handed, thread)

    def close_gate(self, limit_seconds: float) -> None:
        """Keep threads from entering the driver, and wait until none is inside. After the limit, open the gate again and raise."""
        with self._connected(limit_seconds) as library:
            library.order(Order.CLOSE, limit_ms=round(limit_seconds * 1000))

    def open_gate(self) -> None:
        """Let threads enter the driver again. The library refuses this while memory is handed over."""
        with self._connected() as library:
            self._open(library)

    def _open(self, library: Library) -> None:
        if failed := library.open():
            logger.warning(
                "process %d: peer access between its GPUs could not be switched on again in %d cases; what uses it may be slower or fail",
                self._pid,
                failed,
            )

    @property
    def sharing(self) -> Sharing | None:
        """The process's counts of other processes' memory; None: its library is older, does not count, and does not switch peer access."""
        with self._connected() as library:
            return library.sharing()

    def switch_peers_off(self) -> None:
        """Switch peer access between the process's GPUs off, until the gate, which must be closed, is opened. No work may run on them."""
        with self._connected() as library:
            if library.sharing() is not None:
                library.order(Order.PEERS)

    def allocated_bytes(self) -> int:
        """Return how many bytes of memory the library has allocated for the process, which may run."""
        with self._connected() as library:
            return library.allocated_bytes()

    def allocations(self) -> list[Allocation]:
        """Return the allocations of the process in the library; its gate must be closed."""
        with self._connected() as library:
            return library.listed()

    def devices(self) -> dict[int, str]:
        """Return the UUIDs of the GPUs that the process sees, by its own numbers."""
        with self._connected() as library:
            return library.devices()

    def hand_over(self, rest: Mapping[int, int]) -> None:
        """Move the memory from the process to init, which must not hold any memory of it yet. It stays on the GPUs.

        `rest`: bytes of memory that the process uses in addition to the ferry's, by its numbers of the GPUs. init reserves them, if they
        are free, because Checkpoint frees them and Restore needs them.
        """
        self.drop_handed_over()
        with self._connected() as library:
            self._reserve(library, rest)
            first, count = 0, len(library.listed())
            while first < count:
                descriptors = library.descriptors(first)
                try:
                    held = self._hold(b"k", descriptors=descriptors)[0]
                finally:
                    close(descriptors)
                first += len(descriptors)
                if held != first:
                    why = f"init holds {held} descriptors instead of {first}"
                    raise ferry_errors.no_descriptors(self._pid, why)
            library.order(Order.UNMAP)

    def _reserve(self, library: Library, rest: Mapping[int, int]) -> None:
        self.drop_reserved()
        for device, length in rest.items():
            try:
                descriptors = library.reserved(device, length)
            except RefusedError as error:
                logger.info("no room on a GPU is reserved for process %d: %s", self._pid, error)
                continue
            try:
                self._hold(b"k", descriptors=descriptors, owner=self._owner | _RESERVED)
            finally:
                close(descriptors)

    @property
    def reserved(self) -> int:
        """On how many GPUs init holds room for the process."""
        return self._hold(b"l", owner=self._owner | _RESERVED)[0]

    @property
    def is_held(self) -> bool:
        """Whether init holds memory of the process."""
        return self._hold(b"l")[0] > 0

    def drop_reserved(self) -> None:
        """Let init free the room that it holds for what Checkpoint takes from the GPUs; call it before Restore."""
        self._hold(b"d", owner=self._owner | _RESERVED)

    def copy_out(self, files: Sequence[int], ranges: Sequence[Range]) -> None:
        """Copy ranges of the memory, which is still the process's, to files, one after the other."""
        offset = 0
        with self._copying() as library:
            for first in range(0, len(ranges), _MAX_RANGES):
                part = ranges[first : first + _MAX_RANGES]
                library.copy(Order.COPY_OUT, files, offset, part)
                offset += sum(one.bytes for one in part)

    def free(self) -> None:
        """Free the memory on the GPU; `reopen` finds its bytes in the file of this process."""
        with self._connected() as library:
            library.order(Order.UNMAP)

    def copy_handed_over(
        self, allocations: Sequence[Allocation], files: Sequence[int], ranges: Sequence[Range]
    ) -> None:
        """Copy ranges of the memory to files, as they were when it was handed over. The process may have run since."""
        offset = 0
        with self._copying() as library:
            for first, part, descriptors in self._handed_over(allocations):
                inside = [one for one in ranges if first <= one.part < first + len(part)]
                for begin in range(0, len(inside), _MAX_RANGES):
                    wanted = [
                        one._replace(part=one.part - first)
                        for one in inside[begin : begin + _MAX_RANGES]
                    ]
                    library.copy(Order.COPY_HANDED_OVER, files, offset, wanted, part, descriptors)
                    offset += sum(one.bytes for one in wanted)

    def digests(
        self, allocations: Sequence[Allocation], key: bytes, *, handed_over: bool
    ) -> digests.Digests:
        """Return the digests of the memory, which init holds or which is still the process's. Raises UnreliableDigestsError as well."""
        lengths = [one.bytes // digests.PIECE * digests.DIGEST_BYTES for one in allocations]
        with open(os.memfd_create("gpuckpt-digests", os.MFD_CLOEXEC), "w+b") as file:
            file.write(key)
            file.flush()
            offset = len(key)
            with self._connected() as library:
                if not handed_over:
                    library.order(Order.DIGEST, offset=offset, descriptors=[file.fileno()])
                else:
                    for first, part, descriptors in self._handed_over(allocations):
                        library.digest_handed_over(part, descriptors, file.fileno(), offset)
                        offset += sum(lengths[first : first + len(part)])
            file.seek(len(key))
            data = file.read()
        if len(data) != sum(lengths):
            raise digests.UnreliableDigestsError("the library did not write all digests")
        return digests.parsed(data)

    def _handed_over(
        self, allocations: Sequence[Allocation]
    ) -> Iterator[tuple[int, Sequence[Allocation], list[int]]]:
        """Yield batches of memory that init holds: the number of the first, the allocations, and their descriptors."""
        for first in range(0, len(allocations), BATCH):
            part = allocations[first : first + BATCH]
            _, descriptors = self._hold(b"g", first)
            try:
                if len(descriptors) != len(part):
                    raise self._failed(f"init holds {len(descriptors)} of {len(part)} allocations")
                yield first, part, descriptors
            finally:
                close(descriptors)

    def drop_handed_over(self) -> None:
        """Let init close its descriptors of this process's memory. The process must have its memory back."""
        self._hold(b"d")

    def reopen(self, *, keep: bool = False, fill: Fill | None = None) -> None:
        """Give the process its memory back, from init or from `file`, and open its gate.

        This inspects the present state, so that it undoes every step of a freeze, also of a daemon that was killed. With `keep` the
        memory stays in init for `copy_handed_over`, unless the GPU has no room. `fill`: gives the memory of a resumed process back.
        Raises FreezeFailed; another call continues.
        """
        with self._copying() as library:
            closed, handed, _ = library.ask(Order.STATUS)
            if not closed:
                return
            try:
                self.drop_reserved()
            except CheckpointError as error:  # it takes room, but the process must run on
                logger.warning("%s (%s)", error, error.details)
            if handed:
                if fill is None:
                    self._give_back(library, keep=keep)
                else:
                    fill(library, self._tree.inside(self.file_path))
            self._open(library)

    def _give_back(self, library: Library, *, keep: bool) -> None:
        listed = library.listed()
        held, _ = self._hold(b"l")
        if held:
            # Freeing init's memory makes room; then nothing is left for `copy_handed_over`.
            at_once = BATCH if keep else parts_at_once(self._pid)
            try:
                self._give_back_held(library, listed, at_once, frees=not keep)
            except NoRoomError:
                self._give_back_held(library, library.listed(), 1, frees=True)
        elif (file := self.file) is None:
            raise self._failed("its GPU memory was copied out, and the file is not there")
        elif file.length < sum(one.bytes for one in listed):
            raise self._failed(
                f"its GPU memory was copied out, and only {file.length} bytes are there"
            )
        else:
            with opened(map(self._tree.inside, file.paths)) as descriptors:
                for first, count, offset in runs_of_handed(listed):
                    library.order(Order.FILL, first, count, offset=offset, descriptors=descriptors)

    def _give_back_held(
        self, library: Library, listed: Sequence[Allocation], at_once: int, *, frees: bool
    ) -> None:
        """Give the parts back that are handed over, some at a time. `frees`: let init close the descriptors of all parts before them."""
        for begin, number, _ in runs_of_handed(listed):
            for first in range(begin, begin + number, at_once):
                if frees:
                    self._hold(b"f", first)
                count = min(at_once, begin + number - first)
                _, descriptors = self._hold(b"g", first, max_descriptors=count)
                try:
                    if len(descriptors) != count:
                        raise self._failed(f"init holds {len(descriptors)} of {count} parts")
                    library.give_back(first, descriptors)
                finally:
                    close(descriptors)

    def _hold(
        self,
        order: bytes,
        first: int = 0,
        *,
        descriptors: Sequence[int] = (),
        max_descriptors: int = BATCH,
        owner: int | None = None,
    ) -> tuple[int, list[int]]:
        """Send init an order; return how many descriptors of this process it holds, and those that it sent (at most `max_descriptors`).

        `owner`: the number under which init holds them; None: that of the process's memory.
        """
        try:
            with socket.socket(socket.AF_UNIX) as holder:
                holder.settimeout(_ANSWER_SECONDS)
                holder.connect(str(self._tree.inside(_HOLDER)))
                send(holder, _HOLD.pack(order[0], owner or self._owner, first), descriptors)
                answer, received = receive(holder, _HELD.size)
                close(received[max_descriptors:])
                return _HELD.unpack(answer)[0], received[:max_descriptors]
        except (OSError, struct.error) as error:
            raise ferry_errors.from_system(self._pid, error) from error

    @contextmanager
    def _connected(self, more_seconds: float = 0.0) -> Iterator[Library]:
        try:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(_CONNECT_SECONDS)
                peer.connect(str(self._socket))
                peer.settimeout(_ANSWER_SECONDS + more_seconds)
                yield Library(peer)
        except (OSError, struct.error) as error:
            raise ferry_errors.from_system(self._pid, error) from error

    @contextmanager
    def _copying(self) -> Iterator[Library]:
        with self._connected() as library:
            if limit := processor_limit(Path(f"/proc/{self._pid}/cgroup")):
                library.limit_threads(limit)  # Linux would stop more threads, all at once
            yield library

    def _failed(self, details: str) -> CheckpointError:
        return ferry_errors.failed(self._pid, details)
