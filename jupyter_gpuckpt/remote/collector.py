"""The removal of what nothing in a remote needs, and the erasure of remote sessions, while uploads, readers and other collectors run.

All of them may stop at any moment and continue later. Packs are removed in two phases: the collector of one epoch lists the packs that no
manifest needs in `condemned/<epoch>`. The next epoch refers to that list, and its collector reads all manifests again and removes those
packs of the list that are still not needed. No pack is removed that a listed snapshot needs:

* The collector reads every manifest that was written before, including manifests that no remote session lists.
* A manifest that is written later belongs to one of two kinds of uploads. One began in an earlier epoch: after writing its
  manifest, it notices that the epoch changed and checks every pack again. The other began in this epoch: it relies on no pack that
  the epoch's list condemns (`upload.py`).
* A list of condemned packs is carried over to the next epoch until its packs are removed, and no upload relies on a pack that was
  ever condemned. So a collector may continue after any pause: the packs that it removes were condemned before it read the manifests.

An erasure first empties the remote session by one swap, which records every manifest that may not be listed again. Uploaders swap the same
object to list a snapshot, so the two are ordered. Packs with both needed and erased chunks are rewritten without the erased ones: first the
new packs, then their index, then manifests that name them, last the remote sessions, which then list these manifests instead. A manifest
that no remote session lists and that needs such a pack belongs to an upload. It is erased as well; its uploader gets ManifestErased when
it lists the manifest, and sends again what it needs of that pack. Two epochs, which follow at once, then remove what nothing needs. At
every step all listed objects exist. After a crash, the next erasure or collection continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

import msgspec

from ..errors import ConfigurationError, RemoteObjectMissing, StoreUnavailable
from ..linux.fresh_memory import Scratch
from ..store import manifests
from ..wire.remote_records import Erasure
from . import epochs, index_objects, lease_objects, pack_refs, remote_manifests, remote_packs
from .buckets import Bucket
from .checking import open_packs, payload_bytes
from .epochs import Epoch
from .pack_refs import PACK_BYTES, PackRef, PackRows
from .remote_manifests import RemoteManifest
from .remote_packs import RemoteChunk, Rows
from .remote_sessions import Sessions
from .sealing import Seal, invalid
from .seen import Seen

#: Packs younger than this, by the remote's clock, are not condemned: otherwise a slow upload would have to send them repeatedly.
MIN_AGE = timedelta(days=1)
#: How often manifests are read again because remote sessions list others meanwhile.
_ATTEMPTS = 20
#: How many rounds an erasure tries while uploads interfere.
_ROUNDS = 8
#: The round after which a missing pack counts as lost.
_LOOKS = 3
#: One epoch condemns packs, the next one removes them.
_EPOCHS = 2

_log = logging.getLogger(__name__)


class Collected(NamedTuple):
    """The result of a collector: removed packs, their bytes, and newly condemned packs."""

    removed: int = 0
    freed_bytes: int = 0
    condemned: int = 0


class _Needs(NamedTuple):
    """The remote session to which a manifest belongs, listed or not, its snapshot, and the packs that it needs."""

    session_id: str
    snapshot_id: str
    packs: list[PackRef]

    def uses(self, packs: set[str]) -> bool:
        return not packs.isdisjoint(ref.name for ref in self.packs)


class _Roots(NamedTuple):
    """All manifests of a remote, by name: their packs must stay, whether remote sessions list them or not."""

    listed: dict[str, _Needs]
    unlisted: dict[str, _Needs]
    #: By remote session: manifests of deleted snapshots, and erased manifests whose objects still exist.
    gone: dict[str, set[str]]
    #: When the snapshots of deleted manifests were deleted, by the remote's clock.
    deleted_at: dict[str, float]

    @property
    def packs(self) -> dict[str, PackRef]:
        """Return the packs that manifests need, by name."""
        every = (*self.listed.values(), *self.unlisted.values())
        return {ref.name: ref for one in every for ref in one.packs}


def collect(bucket: Bucket, seal: Seal, seen: Seen, *, min_age: timedelta = MIN_AGE) -> Collected:
    """Begin a new epoch and collect, as `Collector.collect` does."""
    return Collector(bucket, seal, seen).collect(min_age)


def erase(bucket: Bucket, seal: Seal, seen: Seen, session_id: str) -> Erasure:
    """Erase a remote session, whose id is that of its kernel; snapshots that other remote sessions list stay complete throughout.

    An erasure that was interrupted is completed. In the result, `left` counts the objects that should be gone and still exist, because the
    remote refuses to delete them or uploads interfered in every round. Raises RemoteObjectMissing if there is no such session,
    ConfigurationError if objects cannot be deleted, RemoteObjectInvalid for an object that cannot be read, and what `Bucket` raises.
    """
    if not bucket.deletes:
        raise ConfigurationError(
            f"Remote {bucket.name} refuses to delete objects, so nothing can be erased there.",
            hint="Grant the right to delete, and run `jupyter gpuckpt remote test`.",
        )
    collector = Collector(bucket, seal, seen)
    before = sum(collector.packs_there().values())
    snapshots = collector.mark(session_id)
    rewritten = removed = 0
    left: set[str] = set()
    for number in range(_ROUNDS):
        try:
            moved, going = collector.rewrite()
        except RemoteObjectMissing:
            # Another erasure has just rewritten the pack, or the pack is lost.
            if number == _LOOKS:
                raise
            continue
        gone = sum(collector.collect(timedelta(0)).removed for _ in range(_EPOCHS))
        rewritten, removed = rewritten + moved, removed + gone
        left = collector.left(going, session_id)
        if not left or not (moved or gone):
            break
    collector.forget_gone_packs()
    freed = max(0, before - sum(collector.packs_there().values()))
    return Erasure(snapshots, removed, rewritten, freed, len(left))


class Collector:
    """The steps of collections and erasures in one remote. Each may be repeated. Manifests never change, so each is read once."""

    def __init__(self, bucket: Bucket, seal: Seal, seen: Seen) -> None:
        self._bucket, self._seal, self._seen = bucket, seal, seen
        self._sessions, self._memory = Sessions(bucket, seal, seen), Scratch()
        #: What was read of manifests, by name.
        self._known: dict[str, _Needs] = {}

    def packs_of(self, manifest: str) -> dict[str, int]:
        """Return the packs that a manifest needs, by name, with their lengths; none if the manifest is lost. Thread-safe."""
        if manifest not in self._known:
            try:
                self._read(manifest)
            except RemoteObjectMissing:
                return {}
        return {ref.name: ref.length for ref in self._known[manifest].packs}

    def packs_there(self) -> dict[str, int]:
        """Return the packs that exist, by name, with their lengths."""
        return {one.name: one.size for one in self._bucket.list(pack_refs.FOLDER)}

    def mark(self, session_id: str) -> int:
        """Empty the remote session, so that its manifests are removed; return how many snapshots it listed."""
        unlisted = {
            name for name, one in self._roots().unlisted.items() if one.session_id == session_id
        }
        if not unlisted:
            self._sessions.get(session_id)  # or there is nothing to erase
        return len(self._sessions.empty(session_id, unlisted).listed)

    def rewrite(self) -> tuple[int, set[str]]:
        """Move needed chunks out of every pack that also holds chunks that nothing needs.

        Return how many packs were rewritten, and the names of all packs to be removed.
        """
        now, digests = epochs.read(self._bucket, self._seal, self._seen), set[bytes]()

        def note(manifest: RemoteManifest) -> None:
            digests.update(manifests.references(manifest.manifest()))

        self._known.clear()  # digests are not kept, because they would take much memory
        found = self._roots(note)
        needed = set(map(self._seal.remote_id, digests))
        ids = {name: _ids(rows) for name, rows in self._rows_of(found.packs)}
        going = {
            name
            for name, some in ids.items()
            if name in now.condemned or not needed.issuperset(some)
        }
        self._erase_uploads(found, going)
        used = {name: one for name, one in found.listed.items() if one.uses(going)}
        refs = {ref.name: ref for one in used.values() for ref in one.packs}
        moved = [ref for name, ref in refs.items() if name in going]
        if used:
            place = self._write_anew(moved, needed)
            others = self._write_manifests(used, going, ids, place)
            # A collector may have condemned or removed one of these packs meanwhile.
            after = epochs.read(self._bucket, self._seal, self._seen)
            packs = {*refs.values(), *place.values()}.difference(moved)
            is_sound = after.epoch == now.epoch or remote_packs.are_there(
                self._bucket, packs, after.condemned
            )
            for session_id, some in others.items():
                if is_sound:
                    self._sessions.replace(session_id, some)
                else:
                    self._sessions.erase(session_id, {other for other, _ in some.values()})
        return len(moved), self.packs_there().keys() - self._roots().packs.keys() | going

    def collect(self, min_age: timedelta = MIN_AGE) -> Collected:
        """Begin a new epoch, remove packs that an earlier epoch condemned, and condemn unneeded ones.

        Nothing is removed if another collector begins the epoch, or if a manifest cannot be read. Raises RemoteObjectInvalid, FormatTooNew,
        AccessDenied, StoreUnavailable, OperationCancelled.
        """
        bucket, seal = self._bucket, self._seal
        now = epochs.read(bucket, seal, self._seen)
        last = now.epoch.number
        complete = last > 0 and bucket.head(epochs.list_name(last)) is not None
        epoch = Epoch(last + 1, last if complete else now.epoch.condemned)
        if not epochs.advance(bucket, seal, now, epoch):
            return Collected()
        written = bucket.get(epochs.NAME).modified
        try:
            condemned = (
                epochs.read_list(bucket, seal, epoch.condemned) if epoch.condemned else set()
            )
        except RemoteObjectMissing:
            return Collected()  # other collectors have completed later epochs meanwhile
        found = self._roots()
        needed = found.packs.keys()
        # A machine may be fetching what was just deleted elsewhere. The clocks of machines differ.
        limit = min_age.total_seconds()
        kept = {
            name for name, at in found.deleted_at.items() if abs(written.timestamp() - at) < limit
        }
        for session_id, names in found.gone.items():
            self._forget_deleted(session_id, names - kept)
        there = {one.name: one for one in bucket.list(pack_refs.FOLDER)}
        # A pack that Object Lock still protects stays condemned.
        wanted = sorted(condemned - needed)
        removed = set(wanted).difference(bucket.delete(wanted))
        if removed:
            # Index objects must not name these packs when the list that condemns them is no longer valid.
            index_objects.consolidate(bucket, seal, without=removed)
        old = {name for name, one in there.items() if one.modified <= written - min_age}
        fresh = set(filter(pack_refs.is_name, old - needed - condemned))
        epochs.write_list(bucket, seal, epoch.number, (condemned - removed) | fresh)
        lists = {one.name: one.name.partition("/")[2] for one in bucket.list(epochs.FOLDER)}
        bucket.delete(
            [name for name, one in lists.items() if one.isdecimal() and int(one) < epoch.condemned]
        )
        heartbeats = bucket.list(lease_objects.FOLDER)
        # Of killed daemons, whose leases ended long ago.
        bucket.delete([one.name for one in heartbeats if one.modified < written - MIN_AGE])
        freed = sum(there[name].size for name in removed if name in there)
        return Collected(len(removed), freed, len(fresh))

    def left(self, packs: set[str], session_id: str) -> set[str]:
        """Return those of these packs, and of the erased manifests of a remote session, that still exist."""
        there = {one.name for one in self._bucket.list(remote_manifests.FOLDER)}
        erased = there.intersection(self._sessions.get(session_id).erased)
        return packs & self.packs_there().keys() | erased

    def forget_gone_packs(self) -> None:
        """Rewrite index objects that name removed packs: another collector may have brought some back."""
        index, _ = index_objects.load(self._bucket, self._seal)
        if gone := index.packs.keys() - self.packs_there().keys():
            index_objects.consolidate(self._bucket, self._seal, without=gone)

    def _forget_deleted(self, session_id: str, names: set[str]) -> None:
        """Remove the manifests of deleted and erased snapshots; packs that only they needed are removed two epochs later."""
        if names:
            gone = names.difference(self._bucket.delete(sorted(names)))
            with suppress(RemoteObjectMissing):  # everything in the remote was erased meanwhile
                self._sessions.forget_deleted(session_id, gone)

    def _read(self, name: str) -> RemoteManifest:
        found = remote_manifests.read(self._bucket, self._seal, name)
        self._known[name] = _Needs(found.session_id, found.snapshot_id, found.packs)
        return found

    def _roots(self, note: Callable[[RemoteManifest], None] = lambda manifest: None) -> _Roots:
        """Find all manifests by listing the remote and in remote sessions, and read the unknown ones; `note` is called with each of these.

        A lost manifest is logged and left out. Raises as `collect` does.
        """
        for _ in range(_ATTEMPTS):
            sessions = {one: self._sessions.get(one) for one in self._sessions.ids()}
            there = {one.name for one in self._bucket.list(remote_manifests.FOLDER)}
            every = {one.manifest: one for each in sessions.values() for one in each.snapshots}
            gone = {
                session_id: {one.manifest for one in session.snapshots if one.deleted_at}
                | there.intersection(session.erased)
                for session_id, session in sessions.items()
            }
            listed = {
                one.manifest: session_id
                for session_id, session in sessions.items()
                for one in session.listed
            }
            without = {*listed, *(name for names in gone.values() for name in names)}
            unlisted = set(filter(remote_manifests.snapshot_of, there - without))
            missing = set()
            for name in sorted({*listed, *unlisted} - self._known.keys()):
                try:
                    note(self._read(name))
                except RemoteObjectMissing:
                    missing.add(name)  # its upload may just have replaced an unlisted manifest
            lost = missing & listed.keys()
            # A remote session may meanwhile list another manifest in place of a missing one. That manifest was not read yet.
            if all(self._sessions.lists(listed[name], name) for name in lost):
                break
        else:
            raise StoreUnavailable(
                f"The sessions of remote {self._bucket.name} changed {_ATTEMPTS} times while they were read.",
                hint="Try again.",
            )
        for name in sorted(lost):
            _log.warning("%s is lost: its snapshot cannot be fetched.", name)
        return _Roots(
            {name: self._known[name] for name in listed.keys() - missing},
            {name: self._known[name] for name in unlisted - missing},
            gone,
            {name: one.deleted_at for name, one in every.items() if one.deleted_at},
        )

    def _rows_of(self, refs: dict[str, PackRef]) -> Iterable[tuple[str, Rows]]:
        """Yield the rows of packs, by name, from index objects or else from the packs themselves."""
        index, _ = index_objects.load(self._bucket, self._seal)
        unknown = []
        for name, ref in refs.items():
            known = index.packs.get(name)
            if known is not None and known.ref == ref:
                yield name, remote_packs.checked_rows(ref, known.rows)
            else:
                unknown.append(ref)
        for pack in open_packs(self._bucket, self._seal, unknown):
            yield pack.ref.name, pack.rows

    def _erase_uploads(self, found: _Roots, going: set[str]) -> None:
        """Erase unlisted manifests that need a pack to be removed, and unlisted ones of snapshots that are listed."""
        listed = {(one.session_id, one.snapshot_id) for one in found.listed.values()}
        by_session: dict[str, set[str]] = {}
        for name, one in found.unlisted.items():
            if one.uses(going) or (one.session_id, one.snapshot_id) in listed:
                by_session.setdefault(one.session_id, set()).add(name)
        for session_id, names in by_session.items():
            self._sessions.erase(session_id, names)

    def _write_anew(self, refs: list[PackRef], needed: set[bytes]) -> dict[bytes, PackRef]:
        """Write the needed chunks of packs to new packs and an index object, each chunk once; return the new pack of each chunk."""
        place: dict[bytes, PackRef] = {}
        new: list[PackRows] = []
        chunks: list[RemoteChunk] = []

        def write() -> None:
            pack = remote_packs.build(self._seal, chunks, self._memory)
            if not self._bucket.create(pack.ref.name, pack.data):
                raise invalid(pack.ref.name, "there is one of this name already")
            place.update((chunk.remote_id, pack.ref) for chunk in chunks)
            new.append(PackRows(pack.ref, pack.rows.tobytes()))
            chunks.clear()

        left, size = set(needed), 0
        for pack in open_packs(self._bucket, self._seal, refs):
            rows = pack.rows[[one in left for one in _ids(pack.rows)]]
            if not len(rows):
                continue
            data = self._bucket.get_range(pack.ref.name, 0, pack.ref.length)
            room = memoryview(bytearray(payload_bytes(rows)))
            for chunk in remote_packs.open_chunks(pack.ref.name, pack.key, rows, data, 0, room):
                if size >= PACK_BYTES:
                    write()
                    size = 0
                chunks.append(chunk)
                size += len(chunk.payload)
            left.difference_update(_ids(rows))
        if chunks:
            write()
            index_objects.write(self._bucket, self._seal, new)
        return place

    def _write_manifests(
        self,
        used: dict[str, _Needs],
        going: set[str],
        ids: dict[str, list[bytes]],
        place: dict[bytes, PackRef],
    ) -> dict[str, dict[str, tuple[str, bytes]]]:
        """Write manifests that need no pack in `going`; return the name and digest of each, by remote session and replaced manifest."""
        others: dict[str, dict[str, tuple[str, bytes]]] = {}
        for name, one in used.items():
            try:
                remote = remote_manifests.read(self._bucket, self._seal, name)
            except RemoteObjectMissing:
                continue  # its snapshot was erased meanwhile
            packs = {ref for ref in remote.packs if ref.name not in going}
            wanted = set(map(self._seal.remote_id, manifests.references(remote.manifest())))
            for ref in packs:
                wanted.difference_update(ids[ref.name])
            if missing := wanted - place.keys():
                raise invalid(name, f"{len(missing)} of its chunks are in none of its packs")
            packs.update(place[chunk] for chunk in wanted)
            other = remote_manifests.new_name(remote.snapshot_id)
            moved = msgspec.structs.replace(remote, packs=list(packs))
            digest = remote_manifests.write(self._bucket, self._seal, other, moved)
            others.setdefault(one.session_id, {})[name] = other, digest
        return others


def _ids(rows: Rows) -> list[bytes]:
    return list(map(bytes, rows["id"].tolist()))
