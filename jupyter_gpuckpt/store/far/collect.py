"""The far collector: it removes packs that no manifest needs, while uploads and other collectors may stop and continue at any time.

It works in two phases. The collector of one epoch lists the packs that no manifest needs in `condemned/<epoch>`. The next epoch
refers to that list, and its collector reads all manifests again and removes those packs of the list that are still not needed. No
pack is removed that a listed snapshot needs:

* The collector reads every manifest that was written before, including manifests that no far session lists.
* A manifest that is written later belongs to one of two kinds of uploads. One began in an earlier epoch: after writing its
  manifest, it notices that the epoch changed and checks every pack again. The other began in this epoch: it relies on no pack that
  the epoch's list condemns (`upload.py`).
* A list of condemned packs is carried over to the next epoch until its packs are removed, and no upload relies on a pack that was
  ever condemned. So a collector may continue after any pause: the packs that it removes were condemned before it read the manifests.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from ...errors import FarObjectMissing
from . import epochs, far_packs, indexes, leases, roots
from .buckets import Bucket
from .epochs import Epoch
from .far_manifests import FarManifest
from .objects import ListedObject
from .sealing import Seal
from .seen import Seen
from .sessions import Sessions

#: Packs younger than this, by the remote's clock, are not condemned: otherwise a slow upload would have to send them repeatedly.
MIN_AGE = timedelta(days=1)


class Collected(NamedTuple):
    """The result of a collector: removed packs, their bytes, and newly condemned packs."""

    removed: int = 0
    freed_bytes: int = 0
    condemned: int = 0


def collect(bucket: Bucket, seal: Seal, seen: Seen, *, min_age: timedelta = MIN_AGE) -> Collected:
    """Begin a new epoch, remove packs that an earlier epoch condemned, and condemn packs that no manifest needs now.

    Nothing is removed if another collector begins the epoch, or if a manifest cannot be read. Raises FarObjectInvalid, FormatTooNew,
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
        return Collected()  # other collectors have completed later epochs meanwhile
    found = roots.read(bucket, seal, seen, _packs_of)
    needed = set().union(*found.all)
    _forget_deleted(bucket, seal, seen, found.gone)
    there = {one.name: one for one in bucket.list(far_packs.FOLDER)}
    removed = _remove(bucket, sorted(condemned - needed))
    if removed:
        # Index objects must not name these packs when the list that condemns them is no longer valid.
        indexes.consolidate(bucket, seal, without=removed)
    fresh = {
        one.name
        for one in there.values()
        if _may_go(one, written - min_age) and one.name not in needed and one.name not in condemned
    }
    epochs.write_list(bucket, seal, epoch.number, (condemned - removed) | fresh)
    _drop_lists(bucket, epoch)
    old = [one.name for one in bucket.list(leases.FOLDER) if one.modified < written - MIN_AGE]
    bucket.delete(old)  # heartbeats of killed daemons, whose leases ended long ago
    freed = sum(there[name].size for name in removed if name in there)
    return Collected(len(removed), freed, len(fresh))


def _may_go(found: ListedObject, before: datetime) -> bool:
    return far_packs.is_name(found.name) and found.modified <= before


def _packs_of(manifest: FarManifest) -> set[str]:
    return {ref.name for ref in manifest.packs}


def _forget_deleted(bucket: Bucket, seal: Seal, seen: Seen, deleted: dict[str, set[str]]) -> None:
    """Remove the manifests of deleted and erased snapshots; packs that only they needed are removed two epochs later."""
    for session_id, names in deleted.items():
        gone = names.difference(bucket.delete(sorted(names)))
        Sessions(bucket, seal, seen).forget_deleted(session_id, gone)


def _remove(bucket: Bucket, names: list[str]) -> set[str]:
    """Delete packs; return those that were deleted. A pack that Object Lock still protects stays condemned."""
    return set(names).difference(bucket.delete(names))


def _drop_lists(bucket: Bucket, epoch: Epoch) -> None:
    """Remove the lists that are older than the valid one."""
    old = []
    for found in bucket.list(epochs.FOLDER):
        number = found.name.partition("/")[2]
        if number.isascii() and number.isdigit() and int(number) < epoch.condemned:
            old.append(found.name)
    bucket.delete(old)
