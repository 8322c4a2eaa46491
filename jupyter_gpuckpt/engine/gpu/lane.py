"""The lane: GPU memory is handed to init instead of being copied by the driver (the daemon's side of lane.c and of init.c).

Memory that the lane library allocates stays on the GPU as long as some process has its descriptors open. For a save the library
closes the process's gate, through which all calls of the driver go, gives the descriptors to init, and unmaps the memory. The
driver's Checkpoint then copies the context only. Memory that must leave the GPU is copied to a file on scratch instead. `reopen`
undoes both, even for another daemon.

Covers: the orders to one process, the descriptors that init holds for it. Does not cover: the order of steps in a freeze
(`lanes.py`, `processes.py`), the driver's Checkpoint (`cuda.py`).
"""

from __future__ import annotations

import array
import logging
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from ...errors import CheckpointError, FreezeFailed
from ...host import processes
from ...model import SCRATCH
from ..tree.lane_library import DIRECTORY
from ..tree.tree import Tree

logger = logging.getLogger(__name__)

#: The folder of files with GPU memory, on a tmpfs with huge pages.
FILES = f"{SCRATCH}/gpu"
_HOLDER = f"{SCRATCH}/hold.socket"
#: The name that the library's thread gives itself.
THREAD_NAME = "gpuckpt-lane"

#: The most descriptors in one message: BATCH in lane.c and init.c.
_BATCH = 200
_REQUEST, _REPLY, _LISTED = struct.Struct("IIIIQ"), struct.Struct("iIQ"), struct.Struct("QQQii")
_HOLD, _HELD = struct.Struct("iII"), struct.Struct("I")
#: The most seconds that one order may take, in addition to its own limit; copies of 80 GB take 10 s.
_ANSWER_SECONDS = 120.0
_CONNECT_SECONDS = 5.0
#: CUDA_ERROR_OUT_OF_MEMORY.
_OUT_OF_MEMORY = 2


class _Order(IntEnum):
    """Orders to the library; numbers as in lane.c."""

    STATUS = 1
    CLOSE = 2
    OPEN = 3
    LIST = 4
    EXPORT = 5
    UNMAP = 6
    GIVE_BACK = 7
    COPY_OUT = 8
    FILL = 9
    COPY_HANDED_OVER = 10


class _NoRoomError(OSError):
    """The GPU has no room for memory that must be given back."""


class Status(NamedTuple):
    """The state of a process: is its gate closed, how many parts are handed over now, the library's thread (id inside)."""

    closed: bool
    handed: int
    thread: int


class Allocation(NamedTuple):
    """GPU memory that the library has allocated: address, bytes, the driver's context and device, and a flag: it is handed over."""

    address: int
    bytes: int
    context: int
    device: int
    handed: int


