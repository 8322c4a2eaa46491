"""The remote collector: it removes packs that no manifest needs, while uploads and other collectors may stop and continue at any time.

It works in two phases. The collector of one epoch lists the packs that no manifest needs in `condemned/<epoch>`. The next epoch
refers to that list, and its collector reads all manifests again and removes those packs of the list that are still not needed. No
pack is removed that a listed snapshot needs:

* The collector reads every manifest that was written before, including manifests that no remote session lists.
* A manifest that is written later belongs to one of two kinds of uploads. One began in an earlier epoch: after writing its
  manifest, it notices that the epoch changed and checks every pack again. The other began in this epoch: it relies on no pack that
  the epoch's list condemns (`upload.py`).
* A list of condemned packs is carried over to the next epoch until its packs are removed, and no upload relies on a pack that was
  ever condemned. So a collector may continue after any pause: the packs that it removes were condemned before it read the manifests.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

from ..errors import RemoteObjectMissing
from . import (
    epochs,
    index_objects,
    lease_objects,
    pack_refs,
    remote_manifests,
    roots,
)
from .buckets import Bucket
from .epochs import Epoch
from .objects import ListedObject
from .remote_manifests import RemoteManifest
from .remote_sessions import Sessions
from .sealing import Seal
from .seen import Seen

#: Packs younger than this, by the remote's clock, are not condemned: otherwise a slow upload would have to send them repeatedly.
MIN_AGE = timedelta(days=1)


class Collected(NamedTuple):
    """The result of a collector: removed packs, their bytes, and newly condemned packs."""

    removed: int = 0
    freed_bytes: int = 0
    condemned: int = 0


def collect(
    bucket: Bucket,
    seal: Seal,
    seen: Seen,
    *,
    min_age: timedelta = MIN_AGE,
    read_before: Mapping[str, dict[str, int]] | None = None,
) -> Collected:
    """Begin a new epoch, remove packs that an earlier epoch condemned, and condemn unneeded ones.

    `read_before`: the packs of manifests that were read before. Nothing is removed if another collector begins the epoch, or if a
    manifest cannot be read. Raises RemoteObjectInvalid, FormatTooNew, AccessDenied, StoreUnavailable, OperationCancelled.
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
    except RemoteObjectMissing:
        return Collected()  # other collectors have completed later epochs meanwhile
    found = roots.read(bucket, seal, seen, packs_of, read_before)
    needed = set().union(*found.all)
    # A machine may be fetching what was just deleted elsewhere. The clocks of machines differ.
    limit = min_age.total_seconds()
    kept = {name for name, at in found.deleted_at.items() if abs(written.timestamp() - at) < limit}
    gone = {session_id: names - kept for session_id, names in found.gone.items()}
    _forget_deleted(bucket, seal, seen, {name: some for name, some in gone.items() if some})
    there = {one.name: one for one in bucket.list(pack_refs.FOLDER)}
    removed = _remove(bucket, sorted(condemned - needed))
    if removed:
        # Index objects must not name these packs when the list that condemns them is no longer valid.
        index_objects.consolidate(bucket, seal, without=removed)
    fresh = {
        one.name
        for one in there.values()
        if _may_go(one, written - min_age) and one.name not in needed and one.name not in condemned
    }
    epochs.write_list(bucket, seal, epoch.number, (condemned - removed) | fresh)
    _drop_lists(bucket, epoch)
    old = [
        one.name for one in bucket.list(lease_objects.FOLDER) if one.modified < written - MIN_AGE
    ]
    bucket.delete(old)  # heartbeats of killed daemons, whose leases ended long ago
    freed = sum(there[name].size for name in removed if name in there)
    return Collected(len(removed), freed, len(fresh))


class Packs:
    """The packs of listed manifests, with their lengths, read when they are needed. `read`: those that were read, by manifest."""

    def __init__(self, bucket: Bucket, seal: Seal) -> None:
        self._bucket, self._seal = bucket, seal
        self.read: dict[str, dict[str, int]] = {}

    def of(self, manifest: str) -> dict[str, int]:
        """Return the packs of a manifest; none if it is lost."""
        if manifest not in self.read:
            try:
                remote = remote_manifests.read(self._bucket, self._seal, manifest)
            except RemoteObjectMissing:
                return {}
            self.read[manifest] = packs_of(remote)
        return self.read[manifest]


def _may_go(found: ListedObject, before: datetime) -> bool:
    return pack_refs.is_name(found.name) and found.modified <= before


def packs_of(manifest: RemoteManifest) -> dict[str, int]:
    """Return the packs that a manifest needs, by name, with their lengths."""
    return {ref.name: ref.length for ref in manifest.packs}


def _forget_deleted(bucket: Bucket, seal: Seal, seen: Seen, deleted: dict[str, set[str]]) -> None:
    """Remove the manifests of deleted and erased snapshots; packs that only they needed are removed two epochs later."""
    for session_id, names in deleted.items():
        gone = names.difference(bucket.delete(sorted(names)))
        with suppress(RemoteObjectMissing):  # everything in the remote was erased meanwhile
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
