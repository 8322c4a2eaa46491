"""Import of snapshots from archives that `export.py` wrote, here or on another machine.

The archive is an untrusted stream: names are checked against a fixed set, lengths are bounded before anything is read, and all content
is verified. Chunks are stored as they arrive, after comparison with their digests; known ones are not stored again. Snapshots are listed
only when the archive has ended properly and everything that they need is in the store. An earlier failure leaves the store unchanged.
An archive of a whole store (made by `tar`) is accepted, too.
"""

from __future__ import annotations

import logging
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from ..engine.placing import problem_of_images
from ..errors import (
    ArchiveInvalid,
    GpuCkptError,
    ManifestInvalid,
    ObjectCorrupt,
    SnapshotNotFound,
    StoreError,
)
from ..store import annotation_files, manifests, pack_streams
from ..store.annotation_files import Annotations
from ..store.local import LocalStore
from ..store.pack_streams import Take
from ..store.writer import PackWriter, Record
from ..wire.deadlines import Deadline
from ..wire.manifest_records import Manifest, SnapshotInfo
from .stored_images import FILES, write_images

logger = logging.getLogger(__name__)

#: The limit of all manifests and annotations of an archive together, which are in memory until its end.
_MAX_HELD_BYTES = 256 << 20
#: The bytes of chunks that are collected for one append.
_APPEND_BYTES = 8 << 20
_SKIP_BYTES = 1 << 20
_NAME = re.compile(r"(packs|manifests)/([A-Za-z0-9_][A-Za-z0-9._-]*)\.(pack|manifest|annotations)")
#: Names of other files in a store, which are skipped.
_IGNORED = re.compile(r"\.?|packs|manifests|catalog\.sqlite(-\w+)?|lock")


def import_archive(store: LocalStore, take: Take) -> list[SnapshotInfo]:
    """Import the snapshots of an archive; `take(n)` returns its next n bytes, fewer only at its end.

    Raises ArchiveInvalid, SnapshotExists, FormatTooNew, StoreFull, StoreUnavailable, and what `take` raises.
    """
    store.pack_checks.look()
    try:
        with store.writer() as writer:
            archive = _Archive(store, writer, take)
            found = archive.read()
            writer.finish()
            for content in found.values():
                _check_images(content.manifest(store), store)
            return _publish(store, found, archive.annotations)
    except BaseException:
        # Imported chunks are removed, unless another operation relies on them meanwhile.
        try:
            store.sweep()
        except StoreError as error:
            logger.warning("Packs of a failed import could not be removed: %s", error)
        raise


class _Content(NamedTuple):
    """A snapshot's manifest in encoded form; it is decoded on demand, because many decoded ones would take much memory."""

    snapshot_id: str
    data: bytes

    def manifest(self, store: LocalStore) -> Manifest:
        """Return the decoded manifest. Raises ArchiveInvalid."""
        path = manifests.path_of(store.root, self.snapshot_id)
        try:
            return manifests.parse(path, self.data, Manifest)
        except ManifestInvalid as error:
            raise _invalid(error.message.rstrip(".")) from error


