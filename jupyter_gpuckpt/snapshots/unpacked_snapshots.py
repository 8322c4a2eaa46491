"""What several resumes of one snapshot share: its memory, read from the store and verified once.

The rule for the memory of this process that it takes (tmpfs; it counts as the daemon's):

* A snapshot's private pages, its files and the driver's are shared by the second and further resumes of it: at the same time, or within
  `_REMEMBERED_SECONDS`. They are then in memory once more than without sharing. So each kind is shared only if it takes at most a
  `_SHARED_PART`-th of the memory that is free beside all that the resumes in progress need. A ferry's file is shared always: by itself,
  each kernel would have one as large.
* When the last resume has ended, they are kept for `_KEPT_SECONDS` for the next one, if they were shared and could be read, and all
  that is kept takes at most a `_KEPT_PART`-th of the free memory; only as long as that is so.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..engine.settings import EngineSettings
from ..errors import GpuCkptError
from ..host import processes
from ..images.unpacked_file import ReadingError, UnpackedFile
from ..store.read_only import ReadableStore
from ..wire.manifest_records import Manifest, Stream
from . import room

logger = logging.getLogger(__name__)

_REMEMBERED_SECONDS = 600.0
_KEPT_SECONDS = 60.0
_SHARED_PART, _KEPT_PART = 2, 8
#: How many snapshots are remembered.
_REMEMBERED = 32
#: How often the memory is looked at as long as anything is kept.
_LOOK_SECONDS = 1.0
#: The beginnings of the names of streams with private pages and with GPU memory.
_PAGES, _GPU = "pages/", "gpu"
#: The key of the file with all other streams.
_REST = "rest"


class UnpackedSnapshot:
    """The unpacked files of one snapshot, and how many resumes use them. Thread-safe."""

    def __init__(self, manifest: Manifest, store: ReadableStore, settings: EngineSettings) -> None:
        self._manifest, self._store, self._settings = manifest, store, settings
        self._lock = threading.Lock()
        #: By key; the lock of a key is held while its file is made, which takes 0.2 s per GB.
        self._locks = dict[str, threading.Lock]()
        self._files = dict[str, UnpackedFile | None]()
        self._failed = list[UnpackedFile]()
        self._small = dict[str, bytes]()
        #: The resumes in progress, and whether there was another one before; `UnpackedSnapshots` changes them.
        self.users = 0
        self.is_shared = False
        #: A folder on a tmpfs with huge pages for the next file; a file stays when its tree is gone.
        self.folder: Path | None = None
        #: When it is not kept any longer.
        self.end = 0.0

    @property
    def length(self) -> int:
        """The bytes of memory that its files take."""
        return sum(file.length for file in self._all())

    @property
    def has_failed(self) -> bool:
        """Whether any of its files could not be read."""
        return any(file.has_failed for file in self._all())

    def file(self, stream: str) -> UnpackedFile | None:
        """Return the file with a stream's bytes, which is being read; None if the stream is not to be shared."""
        key = _key(stream)
        with self._lock_of(key):
            self._forget_failed(key)
            if key not in self._files and self.is_shared:
                self._files[key] = self._shared(
                    [one for one in self._manifest.streams if _key(one.name) == key]
                )
            found = self._files.get(key)
        try:
            if found is not None:
                found.begin()
        except ReadingError:  # no thread can be started
            return None
        return found

    def whole_file(self, stream: str) -> UnpackedFile:
        """Return the file that is as a stream; its reading begins when somebody waits for it. Raises the errors of `UnpackedFile`."""
        with self._lock_of(stream):
            self._forget_failed(stream)
            found = self._files.get(stream)
            if found is None:
                found = self._made([self._manifest.stream(stream)], whole=True)
                self._files[stream] = found
            return found

    def small(self, stream: str, read: Callable[[], bytes]) -> bytes:
        """Return the bytes of a small stream, which are read once."""
        with self._lock_of(stream):
            if stream not in self._small:
                self._small[stream] = read()
            return self._small[stream]

    def close(self) -> None:
        """Free the memory."""
        for file in self._all():
            file.close()

    def _lock_of(self, key: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(key, threading.Lock())

    def _all(self) -> list[UnpackedFile]:
        files = [*self._files.copy().values(), *self._failed]
        return [file for file in files if file is not None]

    def _forget_failed(self, key: str) -> None:
        """Forget a file that could not be read, so that it is tried again. Others may still use what there is of it."""
        found = self._files.get(key)
        if found is not None and found.has_failed:
            self._failed.append(found)
            del self._files[key]

    def _shared(self, streams: Sequence[Stream]) -> UnpackedFile | None:
        needed = self.users * room.max_memory_bytes(self._manifest)
        free = max(0, processes.mem_available() - needed)
        if sum(one.length for one in streams) > free // _SHARED_PART:
            return None
        try:
            return self._made(streams)
        except (GpuCkptError, OSError) as error:
            # Each resume reads the store by itself, and says what is wrong with it.
            logger.info("the streams of a snapshot are not shared: %s", error)
            return None

    def _made(self, streams: Sequence[Stream], *, whole: bool = False) -> UnpackedFile:
        return UnpackedFile(
            streams,
            self._store,
            threads=self._settings.threads,
            memory_bytes=self._settings.memory_bytes,
            folder=self.folder,
            whole=whole,
        )


def _key(stream: str) -> str:
    """Return the key of the file that a stream is in: that of all private pages, its own for GPU memory, or that of the rest."""
    if stream.startswith(_GPU):
        return stream
    return _PAGES if stream.startswith(_PAGES) else _REST


class UnpackedSnapshots:
    """The unpacked snapshots of a daemon. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known = dict[str, UnpackedSnapshot]()
        #: When the resumes of snapshots last began, the latest one last.
        self._begun = OrderedDict[str, float]()
        self._keeper: threading.Thread | None = None

    @contextmanager
    def used(
        self, manifest: Manifest, store: ReadableStore, settings: EngineSettings
    ) -> Iterator[UnpackedSnapshot]:
        """Yield what a resume shares with others of its snapshot."""
        snapshot_id = manifest.info.snapshot_id
        with self._lock:
            found = self._known.get(snapshot_id)
            if found is None:
                found = self._known[snapshot_id] = UnpackedSnapshot(manifest, store, settings)
            found.users += 1
            was_begun = self._was_begun(snapshot_id)
            found.is_shared |= was_begun or found.users > 1
        for one in self._not_kept(room.max_memory_bytes(manifest)):
            one.close()
        try:
            yield found
        finally:
            with self._lock:
                found.users -= 1
                found.end = time.monotonic() + _KEPT_SECONDS
            _close_beside(self._not_kept())

    def close(self) -> None:
        """Free all memory. No resume is in progress."""
        with self._lock:
            closed = list(self._known.values())
            self._known.clear()
            self._keeper = None
        for one in closed:
            one.close()

    def _was_begun(self, snapshot_id: str) -> bool:
        """Return whether a resume of the snapshot began a short time ago; remember that one begins now."""
        last = self._begun.pop(snapshot_id, -math.inf)
        self._begun[snapshot_id] = now = time.monotonic()
        if len(self._begun) > _REMEMBERED:
            self._begun.popitem(last=False)
        return now - last < _REMEMBERED_SECONDS

    def _not_kept(self, needed_bytes: int = 0) -> list[UnpackedSnapshot]:
        """Forget what is not used and not to be kept, and return it. `needed_bytes`: of memory that is free, but will be used."""
        closed = list[UnpackedSnapshot]()
        with self._lock:
            idle = [(key, one) for key, one in self._known.items() if not one.users]
            free = max(0, processes.mem_available() - needed_bytes) if idle else 0
            kept_bytes = 0
            for key, one in sorted(idle, key=lambda item: -item[1].end):
                kept_bytes += one.length
                is_kept = one.is_shared and not one.has_failed and one.end > time.monotonic()
                if not is_kept or kept_bytes > free // _KEPT_PART:
                    closed.append(self._known.pop(key))
            if len(closed) == len(idle):
                self._keeper = None
            elif self._keeper is None and not self._starts_keeper():
                closed += [self._known.pop(key) for key, _ in idle if key in self._known]
        return closed

    def _starts_keeper(self) -> bool:
        self._keeper = threading.Thread(target=self._keep, name="unpacked", daemon=True)
        try:
            self._keeper.start()
        except RuntimeError:  # no thread can be started
            self._keeper = None
        return self._keeper is not None

    def _keep(self) -> None:
        """Look at what is kept until nothing is."""
        is_needed = True
        while is_needed:
            time.sleep(_LOOK_SECONDS)
            for one in self._not_kept():
                one.close()
            with self._lock:
                is_needed = self._keeper is threading.current_thread()


def _close_beside(snapshots: Sequence[UnpackedSnapshot]) -> None:
    """Free memory in a thread, because that takes 3 ms per GB."""

    def close() -> None:
        for one in snapshots:
            one.close()

    if any(one.length for one in snapshots):
        try:
            threading.Thread(target=close, name="unpacked-removal", daemon=True).start()
        except RuntimeError:  # no thread can be started
            close()
