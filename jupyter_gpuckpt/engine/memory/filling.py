"""The filling of a restored tree's private pages: CRIU gets some before it begins; we write the rest while it holds the tasks.

Nothing runs before every byte is in place, not even a signal handler: a refused or short write or a damaged chunk fails the
restore.
"""

from __future__ import annotations

import bisect
import os
import shutil
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from ...errors import ObjectCorrupt, ThawFailed
from ...host import processes
from ...host.overcommit import overcommit
from ...linux.pwrite import pwrite_all
from ...wire.manifest_records import Manifest
from ...wire.progress import Progress, Stage
from ..criu import images as criu_images
from ..criu import memory_images
from ..criu.images import Extent
from . import page_plan, reservations
from .page_plan import PagePlan, Piece
from .stopped_pages import StoppedPages

_COPY_BYTES = 4 << 20


class PagesFile:
    """A sink for `images.unpack` that writes the `pieces` into the pages file of the process `nspid` in `images`.

    It is for the pages that cannot be written into a stopped task: CRIU then restores them. The images of a skeleton dump list these pages
    as lazy, without their bytes. Here they are entered as in a plain dump: in the order of addresses, between those that CRIU saved
    itself. See criu/pagemap.c.

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


#: A sink for the pages of a stream.
PageSink = StoppedPages | PagesFile
#: The type of `content.Content.to_memory`.
ToMemory = Callable[[Sequence[tuple[str, PageSink]]], Callable[[], None]]


class Filling:
    """A filler of the private pages of one restore. Use it as a context manager around CRIU: it removes its files and ends its threads.

    `folder`: the folder of the pages that CRIU must restore itself; its path is the same here and in the kernel's mount namespace.
    """

    def __init__(self, to_memory: ToMemory, progress: Progress, folder: Path) -> None:
        self._to_memory, self._progress, self._folder = to_memory, progress, folder
        self._sinks: list[tuple[str, StoppedPages]] = []
        self._beside = ThreadPoolExecutor(1, "look-up-pages")
        #: The bytes by which CRIU's part and ours advance the progress: each part reads the whole of every stream that it needs.
        self._criu_length = self._length = 0
        self._has_folder = False
        #: How many bytes of the streams processes share with their parents; complete after `prepare`.
        self.shared_bytes = 0

    @property
    def bytes(self) -> int:
        """The number of bytes that `finish` writes, at most."""
        return self._length

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._beside.shutdown()
        if self._has_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def prepare(self, manifest: Manifest, images: Path) -> None:
        """Write CRIU's part into its images, and look up the chunks of the rest. After a plain dump CRIU's images have everything."""
        plans: list[PagePlan] = []
        if manifest.method == "skeleton":
            page_plan.align_areas(manifest, images)
            plans = page_plan.plan(manifest, images)
        reservations.enter(images, overcommit())
        self.shared_bytes = sum(plan.shared_bytes for plan in plans)
        for_criu = [plan for plan in plans if plan.by_criu]
        self._criu_length = sum(plan.stream.length for plan in for_criu)
        self._length = sum(plan.stream.length for plan in plans if plan.by_us)
        self._give_to_criu(for_criu, images)
        for plan in plans:
            if not plan.by_criu:
                memory_images.replace_lazy(images, plan.nspid, [])
            if plan.by_us:
                self._sinks.append((plan.stream.name, StoppedPages(plan.nspid, plan.by_us)))
        if self._sinks:
            self._write = self._beside.submit(self._to_memory, self._sinks)

    def _give_to_criu(self, plans: list[PagePlan], images: Path) -> None:
        if not plans:
            return
        self._folder.mkdir(parents=True, mode=0o700)
        self._has_folder = True
        files = [
            (plan.stream.name, PagesFile(images, plan.nspid, plan.by_criu, self._folder))
            for plan in plans
        ]
        with self._progress.stage(Stage.PAGES, self._criu_length + self._length):
            self._to_memory(files)()

    def finish(self, init_pid: int) -> None:
        """Write the rest into the tasks below init, which have their mappings and do not run. Raises ThawFailed and the store's errors."""
        if not self._sinks:
            return
        by_nspid = {processes.nspid(pid): pid for pid in processes.descendants(init_pid)}
        total = self._criu_length + self._length
        with self._progress.stage(Stage.PAGES, total, done_bytes=self._criu_length):
            for _, sink in self._sinks:
                if sink.nspid not in by_nspid:
                    raise ThawFailed(
                        "CRIU did not restore a process that the snapshot lists.",
                        hint="The snapshot is untouched. Try again.",
                        details=f"process {sink.nspid}",
                    )
                sink.pid = by_nspid[sink.nspid]
            self._write.result()()