class _Archive:
    """A reader of one archive."""

    def __init__(self, store: LocalStore, writer: PackWriter, take: Take) -> None:
        self._store, self._writer, self._source = store, writer, take
        self._manifests: dict[str, _Content] = {}
        #: The annotations of the snapshots, by id.
        self.annotations: dict[str, Annotations] = {}
        self._held_bytes = 0

    def read(self) -> dict[str, _Content]:
        """Read the archive; return its snapshots by id. All their chunks are in the store then."""
        for member in self._members():
            name = _name_of(member)
            match = _NAME.fullmatch(name)
            if match is None:
                self._skip(member.size)
            elif match[3] == "pack":
                self._pack(name, member.size)
            elif match[3] == "manifest":
                self._manifest(match[2], member.size)
            else:
                self._annotation(match[2], member.size)
            self._take(-member.size % tarfile.BLOCKSIZE)
        if not self._manifests:
            raise _invalid("it contains no snapshot")
        for snapshot_id, content in self._manifests.items():
            digests = manifests.references(content.manifest(self._store))
            missing = len(digests) - len(self._writer.known(digests))
            if missing:
                raise _invalid(f"{missing} chunks of snapshot {snapshot_id} are missing")
        return self._manifests

    def _members(self) -> Iterator[tarfile.TarInfo]:
        # tarfile's own reader is not used: it reads extended headers into memory, whatever length they state.
        while True:
            block = self._take(tarfile.BLOCKSIZE)
            if not block.strip(b"\0"):
                self._take(tarfile.BLOCKSIZE)
                while self._source(_SKIP_BYTES):  # tar pads its last record
                    pass
                return
            try:
                member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.HeaderError as error:
                raise _invalid("it is not a tar archive, or was altered") from error
            if member.isdir():
                member.size = 0
            elif not member.isreg() or member.size < 0:
                raise _invalid(f"its member {member.name!r} is not an ordinary file")
            yield member

    def _pack(self, name: str, length: int) -> None:
        gathered: list[Record] = []
        size = 0
        for record in pack_streams.records(PurePosixPath(name).name, length, self._take):
            gathered.append(record)
            size += len(record.payload)
            if size >= _APPEND_BYTES:
                self._writer.append_all(gathered)
                gathered, size = [], 0
        if gathered:
            self._writer.append_all(gathered)

    def _manifest(self, snapshot_id: str, length: int) -> None:
        self._require_new(snapshot_id)
        content = self._manifests[snapshot_id] = _Content(snapshot_id, self._held(length))
        content.manifest(self._store)  # an invalid manifest is refused before the rest is read

    def _annotation(self, snapshot_id: str, length: int) -> None:
        self._require_new(snapshot_id)
        try:
            found = annotation_files.parse(snapshot_id, self._held(length))
        except msgspec.DecodeError as error:
            raise _invalid(f"the annotations of {snapshot_id} cannot be decoded") from error
        self.annotations[snapshot_id] = msgspec.structs.replace(
            found, deleted_at=0.0, kept=Deadline()
        )

    def _held(self, length: int) -> bytes:
        """Return the next bytes, and count them as held in memory."""
        self._held_bytes += tarfile.BLOCKSIZE + length
        if self._held_bytes > _MAX_HELD_BYTES:
            raise _invalid("its manifests are longer than can be")
        return self._take(length)

    def _require_new(self, snapshot_id: str) -> None:
        try:
            self._store.require_absent(snapshot_id)
        except SnapshotNotFound as error:
            raise _invalid(f"{snapshot_id!r} is not the id of a snapshot") from error

    def _skip(self, length: int) -> None:
        while length:
            length -= len(self._take(min(length, _SKIP_BYTES)))

    def _take(self, count: int) -> bytes:
        taken = self._source(count)
        if len(taken) < count:
            raise _invalid("it is truncated")
        return taken


def _check_images(manifest: Manifest, store: LocalStore) -> None:
    """Raise ArchiveInvalid if the images have names that no save would have written."""
    try:
        with TemporaryDirectory() as directory:
            write_images(manifest, store, Path(directory), FILES)
            problem = problem_of_images(manifest, Path(directory))
    except ObjectCorrupt as error:
        problem = error.message.rstrip(".")
    if problem:
        raise _invalid(problem)


def _publish(
    store: LocalStore, found: dict[str, _Content], annotations: dict[str, Annotations]
) -> list[SnapshotInfo]:
    done: list[SnapshotInfo] = []
    try:
        for snapshot_id, content in found.items():
            manifest = content.manifest(store)
            store.publish(manifest)
            done.append(manifest.info)
            stated = annotations.get(snapshot_id, Annotations()).stated
            done[-1] = store.annotate(manifest.info.snapshot_id, stated)
    except GpuCkptError:
        if done:
            store.delete(*(info.snapshot_id for info in done))
        raise
    return done


def _name_of(member: tarfile.TarInfo) -> str:
    """Return the member's name without a leading `./`. Raises ArchiveInvalid for a name that a store does not have."""
    name = member.name.removeprefix("./").rstrip("/")
    if not _NAME.fullmatch(name) and not _IGNORED.fullmatch(name):
        raise _invalid(f"{member.name!r} does not belong there")
    return name


def _invalid(why: str) -> ArchiveInvalid:
    return ArchiveInvalid(
        f"The archive cannot be imported: {why}.",
        hint="It has to be an exported snapshot. The store is as it was.",
    )
