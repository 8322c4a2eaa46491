"""What a save does about packs that another program may have changed: before it relies on them, and before a kernel is killed.

While the kernel still runs, doubtful packs of its last snapshot are read. A suspend that may have a deadline does not wait for that: it
stores again what is in packs that were changed, and relies on the other doubtful ones, with a warning; they are read in the background.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from ..errors import StoreError
from ..images.composing import Predecessor
from ..images.worker_threads import share_out
from ..store.local import LocalStore
from ..store.pack_identity import Trust
from ..store.pack_reading import read_pack
from ..wire.manifest_records import Cause
from ..wire.progress import Progress

#: The causes of snapshots that may have a deadline: the machine or the server goes, or a restart waits for a while only.
_URGENT = frozenset({Cause.SHUTDOWN, Cause.RECLAIM, Cause.RESTART})

_log = logging.getLogger(__name__)


def settle(
    store: LocalStore,
    predecessor: Predecessor | None,
    cause: Cause,
    *,
    threads: int,
    progress: Progress,
) -> None:
    """Look at all packs and, if there is time, read the doubtful ones of the predecessor. Raises StoreError, OperationCancelled."""
    checks = store.pack_checks
    doubtful = [name for name, trust in checks.look().items() if trust < Trust.SAME]
    unread: list[str] = []
    if predecessor is not None and cause not in _URGENT:
        unread = checks.holders(predecessor.digests, doubtful)

    def read(name: str) -> None:
        try:
            reading = read_pack(store.path_of(name), progress.check)
        except OSError as error:
            _log.warning("Pack %s cannot be read: %s", name, error)
            return
        if reading is not None:
            checks.note(name, reading)

    if unread:
        share_out(unread, lambda: read, min(threads, len(unread)))


def problems(
    store: LocalStore, digests: Collection[bytes], cause: Cause
) -> tuple[list[str], list[str]]:
    """Return why a snapshot with these chunks could not be resumed, and warnings, a sentence each."""
    found = store.pack_checks.find(digests)
    if found.lost:
        return [
            f"{found.lost} of its chunks are in packs of the store that were removed, cut short or changed meanwhile."
            " The next attempt stores them again."
        ], []
    if not found.unread:
        return [], []
    if cause in _URGENT:
        return [], [
            f"{len(found.unread)} chunks of the snapshot are in packs that were copied, linked, cut short or indexed anew and not read"
            " since, and there was no time to read them. `jupyter gpuckpt verify` does so."
        ]
    try:
        store.check(found.unread)
    except StoreError as error:
        return [f"{error.message} The next attempt stores it again."], []
    return [], []
