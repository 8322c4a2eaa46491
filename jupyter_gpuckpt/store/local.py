"""The store in a local directory: packs, manifests, a catalog and a lock.

packs/<time>-<random>.pack    chunks (packs.py)
manifests/<snapshot>.manifest one per snapshot, written last (manifests.py)
catalog.sqlite                which pack holds which chunk; can be made again (catalog.py)
lock                          keeps it to one process (lock.py)
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from ..errors import ConfigurationError, ObjectCorrupt, StoreError, StoreFull
from ..model import Manifest, SnapshotInfo
from . import faults, manifests, packs
from .catalog import Catalog, Location
from .codecs import CodecError, decompress, digest_of
from .collect import collect
from .faults import store_errors
from .leases import Leases
from .lock import StoreLock
from .packs import Entry
from .repack import Repacking
from .weights import Weights
from .writer import PACK_BYTES, PackWriter

logger = logging.getLogger(__name__)


class LocalStore:
    """Snapshots in the directory `root`, which is created (0700). All methods are thread-safe.

    One process has it open at a time: opening raises StoreUnavailable, which names the other one or says why the directory
    cannot be used, and ConfigurationError when it holds other things. What a crash left half-written is removed, the catalog
    is brought up to date. `close` when done (the end of the object or of the process does it as well).
    """

    def __init__(
        self,
        root: Path,
        *,
        pack_bytes: int = PACK_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root = root
        self._packs, self._manifests = root / "packs", root / "manifests"
        self._pack_bytes = pack_bytes
        self._leases = Leases(clock)
        # Guards what decides whether a chunk stays: catalog answers together with leases. Held for moments.
        self._lock = threading.RLock()
        # Keeps publishing and collecting apart. Held while files are written; taken before `_lock`.
        self._publishing = threading.RLock()
        self._listed: dict[str, tuple[tuple[int, int, int], SnapshotInfo | None]] = {}
        self._rebuilt = False
        with store_errors(root):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._packs.exists() and any(p.name != "lock" for p in root.iterdir()):
                raise ConfigurationError(
                    f"{root} holds other files, so it is not used as a snapshot store.",
                    hint="Choose a directory that is empty, or that does not exist yet.",
                )
            _make_directory(root)
            store_lock = StoreLock(root / "lock")
            try:
                for directory in (self._packs, self._manifests):
                    _make_directory(directory)
                self._remove_leftovers()
                self._catalog = Catalog(root / "catalog.sqlite", self._packs)
            except BaseException:
                store_lock.release()
                raise
        self._repacking = Repacking(
            self._manifests,
            self._packs,
            catalog=self._catalog,
            leases=self._leases,
            publishing=self._publishing,
            lock=self._lock,
            pack_bytes=pack_bytes,
        )
        self._end = weakref.finalize(self, _close, self._catalog, store_lock)

    def close(self) -> None:
        """Release the directory; may be called again. The store is of no use afterwards."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def writer(self) -> PackWriter:
        """A writer for one operation, to be used as a context manager."""
        return PackWriter(
            self.root,
            self._packs,
            catalog=self._catalog,
            leases=self._leases,
            lock=self._lock,
            sweep=self.sweep,
            pack_bytes=self._pack_bytes,
        )

    def locate(self, digests: Collection[bytes]) -> dict[bytes, Location]:
        """Where every one of `digests` lies. Raises ObjectCorrupt when one is not in the store."""
        with store_errors(self.root):
            found = self._catalog.locate(digests)
            if len(found) < len(set(digests)) and not self._rebuilt:
                # Either a pack is gone or rows are; once, the packs are asked themselves.
                self._rebuilt = True
                self._catalog.rebuild()
                found = self._catalog.locate(digests)
        missing = next((digest for digest in digests if digest not in found), None)
        if missing is not None:
            raise ObjectCorrupt(
                f"Chunk {missing.hex()[:16]} is not in the store {self.root}.",
                hint="A pack is missing or damaged; put it back from a backup if there is one.",
                details=missing.hex(),
            )
        return found

    def read_run(self, pack: str, offset: int, into: memoryview) -> int:
        """Fill `into` from `offset` of a pack that `locate` named; bytes read, fewer where the pack is truncated.

        For readers of many chunks that lie side by side; nothing is checked.
        """
        with store_errors(self.root):
            return packs.read_run(self._catalog.path_of(pack), offset, into)

    def read(self, digest: bytes) -> tuple[int, bytes, int]:
        """Codec, payload and raw length of a chunk; the record's header is compared, the digest is for the caller to check.

        Raises ObjectCorrupt when the chunk is not there or its record is damaged.
        """
        place = self.locate((digest,))[digest]
        entry = Entry(digest, place.offset, *place[3:])
        with store_errors(self.root):
            try:
                payload = packs.read_payload(self._catalog.path_of(place.pack), entry)
            except ObjectCorrupt:
                self._catalog.mark_damaged(digest)
                raise
        return entry.codec, payload, entry.raw_length

    def load(self, digest: bytes) -> bytes:
        """A chunk's bytes, decompressed and verified. Raises ObjectCorrupt, naming the pack; the next save stores it again."""
        codec, payload, raw_length = self.read(digest)
        try:
            data = decompress(codec, payload, raw_length)
            why = "" if digest_of(data) == digest else "its bytes were altered"
        except CodecError as error:
            why = str(error)
        if not why:
            return data
        path = self._catalog.path_of(self.locate((digest,))[digest].pack)
        self._catalog.mark_damaged(digest)
        raise packs.damaged_chunk(path, digest, why)

    @contextmanager
    def holding(self, digests: Collection[bytes]) -> Iterator[None]:
        """Inside, no delete takes these chunks away."""
        with self._lock:
            lease = self._leases.take(digests)
        try:
            yield
        finally:
            with self._lock:
                self._leases.release(lease)

    def publish(self, manifest: Manifest) -> None:
        """Make the snapshot exist: durable when this returns, and then only.

        Raises ObjectCorrupt when a chunk that it refers to is not in the store, StoreFull, StoreUnavailable.
        """
        digests = manifests.references(manifest)
        with self._publishing, store_errors(self.root):
            self.locate(digests)
            try:
                with store_errors(self.root):
                    manifests.write(self._manifests, manifest)
            except StoreFull:
                # The snapshot will not be: what was stored for it gives its room back.
                with self._lock:
                    self._leases.published(digests)
                self.sweep()
                raise
            with self._lock:
                self._leases.published(digests)

    def manifest(self, snapshot_id: str) -> Manifest:
        """The manifest, verified. Raises SnapshotNotFound, ManifestInvalid, FormatTooNew."""
        with store_errors(self.root):
            return manifests.read(manifests.path_of(self._manifests, snapshot_id), Manifest)

    def snapshots(self, kernel_id: str | None = None) -> list[SnapshotInfo]:
        """What lists show, newest first, of all snapshots or of one kernel's. A damaged manifest is logged and left out."""
        with store_errors(self.root):
            paths = list(self._manifests.glob("*" + manifests.SUFFIX))
            infos = [info for path in paths if (info := self._info(path)) is not None]
        names = {path.name for path in paths}
        for name in [name for name in tuple(self._listed) if name not in names]:
            self._listed.pop(name, None)
        if kernel_id is not None:
            infos = [info for info in infos if info.kernel_id == kernel_id]
        return sorted(infos, key=lambda info: info.created, reverse=True)

    def delete(self, *snapshot_ids: str) -> int:
        """Remove snapshots, readable or not, and what only they needed; bytes that became free on the disk.

        Chunks that others share, or that an operation in flight counts on, stay, and some that lie among those may stay for
        a while. Raises SnapshotNotFound, and then removes none.
        """
        paths = [manifests.path_of(self._manifests, snapshot_id) for snapshot_id in snapshot_ids]
        with self._publishing, store_errors(self.root):
            for path in paths:
                if not path.exists():
                    manifests.read(path, manifests.Listed)  # raises SnapshotNotFound
            for path in paths:
                path.unlink()
            packs.sync_directory(self._manifests)
            freed = self.sweep()
        try:
            with store_errors(self.root):
                return freed + self._repacking.run()
        except StoreError as error:
            logger.warning("Packs of which little is needed stay as they are: %s", error)
            return freed

    def sweep(self) -> int:
        """Remove the packs that nothing refers to; bytes that became free."""
        with self._publishing, store_errors(self.root):
            return collect(
                self._manifests, catalog=self._catalog, leases=self._leases, lock=self._lock
            )

    def weights(self) -> Weights:
        """Scales for retention."""
        return Weights(self.root, self._manifests, self._catalog)

    def verify(self, snapshot_id: str) -> None:
        """Read and check every chunk of a snapshot. Raises ObjectCorrupt for the first that is damaged."""
        digests = manifests.references(self.manifest(snapshot_id))
        with self.holding(digests):
            places = self.locate(digests)
            for digest in sorted(places, key=lambda digest: places[digest]):
                self.load(digest)

    def free_bytes(self) -> int:
        """What can still be written to the disk that the store is on."""
        with store_errors(self.root):
            return faults.free_bytes(self.root)

    def _info(self, path: Path) -> SnapshotInfo | None:
        """From memory if the file is the one that was read before, as lists are asked for often."""
        try:
            facts = path.stat()
            identity = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
            known = self._listed.get(path.name)
            if known is None or known[0] != identity:
                info = None
                try:
                    info = manifests.read(path, manifests.Listed).info
                except StoreError as error:
                    logger.warning("A snapshot is left out of the list: %s", error)
                known = self._listed[path.name] = (identity, info)
        except FileNotFoundError:  # deleted meanwhile
            return None
        return known[1]

    def _remove_leftovers(self) -> None:
        for path in (
            *self._packs.glob(packs.TEMPORARY + "*"),
            *self._manifests.glob("*" + manifests.TEMPORARY),
        ):
            logger.info("Removing %s, which a crash left half-written.", path)
            path.unlink(missing_ok=True)


def _close(catalog: Catalog, lock: StoreLock) -> None:
    try:
        catalog.close()
    except sqlite3.Error as error:
        logger.warning("The catalog was not closed well; the next opening checks it: %s", error)
    finally:
        lock.release()


def _make_directory(path: Path) -> None:
    """A directory for the owner alone; an existing one is closed to others."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
