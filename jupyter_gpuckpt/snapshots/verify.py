"""Verification of a snapshot: every chunk is read as in a resume and compared with its digest."""

from __future__ import annotations

import threading
import time

from ..errors import ManifestInvalid, OperationCancelled, StoreError
from ..images.worker_threads import share_out
from ..store import manifests
from ..store.local import LocalStore
from ..wire.snapshot_records import Verification

#: The most problems that are listed; on a failed disk every chunk would be one.
MAX_PROBLEMS = 100


def verify(
    store: LocalStore, snapshot_id: str, *, threads: int, cancelled: threading.Event
) -> Verification:
    """Read all chunks in `threads` threads, each one chunk at a time. Damage is part of the result.

    The next save that has a damaged chunk's content stores it again. Raises SnapshotNotFound, FormatTooNew, and OperationCancelled
    as soon as `cancelled` is set.
    """
    began = time.monotonic()
    try:
        manifest = store.manifest(snapshot_id)
    except ManifestInvalid as error:
        return Verification(snapshot_id, False, 0, time.monotonic() - began, [error.message])
    digests = manifests.references(manifest)
    lock = threading.Lock()
    problems: list[str] = []
    checked = damaged = 0

    def check(digest: bytes) -> None:
        nonlocal checked, damaged
        if cancelled.is_set():
            raise OperationCancelled("The verification was canceled.")
        try:
            length, problem = len(store.load(digest)), ""
        except StoreError as error:
            length, problem = 0, error.message
        with lock:
            checked += length
            if problem:
                damaged += 1
                if damaged <= MAX_PROBLEMS:
                    problems.append(problem)

    with store.holding(digests):
        share_out(_in_order(store, digests), lambda: check, threads)
    if damaged > MAX_PROBLEMS:
        problems.append(f"{damaged - MAX_PROBLEMS} more chunks are damaged.")
    seconds = time.monotonic() - began
    return Verification(snapshot_id, not damaged, checked, seconds, problems)


def _in_order(store: LocalStore, digests: set[bytes]) -> list[bytes]:
    """Return the digests in the order of the disk."""
    try:
        return store.locate(digests).digests
    except StoreError:  # a chunk is missing; reading each of them shows which
        return list(digests)
