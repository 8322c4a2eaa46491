"""Private pages written into tasks that CRIU holds, before their first instruction (man process_vm_writev).

`criu restore` makes the tasks without these pages; a page that is never written reads as zeros. It takes no
right beyond that to trace the task, and many threads and processes can write at once. What is refused, and where less is
written than was asked for, fails the restore: nothing of it is ever tried again.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import os
from collections.abc import Sequence
from functools import cache

import msgspec

from .. import decoding
from ..errors import ThawFailed
from .page_plan import Piece

#: process_vm_writev takes at most IOV_MAX pieces.
_IOV_MAX = 1024


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Shared(msgspec.Struct, frozen=True):
    """What another process is told."""

    nspid: int
    pid: int
    pieces: list[tuple[int, int, int]]


class StoppedPages:
    """Pages of the process `nspid`, which has the pid `pid` here: a sink for `images.unpack`.

    The sequence of bytes is that of the process's stream; what lies in it between the `pieces` is left out.
    """

    module = __name__

    def __init__(self, nspid: int, pieces: Sequence[Piece]) -> None:
        self.nspid, self.pid = nspid, 0
        self.pieces = list(pieces)
        self._offsets = [piece.offset for piece in pieces]

    def share(self) -> tuple[str, None, bytes]:
        """For another process, as `images.unpack_processes` wants it."""
        pieces = [(piece.offset, piece.address, piece.length) for piece in self.pieces]
        told = _Shared(self.nspid, self.pid, pieces)
        return f"{__name__}:shared_pages", None, msgspec.msgpack.encode(told)

    def write(self, offset: int, data: memoryview) -> None:
        """Put `data`, which is at `offset` of the stream, into the process. Thread-safe. Raises ThawFailed."""
        base, end = ctypes.addressof(ctypes.c_char.from_buffer(data)), offset + len(data)
        local: list[tuple[int, int]] = []
        remote: list[tuple[int, int]] = []
        index = max(0, bisect.bisect_right(self._offsets, offset) - 1)
        while index < len(self.pieces) and (piece := self.pieces[index]).offset < end:
            first, last = max(offset, piece.offset), min(end, piece.offset + piece.length)
            if first < last:
                local.append((base + first - offset, last - first))
                remote.append((piece.address + first - piece.offset, last - first))
            index += 1
        for at in range(0, len(remote), _IOV_MAX):
            self._write(local[at : at + _IOV_MAX], remote[at : at + _IOV_MAX])

    def _write(self, local: list[tuple[int, int]], remote: list[tuple[int, int]]) -> None:
        count = len(remote)
        here = (_IoVec * count)(*local)  # type: ignore[misc]
        there = (_IoVec * count)(*remote)  # type: ignore[misc]
        written = _process_vm_writev()(self.pid, here, count, there, count, 0)
        wanted = sum(length for _, length in remote)
        if written != wanted:
            number = ctypes.get_errno() if written < 0 else 0
            reason = os.strerror(number) if number else f"only {written} were"
            if number == errno.ESRCH:
                raise ThawFailed(
                    "A process of the kernel ended while its memory was put in place.",
                    hint="Find what ends its processes, then try again. The snapshot is untouched.",
                    details=f"process {self.nspid}",
                )
            raise ThawFailed(
                "A page of the kernel's memory could not be put in place.",
                hint="Look whether memory is short, then try again. The snapshot is untouched.",
                details=f"process {self.nspid}: {wanted} bytes at {remote[0][0]:#x}: {reason}",
            )


def shared_pages(descriptor: None, data: bytes) -> StoppedPages:
    """Return the pages that another process shares."""
    told = decoding.from_msgpack(data, _Shared)
    pages = StoppedPages(told.nspid, [Piece(*piece) for piece in told.pieces])
    pages.pid = told.pid
    return pages


@cache
def _process_vm_writev() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None, use_errno=True).process_vm_writev
    function.restype = ctypes.c_ssize_t
    function.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_ulong,
    ]
    return function
