"""The store in a local directory: packs, manifests, a catalog and a lock.

packs/<time>-<random>.pack    chunks (packs.py)
manifests/<snapshot>.manifest one per snapshot, written last (manifests.py)
manifests/<snapshot>.annotations changes by the user since the save (annotation_files.py)
manifests/<snapshot>.stub     a mark that its chunks are in a remote (stub_files.py)
catalog.sqlite                which pack holds which chunk; can be rebuilt (catalog.py)
lock                          restricts the store to one process (lock.py)
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import ObjectCorrupt, StoreError, StoreFull
from ..linux import disk_reserve
from ..wire.deadlines import Deadline, after
from ..wire.manifest_records import Manifest, SnapshotInfo, Stream
from ..wire.snapshot_records import SnapshotChange, SnapshotChangeKind, StoreUsage
from . import annotation_files, faults, folders, manifests, packs, stub_files
from .chunks_in_use import PinsInUse
from .damage import Damage
from .faults import store_errors
from .index.catalog import Catalog
from .index.needs import Needs, add, chosen_of
from .index.places import Location, Places, unique
from .lock import StoreLock
from .pack_checks import PackChecks
from .packs import Entry
from .repack import Repacking
from .snapshot_listing import Listed, Listing
from .snapshot_rows import FreshPlaces, Records
from .space import Space
from .staging import Needed, Staged, Staging, exists
from .stubs import Stubs
from .unreferenced_packs import Collector
from .writer import PACK_BYTES, PackWriter

logger = logging.getLogger(__name__)


class Weights:
    """The joint size of snapshots in one store, for one call of `retention.judge`: compressed bytes, each chunk counted once.

    Headers of chunks and packs are not counted, nor are chunks that no snapshot needs but that still exist: usually a few percent, and
    never more than half of a pack (`repack.py`). It is slow, so use it in a thread.
    """

    def __init__(self, root: Path, catalog: Catalog, records: Records) -> None:
        self._root, self._catalog, self._records = root, catalog, records
        self._on: Needs = {}
        self._lengths: dict[str, NDArray[Any] | None] = {}
        #: The needs that were read last, cached because a weighed snapshot is usually added next.
        self._read: tuple[str, Needs] = ("", {})

    def weight(self, info: SnapshotInfo) -> int:
        """Return the bytes that this snapshot takes in addition to those that were added.

        For an unreadable snapshot, return all bytes that its record states.
        """
        try:
            needs = self._needs(info)
        except StoreError:
            return info.sizes.stored_bytes
        with store_errors(self._root):
            return sum(self._weight(pack, bits) for pack, bits in needs.items())

    def add(self, info: SnapshotInfo) -> None:
        """Add this snapshot to those that are kept."""
        try:
            add(self._on, self._needs(info))
        except StoreError:  # the chunks that it shares are unknown
            return

    def _weight(self, pack: str, bits: NDArray[np.uint8]) -> int:
        if pack not in self._lengths:
            numbers = self._catalog.numbers(pack)
            self._lengths[pack] = None if numbers is None else numbers["stored_length"].copy()
        lengths = self._lengths[pack]
        if lengths is None:  # deleted meanwhile
            return 0
        new = bits & ~self._on[pack] if pack in self._on else bits
        return int(lengths[chosen_of(new, len(lengths))].sum(dtype=np.int64))

    def _needs(self, info: SnapshotInfo) -> Needs:
        if self._read[0] != info.snapshot_id:
            with store_errors(self._root):
                self._read = (info.snapshot_id, self._records.of(info.snapshot_id))
        return self._read[1]


class Upkeep:
    """The background thread of a store; it is started only if there is work, which may take long in a large store.

    Snapshots without a record get one (all of them if the catalog was lost), and rows of packs that are gone are deleted.
    """

    def __init__(self, catalog: Catalog, records: Records) -> None:
        self._catalog, self._records = catalog, records
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if catalog.untidy or not records.complete:
            self._thread = threading.Thread(target=self._run, name="store upkeep", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for its end; may be called again."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._catalog.purge(self._stop)
            for _ in self._records.all(stop=self._stop):
                if self._stop.is_set():
                    return
        except Exception as error:
            # Snapshots without a record are read on demand.
            level = logging.WARNING if isinstance(error, (StoreError, OSError)) else logging.ERROR
            logger.log(level, "Not all snapshots are recorded: %s", error)


def end_store(upkeep: Upkeep, catalog: Catalog, lock: StoreLock) -> None:
    """Stop the background work of a store, close its catalog and release its directory."""
    upkeep.stop()
    try:
        catalog.close()
    except sqlite3.Error as error:
        logger.warning("The catalog was not closed cleanly; the next opening checks it: %s", error)
    finally:
        lock.release()


class LocalStore:
    """The store in the directory `root`, which is created (0700). All methods are thread-safe.

    One process has it open at a time: opening raises StoreUnavailable, which names the other process or the reason why the
    directory cannot be used, and ConfigurationError if it holds other files. Opening removes what a crash left half-written and
    updates the catalog. Call `close` when done (the end of the object or of the process closes it as well). `on_change`: called in any
    thread for every change of a snapshot once the change is on disk.
    """

    def __init__(
        self,
        root: Path,
        *,
        pack_bytes: int = PACK_BYTES,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[SnapshotChange], None] = lambda change: None,
    ) -> None:
        self.root, self.on_change = root, on_change
        self._packs, self._manifests = root / "packs", root / "manifests"
        self._pack_bytes = pack_bytes
        self._in_use = PinsInUse(clock)
        # Guards decisions about the removal of chunks (catalog look-ups together with pins in use). Held for milliseconds.
        self._lock = threading.RLock()
        # Serializes changes of annotations and removals of manifests. Held while small files are written; taken before `_lock`.
        self._changing = threading.RLock()
        with store_errors(root), ExitStack() as undo:
            folders.prepare(root, self._packs)
            store_lock = StoreLock(root / "lock")
            undo.callback(store_lock.release)
            for directory in (self._packs, self._manifests):
                folders.make(directory)
            folders.remove_leftovers(self._packs, self._manifests)
            self._catalog = Catalog(root / folders.CATALOG, self._packs)
            undo.callback(self._catalog.close)
            self._records = Records(self._manifests, self._catalog)
            upkeep = Upkeep(self._catalog, self._records)
            undo.pop_all()
        self._listing = Listing(self._manifests, self._records)
        self._staging = Staging(self._records, self._in_use, self._lock)
        #: The snapshots whose chunks are only in a remote.
        self.stubs = Stubs(self._manifests, self._listing, self._staging, self._changing)
        self._collector = Collector(
            self._records, catalog=self._catalog, in_use=self._in_use, lock=self._lock
        )
        self._repacking = Repacking(
            self._packs,
            self._records,
            catalog=self._catalog,
            in_use=self._in_use,
            lock=self._lock,
            pack_bytes=pack_bytes,
        )
        #: The checks of packs that something else may have changed, and the snapshots that lack chunks.
        self.pack_checks = PackChecks(root, self._catalog)
        self.damage = Damage(self._manifests, self._listing, self._records, self._catalog)
        self._space = Space(root, self._manifests, self._catalog, self._records)
        self._end = weakref.finalize(self, end_store, upkeep, self._catalog, store_lock)

    def close(self) -> None:
        """Release the directory; may be called again. The store cannot be used afterwards."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def writer(self) -> PackWriter:
        """Return a writer for one operation, to be used as a context manager.

        It relies on no pack of which `pack_checks.look` has found that it was changed from outside; so the operation begins with that.
        """
        return PackWriter(
            self.root,
            self._packs,
            catalog=self._catalog,
            in_use=self._in_use,
            lock=self._lock,
            sweep=self.sweep,
            pack_bytes=self._pack_bytes,
        )

    def locate(self, digests: Collection[bytes]) -> Places:
        """Return the places of all `digests`. Raises ObjectCorrupt if one is not in the store."""
        with store_errors(self.root):
            found = self._catalog.recent.locate(digests, keep=True)
            while len(found) < len(unique(digests)) and self._catalog.index_again():
                found = self._catalog.locate(digests)
        if len(found) < len(unique(digests)):
            raise packs.missing_chunk(self.root, *set(digests).difference(found.digests))
        return found

    def find(self, digests: Collection[bytes]) -> Places:
        """Return the places of those of `digests` that the store has and that are not known to be damaged."""
        with store_errors(self.root):
            return self._catalog.recent.locate(digests).undamaged()

    def missing(self, digests: set[bytes]) -> set[bytes]:
        """Return the `digests` of chunks that the store lacks, or has only damaged as far as it knows."""
        if self._catalog.recent.has_all(digests):
            return set()
        return digests.difference(self.find(digests).digests)

    def needed(self, streams: Sequence[Stream]) -> Needed:
        """Return the stored chunks of streams, which a pin in use holds. Raises ObjectCorrupt if one is not there."""
        digests = manifests.digests_of(streams)
        return Needed(digests, FreshPlaces(self._catalog.moves, self.locate(digests)))

    def path_of(self, pack: str) -> Path:
        """Return the path of a pack that `locate` named; the pack may be removed before it is read."""
        return self._catalog.path_of(pack)

    def link_pack(self, path: Path) -> None:
        """Add a pack of another store by a hard link; a sweep removes it unless its chunks are held or needed."""
        with store_errors(self.root):
            self._catalog.link(path)

    def read_span(self, path: str, offset: int, into: memoryview) -> int:
        """Fill `into` from `offset` of a pack, unchecked; return the number of bytes read, fewer if the pack is truncated or gone."""
        with store_errors(self.root):
            return packs.read_span(Path(path), offset, into)

    def read(self, digest: bytes) -> tuple[int, bytes | memoryview, int]:
        """Return codec, payload and raw length of a chunk; the caller checks the digest. Raises ObjectCorrupt if its record is damaged."""
        place = self._place(digest)
        entry = Entry(digest, place.offset, *place[3:])
        with store_errors(self.root):
            try:
                payload = packs.read_payload(self._catalog.path_of(place.pack), entry)
            except ObjectCorrupt:
                self._catalog.mark_damaged(digest)
                raise
        return entry.codec, payload, entry.raw_length

    def load(self, digest: bytes) -> bytes:
        """Return a chunk, decompressed and verified. Raises ObjectCorrupt, which names the pack, and FormatTooNew."""
        data, why = packs.unpacked(digest, *self.read(digest))
        if not why:
            return data
        path = self._catalog.path_of(self._place(digest).pack)
        self._catalog.mark_damaged(digest)
        raise packs.damaged_chunk(path, digest, why)

    @contextmanager
    def holding(self, digests: Collection[bytes]) -> Iterator[None]:
        """Keep these chunks in the store inside the context, in which the collection must not change."""
        with self._lock:
            pin = self._in_use.take(digests)
        try:
            yield
        finally:
            with self._lock:
                self._in_use.release(pin)

    def publish(self, manifest: Manifest) -> None:
        """Publish a snapshot; it exists durably on return. Raises what `staged` raises."""
        with self.staged(manifest) as staged:
            staged.publish()

    @contextmanager
    def staged(self, manifest: Manifest, needed: Needed | None = None) -> Iterator[Staged]:
        """Write a snapshot's manifest to the disk; the snapshot exists once `Staged.publish` is called.

        `needed`: the result of `needed` for its streams, if there is one. Raises SnapshotExists, StoreFull, StoreUnavailable, and
        ObjectCorrupt if a chunk that it refers to is not in the store.
        """
        snapshot_id = manifest.info.snapshot_id
        digests = needed.digests if needed else manifests.digests_of(manifest.streams)
        with self._staging.alone(snapshot_id):
            try:
                with self.holding(digests):
                    with store_errors(self.root):
                        self.require_absent(snapshot_id)
                        needed = needed or self.needed(manifest.streams)
                        staged = Staged(self._manifests, manifest)
                    with self._staging.recorded(staged, needed):
                        yield staged
                    if not staged.published:
                        return
            except StoreFull:
                # The snapshot will not exist, so the pins in use on its chunks end.
                with self._lock:
                    self._in_use.published(digests)
                self.sweep()
                raise
        self._tell(staged.manifest.info, SnapshotChangeKind.ADDED)

    def require_absent(self, snapshot_id: str) -> None:
        """Raise SnapshotExists if there is a snapshot of this id, even a deleted one that is still kept."""
        if manifests.path_of(self._manifests, snapshot_id).exists():
            raise exists(snapshot_id)

    def manifest(self, snapshot_id: str) -> Manifest:
        """Return the manifest, verified, with the annotations. Raises SnapshotNotFound, ManifestInvalid, FormatTooNew."""
        with store_errors(self.root):
            manifest = manifests.read(manifests.path_of(self._manifests, snapshot_id), Manifest)
            return msgspec.structs.replace(manifest, info=self._listing.get(snapshot_id).info)

    def manifest_file(self, snapshot_id: str) -> bytes:
        """Return the content of the manifest's file, for an export. Raises as `manifest` does."""
        self.manifest(snapshot_id)
        with store_errors(self.root):
            return manifests.path_of(self._manifests, snapshot_id).read_bytes()

    def listed(self, kernel_id: str | None = None) -> list[Listed]:
        """Return all snapshots or one kernel's, newest first, deleted ones included; damaged manifests are logged and left out."""
        with store_errors(self.root):
            return [one for one in self._listing.all() if kernel_id in {None, one.info.kernel_id}]

    def snapshots(self, kernel_id: str | None = None) -> list[SnapshotInfo]:
        """Return the entries of all snapshots or of one kernel's that are not deleted, newest first."""
        return [one.info for one in self.listed(kernel_id) if not one.annotations.deleted]

    def deleted(self) -> list[Listed]:
        """Return the deleted snapshots that are kept so that their deletion can be undone."""
        return [one for one in self.listed() if one.annotations.deleted]

    def annotate(self, snapshot_id: str, changes: dict[str, Any]) -> SnapshotInfo:
        """Change title, note or pin. Raises SnapshotNotFound, StoreFull, StoreUnavailable."""
        with self._changing, store_errors(self.root):
            before = self._listing.get(snapshot_id)
            after = self._listing.alter(before, changes)
        if after != before:
            self._tell(after.info, SnapshotChangeKind.CHANGED)
        return after.info

    def mark_deleted(self, snapshot_id: str, undo_seconds: float) -> Deadline:
        """Mark a snapshot as deleted; return when `purge` may remove it for good.

        On a full disk, or if its manifest cannot be read, it is removed at once. Raises SnapshotNotFound.
        """
        changes = {"deleted_at": time.time(), "kept": (until := after(undo_seconds))}
        with self._changing, store_errors(self.root):
            readable = self._listing.find(snapshot_id) is not None
            if readable and undo_seconds and not faults.is_nearly_full(self.root):
                try:
                    with store_errors(self.root):
                        gone = self._listing.alter(self._listing.get(snapshot_id), changes)
                except StoreFull:
                    logger.warning("The disk is full: snapshot %s is removed at once.", snapshot_id)
                else:
                    self._tell(gone.info, SnapshotChangeKind.REMOVED)
                    return until
        self.delete(snapshot_id)
        return after(0.0)

    def undelete(self, snapshot_id: str) -> SnapshotInfo:
        """Undo a deletion; do nothing if there was none. Raises SnapshotNotFound if it is too late."""
        with self._changing, store_errors(self.root):
            listed = self._listing.find(snapshot_id)
            if listed is not None and not listed.annotations.deleted:
                return listed.info
            if listed is None or not listed.annotations.kept.left:
                raise manifests.not_found(snapshot_id)
            back = self._listing.alter(listed, {"deleted_at": 0.0, "kept": Deadline()})
        self._tell(back.info, SnapshotChangeKind.RESTORED)
        return back.info

    def purge(self) -> list[str]:
        """Remove the deleted snapshots whose time for undoing is over; return their ids."""
        ids = [one.info.snapshot_id for one in self.deleted() if not one.annotations.kept.left]
        if ids:
            self.delete(*ids)
        return ids

    def delete(self, *snapshot_ids: str) -> int:
        """Remove snapshots for good, readable or not, and the chunks that only they needed; return the number of bytes freed.

        Chunks that other snapshots share or that a running operation relies on are kept. Other chunks in the same packs may stay for
        a while. Raises SnapshotNotFound, and then removes none.
        """
        paths = [manifests.path_of(self._manifests, snapshot_id) for snapshot_id in snapshot_ids]
        with self._changing, store_errors(self.root):
            identities = {one: self._records.identity(one) for one in snapshot_ids}
            for snapshot_id, identity in identities.items():
                if not identity:
                    raise manifests.not_found(snapshot_id)
            listed = [self._listing.find(snapshot_id) for snapshot_id in snapshot_ids]
            for path in paths:
                path.unlink()
                # These go after the manifest, or a crash in between would list a deleted snapshot again.
                path.with_suffix(annotation_files.SUFFIX).unlink(missing_ok=True)
                path.with_suffix(stub_files.SUFFIX).unlink(missing_ok=True)
            packs.sync_directory(self._manifests)
            self._records.forget(identities)
        for snapshot_id, one in zip(snapshot_ids, listed, strict=True):
            if one is None or not one.annotations.deleted:  # else `mark_deleted` has reported it
                kernel_id = one.info.kernel_id if one else ""
                self.on_change(SnapshotChange(snapshot_id, kernel_id, SnapshotChangeKind.REMOVED))
        return self.collect()

    def collect(self) -> int:
        """Remove unneeded packs and rewrite those of which little is needed; return the number of bytes freed."""
        freed = self.sweep()
        try:
            with store_errors(self.root):
                if written := self._repacking.run():
                    freed += self.sweep() - written
        except StoreError as error:
            logger.warning("Packs of which little is needed are not rewritten: %s", error)
        return freed

    def sweep(self) -> int:
        """Remove unreferenced packs; return the number of bytes freed."""
        with store_errors(self.root):
            return self._collector.run()

    def weights(self) -> Weights:
        """Return a counter of the joint size of snapshots, for retention."""
        return Weights(self.root, self._catalog, self._records)

    def space(self) -> StoreUsage:
        """Return the disk use of the snapshots. It counts again if the snapshots have changed, so call it in a thread."""
        with store_errors(self.root):
            usage = self._space.of(self.snapshots(), self.stubs.all())
            return msgspec.structs.replace(usage, damaged=self.damage.snapshots())

    def verify(self, snapshot_id: str) -> None:
        """Read and check every chunk of a snapshot. Raises ObjectCorrupt for the first that is damaged."""
        digests = manifests.references(self.manifest(snapshot_id))
        with self.holding(digests):
            self.check(digests)

    def check(self, digests: Collection[bytes]) -> None:
        """Read and check these chunks. Raises ObjectCorrupt for the first that is damaged or missing."""
        for place in self.locate(digests):
            self.load(place.digest)

    def free_bytes(self) -> int:
        """Return the number of bytes that can still be written to the store's disk."""
        with store_errors(self.root):
            return disk_reserve.free_bytes(self.root)

    def require_room_for_periodic(self) -> None:
        """Raise StoreFull if what is left of the store's disk is not for periodic saves."""
        with store_errors(self.root):
            if faults.is_scarce(self.root):
                raise StoreFull(
                    f"No periodic save was made, because only {self.free_bytes() >> 20} MB are free in {self.root}.",
                    hint="Free space there, or delete snapshots that you do not need.",
                )

    def _place(self, digest: bytes) -> Location:
        return next(iter(self.locate((digest,))))

    def _tell(self, info: SnapshotInfo, change: SnapshotChangeKind) -> None:
        self.on_change(SnapshotChange(info.snapshot_id, info.kernel_id, change))
