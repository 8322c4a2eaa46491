"""The storing of a working folder for a snapshot: most of it before the freeze, what changed since in the freeze.

A file is not read again if device, inode, length and times are those of an earlier version. They miss changes of two kinds, so these files
are always read: files that the tree has mapped shared and writable, because a store to a page that is dirty already leaves the times as
they are, and files that were changed less than 20 ms before, because the clock of the times has steps of some milliseconds. On a
tmpfs stores to mapped pages leave no time at all, so there all files are read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from ...engine.settings import EngineSettings
from ...errors import StoreError
from ...host import machine_profile, processes
from ...images.composing import Predecessor
from ...images.pack import BytesSource, Packed, Source, pack
from ...linux.beneath import Beneath, is_tmpfs
from ...store.local import LocalStore
from ...store.manifest_checks import is_plain
from ...store.manifests import digests_of
from ...wire.folder_records import TABLE, FolderEntry, FolderRules, SavedFolder
from ...wire.manifest_records import Manifest
from ...wire.plurals import some
from ...wire.progress import Progress
from .folder_walks import DIRECTORY, FILE, SYMLINK, FolderNotSaved, Present, walk
from .ignore_rules import is_home
from .stored_folders import StoredFile, StoredFolder, joined, name_of, stored_folder

#: Files that changed less than this before they were read may change again without another time.
_UNSURE_NS = 20_000_000
#: The most bytes that are copied in a freeze, to be stored after it; more are stored in the freeze.
_COPIED_BYTES = 256 << 20


class FolderStored(NamedTuple):
    """A folder in the store, which stays there while the `FolderSave` is begun."""

    record: SavedFolder
    packed: Packed
    warnings: list[str]


class FolderSave:
    """The storing of one folder: `begun`, `look`, `finish`.

    `root`: the folder as this process sees it. `base`: as in `SavedFolder`. `earlier`: a version of the same folder.
    """

    def __init__(
        self,
        root: Path,
        path: str,
        rules: FolderRules,
        store: LocalStore,
        settings: EngineSettings,
        earlier: StoredFolder | None = None,
        base: str = "",
        *,
        is_saved: bool = True,
    ) -> None:
        self._root, self._path, self._rules, self._base = root, path, rules, base
        self._store, self._settings = store, settings
        self._earlier = earlier or StoredFolder({}, [])
        self._held = ExitStack()
        self._files: dict[str, StoredFile] = {}
        self._left_out: list[str] = []
        self._copies: list[BytesSource] = []
        self._packed = Packed.of_nothing()
        self._warnings: list[str] = []
        self._boot_id = ""
        #: False if it is not to be saved, or cannot be; then nothing is done.
        self.is_saved = is_saved

    @contextmanager
    def begun(self, progress: Progress, pids: Collection[int] = ()) -> Iterator[Self]:
        """Store the folder as it is now, while the processes `pids` may go on; the chunks are held in the context.

        Raises StoreError, OperationCancelled.
        """
        with self._held:
            if self.is_saved:
                self._begin(progress, pids)
            yield self

    def _begin(self, progress: Progress, pids: Collection[int]) -> None:
        with self._unless_impossible():
            if not is_plain(self._path):
                raise FolderNotSaved(
                    f"The path of the working folder is {self._path!r}, so its files are not in the snapshot."
                )
            if is_home(Path(self._path)):
                raise FolderNotSaved(
                    "The working folder is the home directory or contains it, so its files are not in the snapshot."
                    " Start the kernel in a folder of its own."
                )
            self._boot_id = machine_profile.host().boot_id
            self._files = self._usable()
            with Beneath(self._root) as beneath:
                self._store_changed(beneath, pids, progress)

    def look(self, pids: Collection[int] = ()) -> None:
        """Copy what has changed since it was begun, while all processes that write to the folder stand still."""
        if not self.is_saved:
            return
        with self._unless_impossible(), Beneath(self._root) as beneath:
            self._store_changed(beneath, pids, None)

    def finish(self, progress: Progress) -> FolderStored | None:
        """Store what `look` has copied; return the folder, None if it is not saved."""
        if not self.is_saved:
            return None
        copied = self._pack(self._copies, progress)
        self._copies = []
        self._enter(copied)
        stream, table = joined(self._files, self._left_out)
        stored = self._pack([BytesSource(TABLE, table)], progress)
        new_bytes = self._packed.new_bytes + stored.new_bytes
        packed = Packed([stream, *stored.streams], 0, new_bytes)
        count = sum(one.entry.kind == FILE for one in self._files.values())
        record = SavedFolder(self._path, count, stream.length, self._base)
        return FolderStored(record, packed, self._warnings)

    @property
    def warnings(self) -> list[str]:
        """Sentences for users, for instance why the folder is not saved."""
        return self._warnings

    def stored(self) -> StoredFolder:
        """Return the files that are stored; those of the last moment at which it was looked at."""
        return StoredFolder(self._files, self._left_out, self._boot_id)

    @contextmanager
    def _unless_impossible(self) -> Iterator[None]:
        """Give the folder up, with a warning, if the block finds that it cannot be saved."""
        try:
            yield
            return
        except FolderNotSaved as error:
            reason = str(error)
        except OSError as error:
            reason = (
                f"The working folder cannot be read, so its files are not in the snapshot: {error}."
            )
        self.is_saved, self._copies = False, []
        self._warnings.append(reason)

    def _usable(self) -> dict[str, StoredFile]:
        """Return the files of the earlier version whose chunks are in the store, which are held from now on."""
        if self._earlier.boot_id != self._boot_id:
            return {}
        digests = digests_of([one.stream for one in self._earlier.files.values()])
        self._held.enter_context(self._store.holding(digests))
        missing = self._store.missing(set(digests))
        return {
            path: one
            for path, one in self._earlier.files.items()
            if not missing or missing.isdisjoint(digests_of([one.stream]))
        }

    def _store_changed(
        self, beneath: Beneath, pids: Collection[int], progress: Progress | None
    ) -> None:
        """Walk, and store the files that are not known to be as they were; without `progress` only copy them."""
        began = time.time_ns()
        excluded = _identities([*self._settings.own_folders, self._store.root])
        walked = walk(beneath, self._rules, excluded)
        unsure = _All() if is_tmpfs(beneath.descriptor) else _mapped(pids)
        files: dict[str, StoredFile] = {}
        changed: dict[str, Present] = {}
        for path, present in walked.found.items():
            known = self._files.get(path)
            entry = _entry(path, present, unsure, began)
            if present.kind != FILE:
                files[path] = StoredFile(entry, [])
            elif known is not None and entry.seen and _is_same(known.entry, entry):
                files[path] = StoredFile(entry, known.chunks)
            else:
                files[path] = StoredFile(entry, [])
                changed[path] = present
        self._files, self._left_out = files, walked.left_out
        self._read(beneath, changed, progress)

    def _read(
        self, beneath: Beneath, changed: Mapping[str, Present], progress: Progress | None
    ) -> None:
        self._copies = []
        sources = [_FolderFile(beneath, path, one.status.st_size) for path, one in changed.items()]
        if progress is None and sum(one.length for one in sources) <= _COPIED_BYTES:
            self._copies = [_copied(one) for one in sources]
        else:
            self._enter(self._pack(sources, progress or Progress()))
        moved = [one.path for one in sources if one.fell_short or _has_moved(beneath, one, changed)]
        for path in moved:
            if progress is not None:  # `look` reads it again
                self._files[path] = _unsure(self._files[path])
            else:
                self._leave_out(path)
        if moved and progress is None:
            self._warnings.append(
                f"Another program wrote to files while they were saved; they are not in the snapshot: {some(moved)}."
            )

    def _leave_out(self, path: str) -> None:
        del self._files[path]
        self._left_out.append(path)
        self._copies = [one for one in self._copies if one.name != name_of(path)]

    def _pack(self, sources: Sequence[Source], progress: Progress) -> Packed:
        if not sources:
            return Packed.of_nothing()
        names = {source.name for source in sources}
        before = [
            one.stream
            for path, one in self._earlier.files.items()
            if name_of(path) in names and one.chunks
        ]
        return pack(
            sources,
            self._store,
            threads=self._settings.threads,
            memory_bytes=self._settings.memory_bytes,
            predecessor=Predecessor(before) if before else None,
            progress=Progress(lambda _: progress.check()),
        )

    def _enter(self, packed: Packed) -> None:
        """Note the chunks of files that were stored."""
        self._packed = self._packed.and_also(packed)
        for stream in packed.streams:
            path = stream.name.partition("/")[2]
            self._files[path] = self._files[path]._replace(chunks=stream.chunks)
        self._held.enter_context(self._store.holding(digests_of(packed.streams)))


class _FolderFile:
    """A source of a file's bytes, of the length that it had; what it lacks meanwhile is read as zeros, and noted."""

    def __init__(self, beneath: Beneath, path: str, length: int) -> None:
        self._beneath, self.path, self.name, self.length = beneath, path, name_of(path), length
        self.fell_short = False

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`."""
        try:
            descriptor = self._beneath.open(self.path)
        except OSError:
            self.fell_short, buffer[:] = True, bytes(len(buffer))
            return
        try:
            while len(buffer):
                count = os.preadv(descriptor, [buffer], offset)
                if not count:
                    self.fell_short, buffer[:] = True, bytes(len(buffer))
                    return
                offset, buffer = offset + count, buffer[count:]
        finally:
            os.close(descriptor)


class _All(frozenset[int]):
    """A set that has every number."""

    def __contains__(self, _: object) -> bool:
        return True


def earlier_folder(manifest: Manifest | None, store: LocalStore) -> StoredFolder | None:
    """Return the files of an earlier snapshot, None if it has none or they cannot be read: then all is read again."""
    if manifest is None or manifest.folder is None:
        return None
    try:
        return stored_folder(manifest, store)
    except StoreError:
        return None


def _copied(source: _FolderFile) -> BytesSource:
    data = bytearray(source.length)
    source.read_into(0, memoryview(data))
    return BytesSource(source.name, data)


def _entry(path: str, present: Present, unsure: Collection[int], began: int) -> FolderEntry:
    """Return the entry of what is at a path. `began`: when its status had not been read yet. `unsure`: inodes."""
    status = present.status
    if present.kind == SYMLINK:
        return FolderEntry(path, SYMLINK, target=present.target)
    mode = status.st_mode & 0o777
    if present.kind == DIRECTORY:
        return FolderEntry(path, DIRECTORY, mode)
    is_young = max(status.st_mtime_ns, status.st_ctime_ns) > began - _UNSURE_NS
    is_sure = not is_young and status.st_ino not in unsure
    seen = [status.st_dev, status.st_ino, status.st_ctime_ns] if is_sure else []
    return FolderEntry(path, FILE, mode, status.st_mtime_ns, status.st_size, "", seen)


def _is_same(known: FolderEntry, entry: FolderEntry) -> bool:
    """Return whether the content of a file is surely that of its entry in an earlier version."""
    return bool(known.seen) and (known.kind, known.seen, known.mtime_ns, known.length) == (
        entry.kind,
        entry.seen,
        entry.mtime_ns,
        entry.length,
    )


def _unsure(file: StoredFile) -> StoredFile:
    entry = file.entry
    return file._replace(
        entry=FolderEntry(entry.path, FILE, entry.mode, entry.mtime_ns, entry.length)
    )


def _has_moved(beneath: Beneath, source: _FolderFile, before: Mapping[str, Present]) -> bool:
    """Return whether a file has other times or another length than before it was read."""
    status, was = beneath.status(source.path), before[source.path].status
    return status is None or (
        (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        != (was.st_ino, was.st_size, was.st_mtime_ns, was.st_ctime_ns)
    )


def _mapped(pids: Iterable[int]) -> Collection[int]:
    """Return the inodes of the files that processes have mapped shared and writable.

    Of some file systems Linux shows another device there than in the status of a file, so devices are not compared.
    """
    return {
        area.inode
        for pid in pids
        for area in processes.maps(pid)
        if area.inode and "w" in area.perms and not area.private
    }


def _identities(folders: Iterable[Path]) -> set[tuple[int, int]]:
    found = set()
    for folder in folders:
        try:
            status = folder.stat()
        except OSError:
            continue
        found.add((status.st_dev, status.st_ino))
    return found
