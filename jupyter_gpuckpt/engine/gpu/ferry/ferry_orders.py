"""The orders to the ferry library of one process, as messages on a socket (the other side is ferry.c).

Does not cover: which orders when (`ferry.py`, `ferries.py`), the messages to init (`ferry.py`).
"""

from __future__ import annotations

import array
import errno
import itertools
import os
import socket
import struct
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

#: The most descriptors of memory in one message: BATCH in ferry.c and init.c. Those of files are in addition.
BATCH = 200
_REQUEST, _REPLY, _LISTED = struct.Struct("IIIIQ"), struct.Struct("iIQ"), struct.Struct("QQQii")
_RANGE = struct.Struct("IIQQ")
_UUID_BYTES = 16
#: CUDA_ERROR_OUT_OF_MEMORY.
_OUT_OF_MEMORY = 2


class Order(IntEnum):
    """Orders to the library; numbers as in ferry.c."""

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
    DIGEST = 11
    DIGEST_HANDED_OVER = 12
    RESERVE = 13
    BYTES = 14
    DEVICES = 15
    THREADS = 16
    IMPORTS = 17
    #: Of another process's library, not of the daemon's.
    SHARE = 18
    PEERS = 19


class RefusedError(OSError):
    """The library has answered that it did not carry out an order."""


class NoRoomError(RefusedError):
    """The GPU has no room for memory that must be given back."""


class Allocation(NamedTuple):
    """GPU memory that the library has allocated: address, bytes, the driver's context and device, and a flag: it is handed over."""

    address: int
    bytes: int
    context: int
    device: int
    handed: int


class Sharing(NamedTuple):
    """The memory of other processes that a process has opened by CUDA IPC: how many allocations, and the pid of the first one's process.

    The pid is 0 where it is not known, as for the driver's handles.
    """

    opened: int
    owner: int


class Range(NamedTuple):
    """A range of an allocation: the allocation's number in the list, and the place in it."""

    part: int
    offset: int
    bytes: int


