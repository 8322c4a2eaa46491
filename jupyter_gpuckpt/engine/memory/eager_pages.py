"""A sink that writes private pages into CRIU's own files, for those that cannot be written into a stopped task.

CRIU then restores them. The images of a skeleton dump list these pages as lazy, without their bytes. Here they are entered as in a
plain dump: in the order of addresses, between those that CRIU saved itself. See criu/pagemap.c.
"""

from __future__ import annotations

import bisect
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

from ...errors import ObjectCorrupt
from ...linux.pwrite import pwrite_all
from ..criu import images as criu_images
from ..criu import memory_images
from ..criu.images import Extent
from .page_plan import Piece

_COPY_BYTES = 4 << 20


class PagesFile:
    """A sink for `images.unpack` that writes the `pieces` into the pages file of the process `nspid` in `images`.

    The constructor copies CRIU's own pages, lists the pieces as present and removes all other lazy pages from the pagemap; pages
    that are never written are zeros. The file is made in `folder`, and the images get a link to it. Offsets are those of the
    process's stream; bytes between the pieces are skipped. Raises OSError and ObjectCorrupt.
    """

    def __init__(self, images: Path, nspid: int, pieces: Sequence[Piece], folder: Path) -> None:
        self.pieces = sorted(pieces, key=lambda piece: piece.offset)
        self._offsets = [piece.offset for piece in self.pieces]
        self._places: dict[int, int] = {}
        own = [extent for extent in criu_images.pagemap(images, nspid) if not extent.lazy]
        added = [Extent(piece.address, piece.length, lazy=False) for piece in pieces]
        memory_images.replace_lazy(images, nspid, added)
        offset_at = {piece.address: piece.offset for piece in pieces}
        path = images / f"pages-{criu_images.pages_id(images, nspid)}.img"
        target = folder / path.name
        with path.open("rb") as source:
            path.unlink()
            self._descriptor = os.open(
                target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
            weakref.finalize(self, os.close, self._descriptor)
            path.symlink_to(target)
            place = 0
            for extent in sorted((*own, *added), key=lambda extent: extent.address):
                if extent.address in offset_at:
                    self._places[offset_at[extent.address]] = place
                else:
                    self._copy(source.fileno(), place, extent.length)
                place += extent.length
        os.ftruncate(self._descriptor, place)

    def _copy(self, source: int, place: int, length: int) -> None:
        while length:
            data = os.read(source, min(length, _COPY_BYTES))
            if not data:
                raise ObjectCorrupt(
                    "CRIU's images in the snapshot are damaged.",
                    hint="The kernel cannot be brought back from this snapshot; resume an older one.",
                    details="a pages file is shorter than stated in its pagemap",
                )
            pwrite_all(self._descriptor, data, place)
            place, length = place + len(data), length - len(data)

    def write(self, offset: int, data: memoryview) -> None:
        """Write `data`, which begins at `offset` of the stream, into the file. Thread-safe. Raises OSError."""
        end = offset + len(data)
        index = max(0, bisect.bisect_right(self._offsets, offset) - 1)
        while index < len(self.pieces) and (piece := self.pieces[index]).offset < end:
            first, last = max(offset, piece.offset), min(end, piece.offset + piece.length)
            if first < last:
                place = self._places[piece.offset] + first - piece.offset
                pwrite_all(self._descriptor, data[first - offset : last - offset], place)
            index += 1
