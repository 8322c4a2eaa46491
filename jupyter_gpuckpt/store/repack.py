"""Rewriting of packs of which little is needed: the needed chunks are copied to a new pack, and the rest is freed.

Without this, one needed chunk would keep a pack of hundreds of megabytes, and a kernel that is saved again and again would fill the
disk, however few of its snapshots are kept.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import ObjectCorrupt
from . import packs
from .chunks_in_use import PinInUse, PinsInUse
from .codecs import CodecError, digest_of_stored
from .index.catalog import Catalog
from .index.needs import Newest, chosen_of
from .packs import Entry, PackFile
from .snapshot_rows import Records
from .unreferenced_packs import needed_by_all

logger = logging.getLogger(__name__)

#: The share of needed bytes below which a pack is rewritten: for every byte that is copied at least one is freed.
WORTH_IT = 0.5


class Repacking:
    """A rewriter of the packs of one store. `lock`: the store's, which guards the pins in use."""

    def __init__(
        self,
        packs_directory: Path,
        records: Records,
        *,
        catalog: Catalog,
        in_use: PinsInUse,
        lock: threading.RLock,
        pack_bytes: int,
    ) -> None:
        self._packs, self._pack_bytes = packs_directory, pack_bytes
        self._records, self._catalog, self._in_use = records, catalog, in_use
        self._lock = lock
        self._alone = threading.Lock()

    def run(self) -> int:
        """Rewrite packs of which little is needed, so that nothing refers to the old ones; return the bytes of the new ones.

        Does nothing while another thread runs this. Other operations go on meanwhile. A pack that an operation relies on stays as it
        is, even if the operation began while the pack was being copied. Raises OSError, sqlite3.OperationalError.
        """
        if not self._alone.acquire(blocking=False):
            return 0
        try:
            newest = self._records.newest()
            return sum(self._rewrite(group, newest) for group in self._groups())
        finally:
            self._alone.release()

    def _groups(self) -> list[dict[str, list[Entry]]]:
        """Return the packs of which little is needed with their needed chunks, in groups that each make one new pack."""
        lengths = self._catalog.lengths()
        needed = needed_by_all(self._records)
        groups: list[dict[str, list[Entry]]] = []
        room = 0
        for name in sorted(lengths.keys() & (needed or {}).keys()):
            numbers = self._catalog.numbers(name)
            if needed is None or numbers is None:
                continue
            chosen = chosen_of(needed[name], len(numbers))
            payload = int(numbers["stored_length"][chosen].sum())
            if not 0 < payload < WORTH_IT * lengths[name] or self._is_in_use(name):
                continue
            contents = self._catalog.contents(name)
            if contents is None:
                continue
            if payload > room:
                groups.append({})
                room = self._pack_bytes
            room -= payload
            entries = list(contents.entries())
            groups[-1][name] = [entries[at] for at in np.flatnonzero(chosen).tolist()]
        return groups

    def _rewrite(self, group: dict[str, list[Entry]], newest: Newest) -> int:
        pack = PackFile(self._packs, packs.new_name())
        begun = False
        pin = None
        try:
            copied = [name for name, entries in group.items() if self._copy(name, entries, pack)]
            if not copied:
                return 0
            identity = pack.seal()
            # A snapshot that was published meanwhile may need chunks that were not copied.
            old = {
                name: group[name]
                for name in copied
                if not self._is_in_use(name) and not self._records.newer_needs(name, newest)
            }
            if not old:
                return 0
            with self._lock:
                pin = self._in_use.take([entry.digest for entry in pack.entries])
            begun = self._catalog.begin_move(pack.name, pack.entries, old, newest)
            if not begun:
                return 0
        finally:
            if begun:
                pack.close()
            else:
                self._catalog.discard(pack)
                self._release(pin)
        # If the following fails, the pin remains: all packs stay until the next opening, which ends the move.
        self._move(pack, old)
        self._catalog.finish(pack.name, identity.length, old, identity)
        self._release(pin)
        logger.info("Rewrote %d packs as one of %d bytes.", len(old), identity.length)
        return identity.length

    def _move(self, pack: PackFile, old: dict[str, list[Entry]]) -> None:
        place = {entry.digest: at for at, entry in enumerate(pack.entries)}
        moved = {entry.digest for entries in old.values() for entry in entries}
        self._catalog.insert(
            pack.name, [entry for entry in pack.entries if entry.digest in moved], replace=True
        )
        moves: dict[str, NDArray[np.int64]] = {}
        for name, entries in old.items():
            numbers = self._catalog.numbers(name)
            if numbers is not None:
                at = np.searchsorted(numbers["offset"], [entry.offset for entry in entries])
                moves[name] = np.full(len(numbers), -1, np.int64)
                moves[name][at] = [place[entry.digest] for entry in entries]
        self._records.move(moves, pack.name, len(pack.entries))

    def _release(self, pin: PinInUse | None) -> None:
        if pin is not None:
            with self._lock:
                self._in_use.release(pin)

    def _is_in_use(self, name: str) -> bool:
        contents = self._catalog.contents(name)
        digests = list(contents.each_digest()) if contents else []
        with self._lock:
            return self._in_use.any_of(digests)

    def _copy(self, name: str, entries: list[Entry], pack: PackFile) -> bool:
        """Copy these chunks into the new pack; return whether all could be copied."""
        for entry in entries:
            try:
                payload = packs.read_payload(self._catalog.path_of(name), entry)
                intact = digest_of_stored(entry.codec, payload, entry.raw_length)
            except (ObjectCorrupt, CodecError) as error:
                logger.warning("Pack %s stays as it is: %s", name, error)
                return False
            if intact != entry.digest:
                logger.warning("Pack %s stays as it is: a chunk is damaged.", name)
                return False
            # Only intact chunks are copied: a copy of a damaged one would count as repaired.
            placed = pack.reserve(entry.digest, entry.stored_length, entry.raw_length, entry.codec)
            pack.write([placed], [payload])
            pack.entries.append(placed)
        return True
