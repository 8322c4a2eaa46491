"""Removing packs that no manifest needs, beside uploaders and other collectors that may stop at any moment and go on much later.

Two phases. An epoch's collector lists what no manifest needs in `condemned/<epoch>`. The next epoch names that list, and its
collector removes those of it that a fresh look at all manifests still finds unneeded. Why nothing goes that a listed snapshot needs:

* A manifest that is written before the look is seen by it: manifests that no far session lists count as well.
* One that is written after it was begun by an uploader who sees afterwards that the epoch has moved, and then looks again at
  every pack; or by one who began in this very epoch, and took nothing that the epoch's list condemns (`upload.py`).
* A list is carried on until its packs are gone, and what was condemned once never answers a question again. So it does not
  matter how old the look of a collector is that wakes up: what it removes was condemned before that look.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import NamedTuple

from ...errors import AccessDenied, FarObjectInvalid, FarObjectMissing
from . import epochs, far_manifests, far_packs, indexes
from .buckets import Bucket, Found
from .epochs import Epoch
from .sealing import Seal
from .seen import Seen
from .sessions import Sessions

logger = logging.getLogger(__name__)

#: Younger packs, by the remote's clock, are not condemned: a slow upload would be sent over and over.
LEAST_AGE = timedelta(days=1)


class Collected(NamedTuple):
    """What a collector did: packs that it removed, their bytes, and packs that it condemned anew."""

    removed: int = 0
    freed_bytes: int = 0
    condemned: int = 0


class _Needed(NamedTuple):
    """Packs that some manifest needs, and manifests of snapshots that were deleted, by far session."""

    packs: set[str]
    deleted: dict[str, set[str]]


def collect(
    bucket: Bucket, seal: Seal, seen: Seen, *, least_age: timedelta = LEAST_AGE
) -> Collected:
    """Begin a new epoch, remove what an earlier one condemned, and condemn what is not needed now.

    Nothing is removed where somebody else begins the epoch, or a manifest cannot be read. Raises FarObjectInvalid, FormatTooNew,
    AccessDenied, StoreUnavailable, OperationCancelled.
    """
    now = epochs.read(bucket, seal, seen)
    last = now.epoch.number
    complete = last > 0 and bucket.head(epochs.list_name(last)) is not None
    epoch = Epoch(last + 1, last if complete else now.epoch.condemned)
    if not epochs.advance(bucket, seal, now, epoch):
        return Collected()
    written = bucket.get(epochs.NAME).modified
    try:
        condemned = epochs.read_list(bucket, seal, epoch.condemned) if epoch.condemned else set()
    except FarObjectMissing:
        return Collected()  # later epochs have begun and ended meanwhile
    needed = _look(bucket, seal, seen)
    _forget_deleted(bucket, seal, seen, needed.deleted)
    there = {found.name: found for found in bucket.list(far_packs.FOLDER)}
    removed = _remove(bucket, sorted(condemned - needed.packs))
    if removed:
        # Before the list is left behind, which says that they are gone.
        indexes.consolidate(bucket, seal, without=removed)
    fresh = {
        found.name
        for found in there.values()
        if _may_go(found, written - least_age)
        and found.name not in needed.packs
        and found.name not in condemned
    }
    epochs.write_list(bucket, seal, epoch.number, (condemned - removed) | fresh)
    _drop_lists(bucket, epoch)
    freed = sum(there[name].size for name in removed if name in there)
    return Collected(len(removed), freed, len(fresh))


def _may_go(found: Found, before: datetime) -> bool:
    return far_packs.is_name(found.name) and found.modified <= before


def _look(bucket: Bucket, seal: Seal, seen: Seen) -> _Needed:
    """Read all manifests: those that the remote lists, and those that far sessions name."""
    sessions = Sessions(bucket, seal, seen)
    listed: set[str] = set()
    deleted: dict[str, set[str]] = {}
    for session_id in sessions.ids():
        snapshots = sessions.get(session_id).snapshots
        listed |= {one.manifest for one in snapshots if not one.deleted_at}
        gone = {one.manifest for one in snapshots if one.deleted_at}
        if gone:
            deleted[session_id] = gone
    found = {one.name for one in bucket.list(far_manifests.FOLDER)}
    unlisted = {name for name in found if far_manifests.snapshot_of(name)}.difference(
        listed, *deleted.values()
    )
    packs: set[str] = set()
    for name in sorted(listed | unlisted):
        try:
            packs |= {ref.name for ref in far_manifests.read(bucket, seal, name).packs}
        except FarObjectMissing:
            # An unlisted one may just have been replaced by its uploader.
            if name in listed:
                logger.warning("%s is lost: its snapshot cannot be fetched.", name)
    return _Needed(packs, deleted)


def _forget_deleted(bucket: Bucket, seal: Seal, seen: Seen, deleted: dict[str, set[str]]) -> None:
    """Remove the manifests of deleted snapshots: what only they needed goes two epochs later."""
    for session_id, names in deleted.items():
        bucket.delete(sorted(names))
        Sessions(bucket, seal, seen).forget_deleted(session_id, names)


def _remove(bucket: Bucket, names: list[str]) -> set[str]:
    """Delete packs; those that are gone. What may not be deleted yet (Object Lock) stays condemned."""
    removed = set()
    for name in names:
        try:
            bucket.delete([name])
        except (AccessDenied, FarObjectInvalid) as error:
            logger.warning("Packs that nothing needs stay for now: %s", error)
            break
        removed.add(name)
    return removed


def _drop_lists(bucket: Bucket, epoch: Epoch) -> None:
    """Remove the lists that came before the one that counts now."""
    old = []
    for found in bucket.list(epochs.FOLDER):
        number = found.name.partition("/")[2]
        if number.isascii() and number.isdigit() and int(number) < epoch.condemned:
            old.append(found.name)
    bucket.delete(old)
