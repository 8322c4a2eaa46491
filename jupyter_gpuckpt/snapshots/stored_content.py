"""A snapshot's bytes for a thaw, from the store or from what several resumes of the snapshot share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ..engine.memory.filling import PageSink
from ..engine.settings import EngineSettings
from ..errors import OperationCancelled
from ..images.sinks import FileSink, WindowSink
from ..images.unpack import Sink, StreamReader, Unpacking, part_of, read_stream
from ..images.unpacked_file import ReadingError, UnpackedFile
from ..store.read_only import ReadableStore
from ..wire.manifest_records import Manifest, Stream
from ..wire.progress import Progress
from .stored_images import IMAGES_STREAM
from .unpacked_snapshots import UnpackedSnapshot

logger = logging.getLogger(__name__)

#: How much of a file is waited for at a time.
_PIECE_BYTES = 64 << 20


class _Writing:
    """An implementation of `content.Writing` by files that have the bytes of whole streams, which other resumes may be reading as well."""

    def __init__(self, files: Mapping[str, UnpackedFile], progress: Progress) -> None:
        self._files, self._progress = files, progress
        self._stopped = threading.Event()

    def run(self) -> None:
        for file in self._files.values():
            there = 0
            while there < file.length:
                end = min(there + _PIECE_BYTES, file.length)
                written = self._wait_for(file, there, end)
                self._progress.advance(written - there)
                there = written

    def wait_for(self, stream: str, begin: int, end: int) -> int:
        return self._wait_for(self._files[stream], begin, end)

    def file(self, stream: str) -> int:
        return self._files[stream].descriptor

    def stop(self) -> None:
        self._stopped.set()

    def _wait_for(self, file: UnpackedFile, begin: int, end: int) -> int:
        def check() -> None:
            if self._stopped.is_set():
                raise OperationCancelled("The reading of the snapshot was stopped.")

        try:
            return file.wait_for(begin, end, self._progress, check)
        except ReadingError as error:
            raise error.__cause__ or error from None


class StoredContent:
    """An implementation of `content.Content` that reads from the store, or from what resumes of the snapshot share."""

    def __init__(
        self,
        manifest: Manifest,
        store: ReadableStore,
        settings: EngineSettings,
        progress: Progress,
        unpacked: UnpackedSnapshot,
    ) -> None:
        self._manifest, self._store = manifest, store
        self._settings, self._progress = settings, progress
        self._unpacked = unpacked

    def use(self, folder: Path) -> None:
        """Use a folder on a tmpfs with huge pages for files in memory."""
        self._unpacked.folder = folder

    def to_file(self, jobs: Sequence[tuple[str, Path]]) -> None:
        """Write whole streams into files, in parallel."""
        left = list[tuple[Stream, Sink]]()
        for name, path in jobs:
            job = self._manifest.stream(name), FileSink(path)
            file = self._unpacked.file(name)
            if file is None or not self._copy(file, [job]):
                left.append(job)
        if left:
            self._unpacking(left).run(self._progress)

    def writing(self, streams: Sequence[str]) -> _Writing:
        """Look up the chunks of streams; return what writes them into files."""
        files = {name: self._unpacked.whole_file(name) for name in streams}
        return _Writing(files, self._progress)

    def to_window(self, stream: str, begin: int, end: int, target: Path) -> None:
        """Make a file of the bytes of a stream between two offsets."""
        found = part_of(self._manifest.stream(stream), [(begin, end)])
        counted = Progress(lambda record: self._progress.advance(0))
        with WindowSink(target, begin, end) as sink:
            self._unpacking([(found, sink)]).run(counted)

    def to_memory(self, jobs: Sequence[tuple[str, PageSink]]) -> Callable[[], None]:
        """Look up the chunks that the sinks need; return a function that writes them, in parallel."""
        parts: list[tuple[Stream, Sink]] = []
        for name, sink in jobs:
            wanted = ((piece.offset, piece.offset + piece.length) for piece in sink.pieces)
            parts.append((part_of(self._manifest.stream(name), wanted), sink))
        file = self._unpacked.file(jobs[0][0]) if jobs else None
        if file is None:
            return partial(self._unpacking(parts).run, self._progress)

        def fill() -> None:
            if not self._copy(file, parts):
                self._unpacking(parts).run(self._progress)

        return fill

    def _copy(self, file: UnpackedFile, jobs: Sequence[tuple[Stream, Sink]]) -> bool:
        """Copy streams from a file to their sinks; return False if the file could not be read from the store."""
        try:
            file.copy(jobs, self._settings.threads, self._progress)
        except ReadingError as error:
            # What was read for others says nothing about this resume: it reads the store by itself.
            logger.info("a resume reads the store by itself: %s", error.__cause__)
            return False
        return True

    def _unpacking(self, jobs: Sequence[tuple[Stream, Sink]]) -> Unpacking:
        return Unpacking(
            jobs,
            self._store,
            threads=self._settings.threads,
            memory_bytes=self._settings.memory_bytes,
        )

    def images(self, directory: Path) -> None:
        """Write all image files into `directory`."""
        stream = self._manifest.stream(IMAGES_STREAM)
        small = memoryview(
            self._unpacked.small(IMAGES_STREAM, lambda: read_stream(stream, self._store))
        )
        large = []
        for image in self._manifest.images:
            path = directory / image.name
            if image.stream:
                large.append((image.stream, path))
            else:
                path.write_bytes(small[image.offset : image.offset + image.length])
        self.to_file(large)

    def reader(self, stream: str) -> Callable[[int, int], bytes]:
        """Return a function that reads `stream`: (offset, length) -> bytes."""
        return StreamReader(self._manifest.stream(stream), self._store).read
