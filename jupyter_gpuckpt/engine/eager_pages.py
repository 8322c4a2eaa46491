"""Private pages in CRIU's own files, for a restore where userfaultfd is not allowed: CRIU reads them before the first instruction.

The images of a skeleton dump list these pages as lazy and lack them. Here they get them, as a plain dump would have written
them: in the order of the process's pagemap, between those that CRIU saved itself. See criu/pagemap.c.
"""

from __future__ import annotations

import bisect
import os
import weakref
from pathlib import Path

from ..pwrite import pwrite_all
from . import criu_images

_COPY_BYTES = 4 << 20


class PagesFile:
    """All pages of the process `nspid` in the images in `images`: a sink for `images.unpack` that takes the lazy ones.

    Making it puts the others in place and lists all as present; pages that are never written are zeros. The sequence of bytes is
    that of `ProcessMemory`. Raises OSError.
    """

    def __init__(self, images: Path, nspid: int) -> None:
        path = images / f"pages-{criu_images.pages_id(images, nspid)}.img"
        self._offsets: list[int] = []
        self._places: list[int] = []
        offset = place = 0
        # Unlinked at once, readable as long as it is open.
        with path.open("rb") as own:
            path.unlink()
            self._descriptor = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
            weakref.finalize(self, os.close, self._descriptor)
            for extent in criu_images.pagemap(images, nspid):
                if extent.lazy:
                    self._offsets.append(offset)
                    self._places.append(place)
                    offset += extent.length
                else:
                    self._copy(own.fileno(), place, extent.length)
                place += extent.length
        os.ftruncate(self._descriptor, place)
        self.length = offset
        criu_images.make_present(images, nspid)

    def _copy(self, source: int, place: int, length: int) -> None:
        while length:
            data = os.read(source, min(length, _COPY_BYTES))
            if not data:
                raise EOFError("a pages file is shorter than its pagemap says")
            pwrite_all(self._descriptor, data, place)
            place, length = place + len(data), length - len(data)

    def write(self, offset: int, data: memoryview) -> None:
        """Put `data` at `offset` of the lazy pages. Thread-safe."""
        index = bisect.bisect_right(self._offsets, offset) - 1
        while len(data):
            within = offset - self._offsets[index]
            last = index + 1 == len(self._offsets)
            size = len(data) if last else min(len(data), self._offsets[index + 1] - offset)
            pwrite_all(self._descriptor, data[:size], self._places[index] + within)
            offset, data, index = offset + size, data[size:], index + 1