class Lane:
    """The lane library of one process; `is_there` is False for a process without one.

    No connection outlives a call, because CRIU cannot dump one. All methods raise FreezeFailed when the library refuses or does not
    answer.
    """

    def __init__(self, tree: Tree, pid: int) -> None:
        self._tree, self._pid = tree, pid
        self._owner = processes.nspid(pid) or 0
        self._socket = tree.inside(f"{DIRECTORY}/{self._owner}")

    @property
    def file_path(self) -> str:
        """The path of the file for memory that is copied out, in the kernel's mount namespace."""
        return f"{FILES}/lane-{self._owner}"

    @property
    def file(self) -> Path | None:
        """The file with memory that was copied out, as seen from here; None if there is none."""
        path = self._tree.inside(self.file_path)
        return path if path.exists() else None

    @property
    def is_there(self) -> bool:
        """Whether the process has allocated memory through the library."""
        return self._socket.exists()

    @property
    def thread(self) -> int | None:
        """The library's thread (host id); None if there is none."""
        for tid in processes.threads(self._pid):
            with suppress(OSError):
                if Path(f"/proc/{self._pid}/task/{tid}/comm").read_text().strip() == THREAD_NAME:
                    return tid
        return None

    def status(self) -> Status:
        """Return the state of the process."""
        with self._connected() as library:
            closed, handed, thread = library.ask(_Order.STATUS)
            return Status(bool(closed), handed, thread)

    def close_gate(self, limit_seconds: float) -> None:
        """Keep threads from entering the driver, and wait until none is inside. After the limit, open the gate again and raise."""
        with self._connected(limit_seconds) as library:
            library.order(_Order.CLOSE, limit_ms=round(limit_seconds * 1000))

    def open_gate(self) -> None:
        """Let threads enter the driver again. The library refuses this while memory is handed over."""
        with self._connected() as library:
            library.order(_Order.OPEN)

    def allocations(self) -> list[Allocation]:
        """Return the allocations of the process in the library; its gate must be closed."""
        with self._connected() as library:
            return library.listed()

    def hand_over(self) -> None:
        """Move the memory from the process to init, which must hold none of this process yet. It stays on the GPU."""
        self.drop_handed_over()
        with self._connected() as library:
            first, count = 0, len(library.listed())
            while first < count:
                descriptors = library.descriptors(first)
                try:
                    held = self._hold(b"k", descriptors=descriptors)[0]
                finally:
                    _close(descriptors)
                first += len(descriptors)
                if held != first:
                    raise self._failed(f"init holds {held} descriptors instead of {first}")
            library.order(_Order.UNMAP)

    def copy_out(self, file: int) -> None:
        """Copy the memory to a file, which must be long enough, and free it on the GPU."""
        with self._connected() as library:
            if count := len(library.listed()):
                library.order(_Order.COPY_OUT, count=count, descriptors=[file])
                library.order(_Order.UNMAP)

    def copy_handed_over(self, allocations: Sequence[Allocation], file: int) -> None:
        """Copy to a file the memory as it was when it was handed over, and let init drop it. The process may have run since."""
        offset = 0
        with self._connected() as library:
            for first in range(0, len(allocations), _BATCH):
                part = allocations[first : first + _BATCH]
                _, descriptors = self._hold(b"g", first)
                try:
                    library.copy_handed_over(part, file, offset, descriptors)
                finally:
                    _close(descriptors)
                offset += sum(one.bytes for one in part)
        self.drop_handed_over()

    def drop_handed_over(self) -> None:
        """Let init close its descriptors of this process's memory. The process must have its memory back."""
        self._hold(b"d")

    def reopen(self) -> None:
        """Give the process its memory back, from init or from `file`, and open its gate.

        This inspects the present state, so that it undoes every step of a freeze, also of a daemon that was killed. The memory that
        init holds stays there for `copy_handed_over`, unless the GPU has no room. Raises FreezeFailed; another call continues.
        """
        with self._connected() as library:
            closed, handed, _ = library.ask(_Order.STATUS)
            if not closed:
                return
            if handed:
                self._give_back(library)
            library.order(_Order.OPEN)

    def _give_back(self, library: _Library) -> None:
        listed = library.listed()
        held, _ = self._hold(b"l")
        if held:
            try:
                self._give_back_held(library, listed, _BATCH)
            except _NoRoomError:
                # Memory that was given back is on the GPU twice. Freeing init's part makes room; then nothing is left to save.
                self._give_back_held(library, library.listed(), 1)
        elif (file := self.file) is None:
            raise self._failed("its GPU memory was copied out, and the file is not there")
        else:
            offset = 0
            descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                for number, one in enumerate(listed):
                    if one.handed:
                        library.order(
                            _Order.FILL, number, 1, offset=offset, descriptors=[descriptor]
                        )
                    offset += one.bytes
            finally:
                os.close(descriptor)

    def _give_back_held(
        self, library: _Library, listed: Sequence[Allocation], at_once: int
    ) -> None:
        for first in range(0, len(listed), at_once):
            if at_once == 1:
                self._hold(b"f", first)
            if not all(one.handed for one in listed[first : first + at_once]):
                continue  # an earlier call gave it back
            _, descriptors = self._hold(b"g", first, max_descriptors=at_once)
            try:
                library.order(_Order.GIVE_BACK, first=first, descriptors=descriptors)
            finally:
                _close(descriptors)

    def _hold(
        self,
        order: bytes,
        first: int = 0,
        *,
        descriptors: Sequence[int] = (),
        max_descriptors: int = _BATCH,
    ) -> tuple[int, list[int]]:
        """Send init an order; return how many descriptors of this process it holds, and those that it sent (at most `max_descriptors`)."""
        try:
            with socket.socket(socket.AF_UNIX) as holder:
                holder.settimeout(_ANSWER_SECONDS)
                holder.connect(str(self._tree.inside(_HOLDER)))
                _send(holder, _HOLD.pack(order[0], self._owner, first), descriptors)
                answer, received = _receive(holder, _HELD.size)
                _close(received[max_descriptors:])
                return _HELD.unpack(answer)[0], received[:max_descriptors]
        except (OSError, struct.error) as error:
            raise self._failed(f"init does not answer: {error}") from error

    @contextmanager
    def _connected(self, more_seconds: float = 0.0) -> Iterator[_Library]:
        try:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(_CONNECT_SECONDS)
                peer.connect(str(self._socket))
                peer.settimeout(_ANSWER_SECONDS + more_seconds)
                yield _Library(peer)
        except (OSError, struct.error) as error:
            raise self._failed(str(error)) from error

    def _failed(self, details: str) -> CheckpointError:
        return FreezeFailed(
            "The kernel's GPU memory could not be handed over.",
            hint="Save again. If it fails again, switch the option `gpu_lane` off and restart the kernel.",
            details=f"process {self._pid}: {details}",
        )


