"""The writer of chunks into a store: one per operation, used by many threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from ..errors import StoreError, StoreFull
from .chunks_in_use import PinInUse, PinsInUse
from .faults import store_errors
from .index.catalog import Catalog
from .packs import Entry, PackFile, new_name

logger = logging.getLogger(__name__)

#: The size at which a pack is closed; the last write may exceed it.
PACK_BYTES = 256 << 20
#: The most packs that one writer fills at the same time.
_OPEN_PACKS = 4


class Record(NamedTuple):
    """A chunk to be stored: its digest, and the payload that `codec` made of its `raw_length` bytes."""

    digest: bytes
    payload: bytes | memoryview
    raw_length: int
    codec: int


class PackWriter:
    """A writer of packs, created by `LocalStore.writer` and used as a context manager.

    `known` and `append_all` are thread-safe. Every chunk that was looked up and found, or appended, stays in
    the store until a manifest that refers to it is published (or, after an error, until the writer is left). A full pack is
    synced to the disk in the background while the next one fills, so the disk is never idle. An error there is raised by the
    next `append_all` or by `finish`.

    `finish` makes everything durable. If the context is left without it or by an exception, complete chunks are kept for the
    next save as far as the disk accepts them, and temporary files are removed. Methods raise StoreFull and StoreUnavailable.
    """

    def __init__(
        self,
        root: Path,
        packs_directory: Path,
        *,
        catalog: Catalog,
        in_use: PinsInUse,
        lock: threading.RLock,
        sweep: Callable[[], object],
        pack_bytes: int = PACK_BYTES,
    ) -> None:
        self._root, self._directory, self._pack_bytes = root, packs_directory, pack_bytes
        self._catalog, self._in_use, self._store_lock, self._sweep = catalog, in_use, lock, sweep
        with lock:
            self._pin: PinInUse = in_use.take()
        self._lock = threading.Lock()
        self._written: dict[bytes, int] = {}
        # Chunks that were looked up and not found; `append` does not look them up again.
        self._absent: set[bytes] = set()
        # Packs with room; a thread takes one that no other writes to, because writes to one file exclude each other.
        self._open: list[PackFile] = []
        # Full packs that some thread is still writing to.
        self._closing: list[PackFile] = []
        self._seals: list[Future[None]] = []
        self._sealer = ThreadPoolExecutor(1, "seal")
        self._error: BaseException | None = None
        self._finished = False

    def known(self, digests: Collection[bytes]) -> dict[bytes, int]:
        """Return those of `digests` that need not be appended, with their stored lengths. It is cheap for many digests at once."""
        with self._lock:
            found = {d: self._written[d] for d in digests if d in self._written}
        rest = [digest for digest in digests if digest not in found]
        if rest:
            # One step under the store's lock: no sweep may remove the chunk between the answer and the pin.
            with self._store_lock, store_errors(self._root):
                stored = self._catalog.known(rest)
                self._pin.digests.update(stored)
            self._absent.update(digest for digest in rest if digest not in stored)
            found |= stored
        return found

    def append_all(self, records: Sequence[Record]) -> int:
        """Write chunks next to each other; return the bytes added, 0 for a chunk that exists or that another thread is writing.

        Payloads are not kept. If another thread's write of the same chunk fails, `finish` raises.
        """
        if self._error is not None:
            raise self._error
        unasked = [r.digest for r in records if r.digest not in self._absent]
        known = self.known(unasked) if unasked else {}
        needed = sum(len(record.payload) for record in records)
        payloads: list[bytes | memoryview] = []
        entries: list[Entry] = []
        with self._lock:
            with store_errors(self._root, needed):
                pack = self._choose()
            for digest, payload, raw_length, codec in records:
                if digest not in self._written and digest not in known:
                    entries.append(pack.reserve(digest, len(payload), raw_length, codec))
                    payloads.append(payload)
                    self._written[digest] = len(payload)
            pack.in_flight += 1
            if pack.length >= self._pack_bytes:
                self._open.remove(pack)
                self._closing.append(pack)
        good = False
        try:
            with store_errors(self._root, needed):
                pack.write(entries, payloads)
            good = True
        except BaseException as error:
            self._error = self._error or error
            raise
        finally:
            self._complete(pack, entries if good else [])
        return sum(entry.stored_length for entry in entries)

    def finish(self) -> None:
        """Sync all packs to the disk and register them; may be called again."""
        if self._finished:
            return
        self._seal_rest()
        for seal in self._seals:
            seal.result()
        if self._error is not None:
            raise self._error
        self._finished = True
        with self._store_lock:
            self._pin.digests.update(self._written)
            self._in_use.await_publication(self._pin)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.finish()
        except BaseException as late:
            error = late
            raise
        finally:
            if not self._finished:
                self._abandon(error)
            elif error is not None:  # no manifest will be published
                with self._store_lock:
                    self._in_use.release(self._pin)
            self._sealer.shutdown()

    def _choose(self) -> PackFile:
        """Return the open pack with the fewest writers, or a new one if all are busy."""
        pack = min(self._open, key=lambda pack: pack.in_flight, default=None)
        if pack is None or (pack.in_flight and len(self._open) < _OPEN_PACKS):
            pack = PackFile(self._directory, new_name())
            self._open.append(pack)
        return pack

    def _complete(self, pack: PackFile, entries: list[Entry]) -> None:
        with self._lock:
            pack.in_flight -= 1
            pack.entries += entries
            if pack in self._closing and not pack.in_flight:
                self._closing.remove(pack)
                self._seals.append(self._sealer.submit(self._seal, pack))

    def _seal_rest(self) -> None:
        with self._lock:
            rest = [*self._closing, *self._open]
            self._closing, self._open = [], []
            self._seals += [self._sealer.submit(self._seal, pack) for pack in rest]

    def _seal(self, pack: PackFile) -> None:
        try:
            if not pack.entries:
                pack.discard()
                return
            with self._store_lock:
                # Chunks get a pin before others, including a rebuild, can see them: a sweep must not remove them.
                self._pin.digests.update(entry.digest for entry in pack.entries)
            with store_errors(self._root, pack.length):
                identity = pack.seal()
            with store_errors(self._root):
                self._catalog.add_pack(pack.name, identity.length, pack.entries, identity)
        except BaseException as error:
            self._error = self._error or error
            with store_errors(self._root):
                self._catalog.discard(pack)
            raise

    def _abandon(self, error: BaseException | None) -> None:
        full = isinstance(error, StoreFull)
        if full:
            # Packs that are not sealed are removed; no other operation can rely on them yet.
            with self._lock:
                for pack in (*self._closing, *self._open):
                    pack.discard()
                self._closing, self._open = [], []
        else:
            self._seal_rest()
        for seal in self._seals:
            late = seal.exception()
            if late is not None and late is not error:
                logger.warning("Chunks of a failed save are not kept: %s", late)
        with self._store_lock:
            self._in_use.release(self._pin)
        if full:
            try:
                self._sweep()
            except StoreError as late:
                logger.warning(
                    "Packs of a save that found the store full could not be removed: %s", late
                )
