"""Packs of which little is needed any more: what is goes into a new pack, so that the disk gets the rest back.

Without this, one chunk that outlives its snapshot would hold a pack of hundreds of megabytes, and a kernel that is saved over
and over would fill the disk, however few of its snapshots stay.
"""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager
from pathlib import Path

from ..errors import ObjectCorrupt
from . import packs
from .catalog import Catalog
from .codecs import CodecError, decompress, digest_of
from .collect import leased_packs, needed_by
from .leases import Leases
from .packs import Entry, PackFile

logger = logging.getLogger(__name__)

#: A pack is written anew when less than this part of it is needed: every byte is copied for at least one that becomes free.
WORTH_IT = 0.5


class Repacking:
    """Of one store. `publishing` keeps manifests from being published or removed, `lock` is the store's."""

    def __init__(
        self,
        manifests_directory: Path,
        packs_directory: Path,
        *,
        catalog: Catalog,
        leases: Leases,
        publishing: AbstractContextManager[object],
        lock: threading.RLock,
        pack_bytes: int,
    ) -> None:
        self._manifests, self._packs, self._pack_bytes = (
            manifests_directory,
            packs_directory,
            pack_bytes,
        )
        self._catalog, self._leases = catalog, leases
        self._publishing, self._lock = publishing, lock
        self._alone = threading.Lock()

    def run(self) -> int:
        """Write packs anew of which little is needed; bytes that became free. Nothing to do while another thread is at it.

        Copies beside saves and resumes, which are held up only at the end, while manifests are read. Packs that an operation
        counts on stay as they are, also if it came to while they were being copied. Raises OSError, sqlite3.OperationalError.
        """
        if not self._alone.acquire(blocking=False):
            return 0
        try:
            freed = 0
            for group in self._groups():
                freed += self._rewrite(group)
            return freed
        finally:
            self._alone.release()

    def _groups(self) -> list[dict[str, list[Entry]]]:
        """Sparse packs with the chunks of theirs that are needed, each group for one new pack."""
        with self._publishing:
            needed = needed_by(self._manifests)
            if needed is None:
                return []
            used = self._catalog.used(needed)
        with self._lock:
            leased = leased_packs(self._catalog, self._leases)
        sparse = {
            name: payload
            for name, (length, payload) in used.items()
            if 0 < payload < WORTH_IT * length and name not in leased
        }
        found = self._catalog.entries(sparse) if sparse else {}
        groups: list[dict[str, list[Entry]]] = []
        room = 0
        for name in sorted(sparse):
            if sparse[name] > room:
                groups.append({})
                room = self._pack_bytes
            room -= sparse[name]
            groups[-1][name] = [entry for entry in found[name] if entry.digest in needed]
        return groups

    def _rewrite(self, group: dict[str, list[Entry]]) -> int:
        pack = PackFile(self._packs, packs.new_name())
        kept = False
        try:
            copied = [name for name, entries in group.items() if self._copy(name, entries, pack)]
            if not copied:
                return 0
            length = pack.seal()
            # A manifest that was published meanwhile may need more of the old packs than was copied.
            with self._publishing, self._lock:
                moved = {entry.digest for entry in pack.entries}
                replaced = self._replaceable(copied, moved)
                if not replaced:
                    return 0
                self._catalog.add_pack(pack.name, length, pack.entries, replace=True)
                kept = True
                freed = self._catalog.remove_packs(replaced) - length
        finally:
            if kept:
                pack.close()
            else:
                pack.discard()
        logger.info("Wrote %d packs anew, of which %d bytes were not needed.", len(replaced), freed)
        return freed

    def _copy(self, name: str, entries: list[Entry], pack: PackFile) -> bool:
        """Whether all of them are in the new pack now."""
        for entry in entries:
            try:
                payload = packs.read_payload(self._catalog.path_of(name), entry)
                intact = digest_of(decompress(entry.codec, payload, entry.raw_length))
            except (ObjectCorrupt, CodecError) as error:
                logger.warning("Pack %s stays as it is: %s", name, error)
                return False
            if intact != entry.digest:
                logger.warning("Pack %s stays as it is: a chunk is damaged.", name)
                return False
            # A copy of damage must not count as the repaired chunk.
            placed = pack.reserve(entry.digest, entry.stored_length, entry.raw_length, entry.codec)
            pack.write([placed], [payload])
            pack.entries.append(placed)
        return True

    def _replaceable(self, copied: list[str], moved: set[bytes]) -> list[str]:
        needed = needed_by(self._manifests)
        if needed is None:
            return []
        leased = leased_packs(self._catalog, self._leases)
        return [
            name
            for name, entries in self._catalog.entries(copied).items()
            if name not in leased
            and all(entry.digest in moved for entry in entries if entry.digest in needed)
        ]