class _Library:
    """A connection to the library of one process."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer

    def ask(
        self,
        order: _Order,
        first: int = 0,
        count: int = 0,
        *,
        limit_ms: int = 0,
        offset: int = 0,
        descriptors: Sequence[int] = (),
    ) -> tuple[int, int, int]:
        """Send an order; return result, count and bytes of the answer."""
        _send(self._peer, _REQUEST.pack(order, first, count, limit_ms, offset), descriptors)
        answer, received = _receive(self._peer, _REPLY.size)
        _close(received)
        return _REPLY.unpack(answer)

    def order(self, order: _Order, *arguments: int, **options: object) -> None:
        """Send an order; raise OSError if it was refused."""
        result, _, _ = self.ask(order, *arguments, **options)  # type: ignore[arg-type]
        _check(order, result)

    def listed(self) -> list[Allocation]:
        """Return the library's table of allocations."""
        result, count, _ = self.ask(_Order.LIST)
        _check(_Order.LIST, result)
        data = bytearray()
        while len(data) < count * _LISTED.size:
            part = self._peer.recv(count * _LISTED.size - len(data))
            if not part:
                raise ConnectionResetError("the list ended too early")
            data += part
        return [Allocation(*row) for row in _LISTED.iter_unpack(data)]

    def descriptors(self, first: int) -> list[int]:
        """Return the descriptors of at most a batch of allocations."""
        _send(self._peer, _REQUEST.pack(_Order.EXPORT, first, _BATCH, 0, 0))
        answer, received = _receive(self._peer, _REPLY.size)
        result, count, _ = _REPLY.unpack(answer)
        if result or len(received) != count or not count:
            _close(received)
            _check(_Order.EXPORT, result)
            raise OSError(f"{len(received)} of {count} descriptors came")
        return received

    def copy_handed_over(
        self, part: Sequence[Allocation], file: int, offset: int, descriptors: Sequence[int]
    ) -> None:
        """Let the library copy memory that was handed over to a file."""
        if len(descriptors) != len(part):
            raise OSError(f"init holds {len(descriptors)} of {len(part)} allocations")
        request = _REQUEST.pack(_Order.COPY_HANDED_OVER, 0, len(part), 0, offset)
        _send(self._peer, request, [file, *descriptors])
        self._peer.sendall(b"".join(_LISTED.pack(*one) for one in part))
        answer, received = _receive(self._peer, _REPLY.size)
        _close(received)
        _check(_Order.COPY_HANDED_OVER, _REPLY.unpack(answer)[0])


def _check(order: _Order, result: int) -> None:
    if result == _OUT_OF_MEMORY:
        raise _NoRoomError(f"{order.name}: there is no room on the GPU")
    if result:
        cause = os.strerror(-result) if result < 0 else f"CUresult {result}"
        raise OSError(f"{order.name}: {cause}")


def _send(to: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    to.sendmsg([data], rights if descriptors else [])


def _receive(peer: socket.socket, length: int) -> tuple[bytes, list[int]]:
    room = socket.CMSG_SPACE((_BATCH + 1) * array.array("i").itemsize)
    data, messages, *_ = peer.recvmsg(length, room, socket.MSG_WAITALL | socket.MSG_CMSG_CLOEXEC)
    received = array.array("i")
    for level, kind, content in messages:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(content[: len(content) - len(content) % received.itemsize])
    return data, received.tolist()


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
