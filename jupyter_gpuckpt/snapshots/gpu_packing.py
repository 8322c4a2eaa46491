"""The storing of GPU memory while it is restored to the GPU, and while other memory is stored.

The staging files could be read as soon as the driver has written them. But then the kernel's processes are stopped, and reading at
full speed beside CRIU would prolong that time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from ..engine.gpu.ferry.ferry_copies import FerryCopy
from ..engine.settings import EngineSettings
from ..images.composing import Predecessor
from ..images.pack import BytesSource, FileSource, Packed, join, pack
from ..images.partial import Layout, PartialFileSource, Ranges, around
from ..images.segments import Kept
from ..store.local import LocalStore
from ..store.writer import PackWriter
from ..wire.progress import Progress
from . import gpu_tables
from .gpu_tables import EarlierGpuMemory

_LOOK_SECONDS = 0.05
#: The average number of pages in a chunk of the ferries' memory, before the limit of a chunk's length applies. This memory is large, and
#: often little of it changes. 24 GB in chunks of the usual length would be 95,000 chunks, and a save takes 5 us for each.
_FERRY_CHUNK_PAGES = 256


class _Part:
    """A thread that stores some of the files. It has a progress of its own, because the operation is in other stages meanwhile."""

    def __init__(self, sources: Sequence[FileSource], store: Callable[..., Packed]) -> None:
        self.length = sum(source.length for source in sources)
        self._progress, self._store, self._sources = Progress(), store, sources
        self._packed = Packed.of_nothing()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gpu-packing", daemon=True)
        self._thread.start()

    def finish(self, progress: Progress) -> Packed:
        """Wait until all is durable; `progress` advances by the files' bytes. Raises the errors of `pack`, OperationCancelled."""
        reported = 0
        while self._thread.is_alive():
            self._thread.join(_LOOK_SECONDS)
            done = self._progress.record().done_bytes
            progress.advance(done - reported)
            reported = done
        if self._error is not None:
            raise self._error
        progress.advance(self.length - reported)
        return self._packed

    def end(self) -> None:
        """Stop the thread."""
        self._progress.cancel()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._packed = self._store(self._sources, progress=self._progress)
        except BaseException as error:
            self._error = error


class GpuPacking:
    """Threads that store staging files. Use it as a context manager around the freeze; they have ended when the block is left.

    `alone`: no memory is restored to the GPU meanwhile, as in a suspend. `predecessor`: see `pack`. `earlier`: the GPU memory in
    that snapshot.
    """

    def __init__(
        self,
        store: LocalStore,
        settings: EngineSettings,
        *,
        alone: bool,
        predecessor: Predecessor | None = None,
        earlier: EarlierGpuMemory | None = None,
    ) -> None:
        self._earlier = earlier
        self._store, self._predecessor = store, predecessor
        #: The limit of the buffers of one pack (0: see `pack`). Up to three run at the same time: of the driver's files, of the ferries',
        #: and of other memory.
        self.memory_bytes = -(-settings.memory_bytes // 3)
        # Beside a GPU restore, all threads would delay it by a fifth and finish nothing sooner.
        threads = settings.threads if alone else max(1, settings.threads // 2)
        self._pack = partial(
            pack,
            store=store,
            threads=threads,
            memory_bytes=self.memory_bytes,
            predecessor=predecessor,
        )
        self._parts: list[_Part] = []
        #: The writer of all windows: a failure after some of them releases the chunks of all.
        self._writer: PackWriter | None = None
        #: What `store_window` has stored, by the names of the streams: the ranges with their chunks, and the new bytes.
        self._windows: dict[str, list[Kept]] = {}
        self._new_bytes = 0
        self._copies: dict[str, FerryCopy] = {}
        self._held = ExitStack()

    def begin(self, files: Mapping[str, Sequence[Path]], copies: Mapping[str, FerryCopy]) -> None:
        """Start storing these files (those of each stream by its name); they must exist until `finish` has returned.

        `copies`: what must be stored of those of the ferry. Another call adds further files.
        """
        self._copies |= copies
        sources = [
            self._source(stream, paths)
            for stream, paths in files.items()
            if stream not in copies or not copies[stream].is_stored
        ]
        if sources:
            self._parts.append(_Part(sources, self._pack))

    def store_window(
        self,
        progress: Progress,
        stream: str,
        paths: Sequence[Path],
        length: int,
        ranges: Ranges,
    ) -> None:
        """Store the ranges of a ferry's memory of `length` bytes, which files hold one after the other.

        They are durable when `finish` has returned. `progress`: the operation's, in another stage. Raises what `pack` raises.
        """
        if self._writer is None:
            self._writer = self._held.enter_context(self._store.writer())
        source = PartialFileSource(
            stream,
            *paths,
            length=length,
            ranges=ranges,
            kept=around(ranges, length),
            chunk_pages=_FERRY_CHUNK_PAGES,
        )
        # The progress of packing begins with the bytes that are not read.
        first = ranges[0][0] - (length - sum(end - begin for begin, end in ranges))
        packed = self._pack(
            [source],
            progress=Progress(
                lambda record: progress.reach(max(0, first + record.done_bytes), length)
            ),
            writer=self._writer,
        )
        layout = Layout(packed.streams[0], missing=())
        found = self._windows.setdefault(stream, [])
        for begin, end in ranges:
            found += layout.inside(begin, end, 0)
        self._new_bytes += packed.new_bytes

    def _of_windows(self) -> Packed:
        """Return the streams that `store_window` has stored, with the chunks that they share with the earlier snapshot."""
        streams = []
        for name, copy in self._copies.items():
            if not copy.is_stored:
                continue
            found = self._windows.get(name, [])
            length = max((one.end for one in found), default=0)
            kept: Sequence[Kept] = []
            if copy.ranges is not None and copy.table is not None and self._earlier is not None:
                kept, length = self._earlier.usable(name).kept, copy.table.bytes
            parts = sorted([*kept, *found], key=lambda one: one.start)
            streams.append(join(name, length, parts))
        return Packed(streams, sum(one.length for one in streams), self._new_bytes)

    def _source(self, stream: str, paths: Sequence[Path]) -> FileSource:
        copy = self._copies.get(stream)
        if copy is None:
            return FileSource(stream, *paths)
        if copy.ranges is None or copy.table is None or self._earlier is None:
            return FileSource(stream, *paths, chunk_pages=_FERRY_CHUNK_PAGES)
        usable = self._earlier.usable(stream)
        return PartialFileSource(
            stream,
            *paths,
            length=copy.table.bytes,
            ranges=copy.ranges,
            kept=usable.kept,
            is_whole=copy.is_whole,
            chunk_pages=_FERRY_CHUNK_PAGES,
        )

    def tables(self, packed: Packed) -> list[BytesSource]:
        """Return the tables of the memory's digests, which are to be stored as well."""
        return list(gpu_tables.sources(self._copies, packed.streams))

    def finish(self, progress: Progress) -> Packed:
        """Wait until all files that were begun are durable, as `_Part.finish` does."""
        if self._writer is not None:
            self._writer.finish()
        packed = self._of_windows()
        progress.advance(packed.raw_bytes)
        for part in self._parts:
            packed = packed.and_also(part.finish(progress))
        return packed

    def __enter__(self) -> Self:
        with ExitStack() as held:
            if self._predecessor is not None:
                # Chunks of the predecessor must stay in the store until they are used.
                held.enter_context(self._store.holding(self._predecessor.digests))
            if self._earlier is not None:
                self._earlier.prepare()
            self._held = held.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            for part in self._parts:
                part.end()
        finally:
            self._held.__exit__(kind, error, traceback)
