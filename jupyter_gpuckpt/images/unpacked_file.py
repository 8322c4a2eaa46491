"""An unpacked file: the bytes of some streams, read and verified once, in memory, for everybody who needs them.

A thread of its own reads them from the store; readers wait only for what they need next. Does not cover: which streams are worth it,
and for how long (`snapshots/unpacked_snapshots.py`).
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..store.read_only import ReadableStore
from ..wire.manifest_records import Chunk, Stream
from ..wire.progress import Progress
from .sinks import FileSink
from .unpack import PreparedSink, Sink, Unpacking
from .worker_threads import share_out

#: How often a waiting reader looks whether its operation was canceled.
_LOOK_SECONDS = 0.1
#: How much a thread copies at a time, and the least bytes for each thread that is started.
_PIECE_BYTES = 4 << 20
_THREAD_BYTES = 64 << 20


class Run(NamedTuple):
    """Bytes of a stream that follow each other without zeros between them: their offset in the stream, place in the file, and length."""

    offset: int
    place: int
    length: int


class ReadingError(Exception):
    """The thread could not read the store. Its error is the cause."""


class UnpackedFile:
    """The bytes of some streams in one memory file; thread-safe.

    `folder`: on a tmpfs with huge pages, in which the file has no name: it takes half of the processor time there. It may go before.
    Zeros have no place in it, unless `whole`: then it is as its only stream. `close` frees its memory, after all readers have ended.
    The constructor looks up all chunks and allocates the memory. It raises the errors of `Unpacking`, and HostError for lack of room.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        store: ReadableStore,
        *,
        threads: int,
        memory_bytes: int = 0,
        folder: Path | None = None,
        whole: bool = False,
    ) -> None:
        self._descriptor = _nameless(folder)
        self._view = memoryview(b"")
        self._lock = threading.Lock()
        self._begun = self._ended = self._closed = False
        self._error: BaseException | None = None
        self._reading = Progress()
        try:
            #: The runs of each stream, by its name.
            self.runs, content = _layout(streams, whole=whole)
            self.length = content.length
            self._unpacking = Unpacking(
                [(content, FileSink(self._descriptor))],
                store,
                threads=threads,
                memory_bytes=memory_bytes,
                by_stream=True,
            )
            #: A descriptor of the file that can only be read, as long as it is not closed.
            self.descriptor = os.open(
                f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC
            )
        except BaseException:
            os.close(self._descriptor)
            raise
        if self.length:
            mapped = mmap.mmap(self.descriptor, self.length, mmap.MAP_SHARED, mmap.PROT_READ)
            self._view = memoryview(mapped)

    @property
    def has_failed(self) -> bool:
        """Whether the thread could not read all of it."""
        return self._error is not None

    def begin(self) -> None:
        """Let the thread begin to read, if it has not yet. Raises ReadingError if no thread can be started."""
        with self._lock:
            if self._begun or self._closed:
                return
            try:
                threading.Thread(target=self._read, name="unpacking", daemon=True).start()
            except RuntimeError as error:
                raise ReadingError from error
            self._begun = True

    def _read(self) -> None:
        try:
            self._unpacking.run(self._reading)
        except BaseException as error:  # `wait_for` raises it
            self._error = error
        finally:
            with self._lock:
                self._ended = True
                if self._closed:
                    self._free()

    def wait_for(
        self, begin: int, end: int, progress: Progress, check: Callable[[], None] = lambda: None
    ) -> int:
        """Wait until the file has its bytes from `begin` to `end`; return the end of those that it has from there.

        The waiting operation's `progress` shows that the thread reads on. Raises ReadingError, OperationCancelled if the operation was
        canceled, and the error of `check`, which is called several times a second.
        """
        self.begin()
        ticks = self._reading.ticks
        while True:
            try:
                there = self._unpacking.wait_for(0, begin, end, seconds=_LOOK_SECONDS)
            except BaseException as error:
                raise ReadingError from error
            if there >= end:
                return there
            check()
            progress.check()
            if ticks != self._reading.ticks:
                ticks = self._reading.ticks
                progress.advance(0)

    def copy(self, jobs: Sequence[tuple[Stream, Sink]], threads: int, progress: Progress) -> None:
        """Copy streams of the file to sinks, as `Unpacking` does, each part when it is there. The sinks get memory that is read-only.

        Raises ReadingError, after which the sinks have a part of the bytes, OperationCancelled, and the sinks' own errors.
        """
        pieces = list[tuple[int, int, int, Sink]]()
        for stream, sink in jobs:
            if isinstance(sink, PreparedSink):
                sink.prepare(stream.length)
            runs = self.runs[stream.name]
            progress.advance(stream.length - sum(run.length for run in runs))
            for run in runs:
                for begin in range(0, run.length, _PIECE_BYTES):
                    length = min(_PIECE_BYTES, run.length - begin)
                    pieces.append((run.place + begin, length, run.offset + begin, sink))
        pieces.sort(key=lambda piece: piece[0])

        def copy(piece: tuple[int, int, int, Sink]) -> None:
            place, length, offset, sink = piece
            self.wait_for(place, place + length, progress)
            data = self._view[place : place + length]
            if len(data) != length:
                raise ReadingError  # it was closed
            sink.write(offset, data)
            progress.advance(length)

        if self.length < _THREAD_BYTES:
            for piece in pieces:
                copy(piece)
        else:
            share_out(pieces, lambda: copy, min(threads, self.length // _THREAD_BYTES))

    def close(self) -> None:
        """Stop the thread soon, and free the memory. Nobody reads any more."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._unpacking.stop()
            if self._ended or not self._begun:
                self._free()

    def _free(self) -> None:
        self._view = memoryview(b"")
        del self._unpacking  # it has a mapping, too
        # No memory is left even if an error's traceback still refers to a mapping.
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        os.close(self.descriptor)


def _nameless(folder: Path | None) -> int:
    """Return the descriptor of a new file in memory."""
    if folder is not None:
        with suppress(OSError):
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    return os.memfd_create("gpuckpt-unpacked")


def _layout(streams: Sequence[Stream], *, whole: bool) -> tuple[dict[str, list[Run]], Stream]:
    """Return the runs of each stream, and a stream of all that is in the file."""
    chunks, runs = list[Chunk](), dict[str, list[Run]]()
    place = 0
    for stream in streams:
        found, offset = list[Run](), 0
        for chunk in stream.chunks:
            if chunk.digest or chunk.parts:
                if found and found[-1].offset + found[-1].length == offset:
                    last = found[-1]
                    found[-1] = last._replace(length=last.length + chunk.length)
                else:
                    found.append(Run(offset, offset if whole else place, chunk.length))
                chunks.append(chunk)
                place += chunk.length
            offset += chunk.length
        runs[stream.name] = found
    if whole:
        [stream] = streams
        return runs, stream
    return runs, Stream("unpacked", place, chunks)