class Library:
    """A connection to the library of one process."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer

    def ask(
        self,
        order: Order,
        first: int = 0,
        count: int = 0,
        *,
        limit_ms: int = 0,
        offset: int = 0,
        descriptors: Sequence[int] = (),
    ) -> tuple[int, int, int]:
        """Send an order; return result, count and bytes of the answer."""
        more = limit_ms if order is Order.CLOSE else len(descriptors)
        send(self._peer, _REQUEST.pack(order, first, count, more, offset), descriptors)
        answer, received = receive(self._peer, _REPLY.size)
        close(received)
        return _REPLY.unpack(answer)

    def order(self, order: Order, *arguments: int, **options: object) -> None:
        """Send an order; raise OSError if it was refused."""
        result, _, _ = self.ask(order, *arguments, **options)  # type: ignore[arg-type]
        _check(order, result)

    def open(self) -> int:
        """Open the gate, with peer access as before; return for how many pairs of contexts it could not be switched on again."""
        result, failed, _ = self.ask(Order.OPEN)
        _check(Order.OPEN, result)
        return failed

    def give_back(self, first: int, memory: Sequence[int]) -> None:
        """Let the library copy handed-over parts, from this number on, into memory of the process. `memory`: their descriptors."""
        result, count, _ = self.ask(Order.GIVE_BACK, first, descriptors=memory)
        _check(Order.GIVE_BACK, result)
        if count != len(memory):
            raise OSError(f"{count} of {len(memory)} parts were given back")

    def limit_threads(self, most: int) -> None:
        """Limit the library's copies to `most` threads until this connection is closed."""
        self.ask(Order.THREADS, count=most)

    def allocated_bytes(self) -> int:
        """Return how many bytes of memory the library has allocated."""
        return self.ask(Order.BYTES)[2]

    def sharing(self) -> Sharing | None:
        """Return what the process has of other processes' memory; None: its library, from an older snapshot, does not know."""
        result, count, owner = self.ask(Order.IMPORTS)
        if result == -errno.ENOSYS:
            return None
        _check(Order.IMPORTS, result)
        return Sharing(count, owner)

    def listed(self) -> list[Allocation]:
        """Return the library's table of allocations."""
        result, count, _ = self.ask(Order.LIST)
        _check(Order.LIST, result)
        return [Allocation(*row) for row in _LISTED.iter_unpack(self._more(count * _LISTED.size))]

    def devices(self) -> dict[int, str]:
        """Return the UUIDs of the GPUs that the process sees, by its own numbers."""
        result, count, _ = self.ask(Order.DEVICES)
        _check(Order.DEVICES, result)
        data = self._more(count * _UUID_BYTES)
        found = (data[at : at + _UUID_BYTES] for at in range(0, len(data), _UUID_BYTES))
        return {number: f"GPU-{uuid.UUID(bytes=each)}" for number, each in enumerate(found)}

    def _more(self, length: int) -> bytes:
        """Receive what follows an answer."""
        data = bytearray()
        while len(data) < length:
            part = self._peer.recv(length - len(data))
            if not part:
                raise ConnectionResetError("the list ended too early")
            data += part
        return bytes(data)

    def descriptors(self, first: int) -> list[int]:
        """Return the descriptors of at most a batch of allocations."""
        return self._descriptors(Order.EXPORT, first, BATCH)

    def reserved(self, device: int, length: int) -> list[int]:
        """Return the descriptor of new memory of this length on a GPU of the process's, which nobody uses."""
        return self._descriptors(Order.RESERVE, device, offset=length)

    def _descriptors(
        self, order: Order, first: int = 0, max_count: int = 0, offset: int = 0
    ) -> list[int]:
        send(self._peer, _REQUEST.pack(order, first, max_count, 0, offset))
        answer, received = receive(self._peer, _REPLY.size)
        result, count, _ = _REPLY.unpack(answer)
        if result or len(received) != count or not count:
            close(received)
            _check(order, result)
            raise OSError(f"{len(received)} of {count} descriptors came")
        return received

    def copy(
        self,
        order: Order,
        files: Sequence[int],
        offset: int,
        ranges: Sequence[Range],
        handed_over: Sequence[Allocation] = (),
        memory: Sequence[int] = (),
    ) -> None:
        """Let the library copy ranges to files. `memory`: the descriptors of the memory that was handed over."""
        number = len(files) + len(memory)
        request = _REQUEST.pack(order, len(files), len(ranges), number, offset)
        more = [_LISTED.pack(*one) for one in handed_over]
        more += [_RANGE.pack(one.part, 0, one.offset, one.bytes) for one in ranges]
        self._send_more(order, request, [*files, *memory], more)

    def digest_handed_over(
        self, part: Sequence[Allocation], memory: Sequence[int], file: int, offset: int
    ) -> None:
        """Let the library write the digests of memory that was handed over to a file; `memory`: as in `copy`."""
        order = Order.DIGEST_HANDED_OVER
        request = _REQUEST.pack(order, 1, 0, 1 + len(memory), offset)
        self._send_more(order, request, [file, *memory], [_LISTED.pack(*one) for one in part])

    def _send_more(
        self, order: Order, request: bytes, descriptors: Sequence[int], more: Sequence[bytes]
    ) -> None:
        send(self._peer, request, descriptors)
        self._peer.sendall(b"".join(more))
        answer, received = receive(self._peer, _REPLY.size)
        close(received)
        _check(order, _REPLY.unpack(answer)[0])


def _check(order: Order, result: int) -> None:
    if result == _OUT_OF_MEMORY:
        raise NoRoomError(f"{order.name}: there is no room on the GPU")
    if result:
        if result < 0:
            raise RefusedError(-result, f"{order.name}: {os.strerror(-result)}")
        raise RefusedError(f"{order.name}: CUresult {result}")


def send(to: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send a message with descriptors."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    to.sendmsg([data], rights if descriptors else [])


def receive(peer: socket.socket, length: int) -> tuple[bytes, list[int]]:
    """Receive a message of this length, and the descriptors that came with it. Raises OSError if this process has no room for them."""
    room = socket.CMSG_SPACE((BATCH + 1) * array.array("i").itemsize)
    asked = socket.MSG_WAITALL | socket.MSG_CMSG_CLOEXEC
    data, messages, flags, _ = peer.recvmsg(length, room, asked)
    received = array.array("i")
    for level, kind, content in messages:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(content[: len(content) - len(content) % received.itemsize])
    if flags & socket.MSG_CTRUNC:
        close(received.tolist())
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return data, received.tolist()


@contextmanager
def opened(paths: Iterable[Path]) -> Iterator[list[int]]:
    """Open files that the library reads or writes, and close them at the end. Raises OSError, also for links."""
    descriptors = list[int]()
    try:
        for path in paths:
            descriptors.append(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
        yield descriptors
    finally:
        close(descriptors)


def close(descriptors: Sequence[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def runs_of_handed(listed: Sequence[Allocation]) -> Iterator[tuple[int, int, int]]:
    """Yield the neighbors that are handed over: the number of the first, how many, and where they begin in a file of all."""
    number = offset = 0
    for is_handed, group in itertools.groupby(listed, lambda one: bool(one.handed)):
        members = list(group)
        if is_handed:
            yield number, len(members), offset
        number += len(members)
        offset += sum(one.bytes for one in members)
