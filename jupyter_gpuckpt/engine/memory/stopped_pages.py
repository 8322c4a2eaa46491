"""A sink that writes private pages into tasks that CRIU holds, before their first instruction (man process_vm_writev).

`criu restore` makes the tasks without these pages; a page that is never written reads as zeros. A writer needs only the right to
trace the task, and many threads and processes can write at once. A write that is refused or short fails the restore; it is never
tried again.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import os
from collections.abc import Sequence

import msgspec
import numpy as np

from ...errors import ThawFailed
from ...wire import decoding
from . import process_vm
from .page_plan import Piece
from .process_vm import MAX_PIECES, IoVec


class _Shared(msgspec.Struct, frozen=True):
    """A description of the sink for another process."""

    nspid: int
    pid: int
    pieces: list[tuple[int, int, int]]


class StoppedPages:
    """A sink for `images.unpack` that writes pages into the process `nspid`, which has the pid `pid` here.

    Offsets are those of the process's stream; bytes between the `pieces` are skipped.
    """

    module = __name__

    def __init__(self, nspid: int, pieces: Sequence[Piece]) -> None:
        self.nspid, self.pid = nspid, 0
        self.pieces = list(pieces)
        self._offsets = [piece.offset for piece in pieces]

    def share(self) -> tuple[str, None, bytes]:
        """Return the fields of an `images.workers.unpack_client.Share`, which recreate the sink in another process."""
        pieces = [(piece.offset, piece.address, piece.length) for piece in self.pieces]
        shared = _Shared(self.nspid, self.pid, pieces)
        return f"{__name__}:shared_pages", None, msgspec.msgpack.encode(shared)

    def write(self, offset: int, data: memoryview) -> None:
        """Write `data`, which begins at `offset` of the stream, into the process. Thread-safe. Raises ThawFailed."""
        # ctypes gives no address of memory that is read-only.
        base, end = np.frombuffer(data, np.uint8).ctypes.data, offset + len(data)
        local: list[IoVec] = []
        remote: list[IoVec] = []
        index = max(0, bisect.bisect_right(self._offsets, offset) - 1)
        while index < len(self.pieces) and (piece := self.pieces[index]).offset < end:
            first, last = max(offset, piece.offset), min(end, piece.offset + piece.length)
            if first < last:
                local.append(IoVec(base + first - offset, last - first))
                remote.append(IoVec(piece.address + first - piece.offset, last - first))
            index += 1
        for at in range(0, len(remote), MAX_PIECES):
            self._write(local[at : at + MAX_PIECES], remote[at : at + MAX_PIECES])

    def _write(self, local: list[IoVec], remote: list[IoVec]) -> None:
        written = process_vm.write(self.pid, local, remote)
        wanted = sum(piece.length for piece in remote)
        if written != wanted:
            number = ctypes.get_errno() if written < 0 else 0
            reason = os.strerror(number) if number else f"only {written} were"
            if number == errno.ESRCH:
                raise ThawFailed(
                    "A process of the kernel ended while its memory was put in place.",
                    hint="Find the program that ends its processes, then try again. The snapshot is untouched.",
                    details=f"process {self.nspid}",
                )
            raise ThawFailed(
                "A page of the kernel's memory could not be put in place.",
                hint="Look whether memory is short, then try again. The snapshot is untouched.",
                details=f"process {self.nspid}: {wanted} bytes at {remote[0].base:#x}: {reason}",
            )


def shared_pages(descriptor: None, data: bytes) -> StoppedPages:
    """Return the sink that another process described by `share`."""
    shared = decoding.from_msgpack(data, _Shared)
    pages = StoppedPages(shared.nspid, [Piece(*piece) for piece in shared.pieces])
    pages.pid = shared.pid
    return pages
