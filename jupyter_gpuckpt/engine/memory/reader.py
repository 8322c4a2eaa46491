"""A reader of the private memory of a stopped process or of its ghost, for several threads at once (man process_vm_readv)."""

from __future__ import annotations

import bisect
import ctypes
import errno
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from ...errors import FreezeFailed
from ...host import processes
from ...linux.fresh_memory import fresh_memory
from ...wire import decoding
from ..criu.images import Extent
from . import process_vm
from .process_vm import MAX_PIECES, IoVec

_COPY_PIECE = 4 << 20


def unforked_areas(pid: int) -> list[tuple[int, int]]:
    """Return (start, end) of areas that a fork does not copy: VmFlags dc (DONTFORK) and wf (WIPEONFORK), see man madvise."""
    return processes.flagged_areas(pid, "dc", "wf")


class _Part(msgspec.Struct, frozen=True):
    """A run of `length` bytes at `offset` of the sequence. It lies at `address` of the process, or already in `copy`.

    `pid`: the process that has it, if it is not the sequence's process.
    """

    offset: int
    address: int
    length: int
    copy: memoryview | None = None
    pid: int = 0


class _SharedPart(msgspec.Struct, frozen=True, array_like=True):
    pid: int
    address: int
    length: int


class _SharedMemory(msgspec.Struct, frozen=True):
    """A description of a sequence for another process: its name, and where the bytes of each part are."""

    name: str
    parts: list[_SharedPart]


class ProcessMemory:
    """The private pages of one process as one sequence of bytes: its extents, one after the other.

    A source for `images.pack`. Thread-safe. Valid while the process (or ghost) `pid` stays stopped.
    """

    def __init__(self, name: str, pid: int, extents: Iterable[Extent]) -> None:
        self.name, self.pid, self.extents = name, pid, list(extents)
        offset, parts = 0, []
        for extent in self.extents:
            parts.append(_Part(offset, extent.address, extent.length))
            offset += extent.length
        self.length = offset
        self._set(parts)

    def _set(self, parts: list[_Part]) -> None:
        self._parts, self._offsets = parts, [part.offset for part in parts]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes at `offset`. Raises FreezeFailed when the process is gone."""
        if not len(buffer):
            return
        base = _address(buffer)
        pieces: dict[int, tuple[list[IoVec], list[IoVec]]] = {}
        at, index = offset, bisect.bisect_right(self._offsets, offset) - 1
        while at < offset + len(buffer):
            part = self._parts[index]
            within, done = at - part.offset, at - offset
            size = min(part.length - within, len(buffer) - done)
            if part.copy is not None:
                buffer[done : done + size] = part.copy[within : within + size]
            else:
                local, remote = pieces.setdefault(part.pid or self.pid, ([], []))
                local.append(IoVec(base + done, size))
                remote.append(IoVec(part.address + within, size))
            at, index = at + size, index + 1
        for pid, (local, remote) in pieces.items():
            for first in range(0, len(remote), MAX_PIECES):
                _read(pid, local[first : first + MAX_PIECES], remote[first : first + MAX_PIECES])

    def share(self) -> tuple[str, bytes]:
        """Return (factory, data) as in `SharedSource`: the other process reads the same memory, and copied parts from this process."""
        return _share(self.name, self._parts, self.pid)

    def keep(self, areas: Iterable[tuple[int, int]]) -> None:
        """Copy the bytes of these areas now, because a ghost lacks DONTFORK areas and its WIPEONFORK areas are empty."""
        for first, last in areas:
            parts: list[_Part] = []
            for part in self._parts:
                start = max(first, part.address)
                end = min(last, part.address + part.length)
                if start >= end or part.copy is not None:
                    parts.append(part)
                    continue
                parts += self._split(part, start, end)
            self._set(parts)

    def _split(self, part: _Part, start: int, end: int) -> Iterator[_Part]:
        before, size = start - part.address, end - start
        copy = fresh_memory(size)
        self.read_into(part.offset + before, copy)
        if before:
            yield _Part(part.offset, part.address, before)
        yield _Part(part.offset + before, start, size, copy)
        if rest := part.length - before - size:
            yield _Part(part.offset + before + size, end, rest)

    def copied(self, threads: int) -> CopiedMemory:
        """Return a copy of the whole sequence, made now by `threads` threads."""
        view = fresh_memory(max(self.length, 1))[: self.length]

        def copy(offset: int) -> None:
            self.read_into(offset, view[offset : offset + _COPY_PIECE])

        with ThreadPoolExecutor(max(1, threads), "copy-memory") as pool:
            for _ in pool.map(copy, range(0, self.length, _COPY_PIECE)):
                pass
        return CopiedMemory(self.name, view)

    def of(self, pid: int) -> ProcessMemory:
        """Return the same sequence, read from a twin with the pid `pid`."""
        twin = ProcessMemory(self.name, pid, ())
        twin.length, twin.extents = self.length, self.extents
        twin._set(self._parts)
        return twin


def _share(name: str, parts: Iterable[_Part], pid: int) -> tuple[str, bytes]:
    places = [
        _SharedPart(pid, part.address, part.length)
        if part.copy is None
        else _SharedPart(os.getpid(), _address(part.copy), part.length)
        for part in parts
    ]
    return f"{__name__}:shared_memory", msgspec.msgpack.encode(_SharedMemory(name, places))


def shared_memory(data: bytes) -> ProcessMemory:
    """Return the sequence that another process described by `share`."""
    shared = decoding.from_msgpack(data, _SharedMemory)
    memory = ProcessMemory(shared.name, 0, ())
    offset, parts = 0, []
    for place in shared.parts:
        parts.append(_Part(offset, place.address, place.length, pid=place.pid))
        offset += place.length
    memory.length = offset
    memory._set(parts)
    return memory


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _read(pid: int, local: list[IoVec], remote: list[IoVec]) -> None:
    got = process_vm.read(pid, local, remote)
    if got != sum(piece.length for piece in remote):
        try:
            _read_closed(pid, local, remote)
        except OSError as error:
            raise FreezeFailed(
                "The memory of the kernel could not be read.",
                hint="If memory is short, free some, or suspend instead of saving; then try again.",
                details=f"process {pid}: {error.strerror}",
            ) from error


def _read_closed(pid: int, local: list[IoVec], remote: list[IoVec]) -> None:
    """Read memory that the process itself may not read, which process_vm_readv refuses. Raises OSError."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for here, there in zip(local, remote, strict=True):
            view = memoryview((ctypes.c_char * here.length).from_address(here.base)).cast("B")
            done = 0
            while done < here.length:
                got = os.preadv(memory.fileno(), [view[done:]], there.base + done)
                if not got:
                    raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
                done += got


class CopiedMemory:
    """A source of copied memory; it no longer needs the process."""

    def __init__(self, name: str, data: memoryview) -> None:
        self.name, self.length, self._data = name, len(data), data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes at `offset`."""
        buffer[:] = self._data[offset : offset + len(buffer)]

    def share(self) -> tuple[str, bytes]:
        """Return (factory, data) as in `SharedSource`: the other process reads the memory of this one."""
        return _share(self.name, [_Part(0, 0, self.length, self._data)] if self.length else [], 0)
