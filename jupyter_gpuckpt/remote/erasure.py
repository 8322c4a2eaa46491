"""Permanent erasure of a remote session, while uploaders, collectors and readers run that may stop at any moment and continue later.

One swap empties the remote session and records every manifest that may not be listed again. Uploaders swap the same object to list a
snapshot, so the two are ordered. Then these manifests are removed, and after them the chunks:

* Packs that nothing needs are removed by the collector: condemned in one epoch, removed in the next, which may follow at once.
* A pack with both needed and erased chunks is rewritten without the erased ones: first the new packs, then their index, then
  manifests that name them, last the remote sessions, which then list these manifests instead. After that nothing needs the old pack.
* A manifest that no remote session lists and that needs such a pack belongs to an upload. It is erased as well; its uploader gets
  ManifestErased when it lists the manifest, and sends again what it needs of that pack.

At every step all listed objects exist. After a crash, the next erasure or collection continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import NamedTuple

import msgspec

from ..errors import ConfigurationError, RemoteObjectMissing
from ..linux.fresh_memory import Scratch
from ..store import manifests
from . import epochs, index_objects, pack_refs, remote_manifests, remote_packs, roots
from .buckets import Bucket
from .checking import OpenPack
from .collector import collect
from .epochs import CurrentEpoch
from .fetch import open_packs
from .pack_refs import PACK_BYTES, PackRef, PackRows
from .remote_manifests import RemoteManifest
from .remote_packs import RemoteChunk, Rows
from .remote_sessions import Sessions
from .roots import Roots
from .sealing import Seal, invalid
from .seen import Seen

#: How many rounds are tried while uploads interfere.
_ROUNDS = 8
#: The round after which a missing pack counts as lost.
_LOOKS = 3
#: One epoch condemns packs, the next one removes them.
_EPOCHS = 2


class Erased(NamedTuple):
    """The result of an erasure: erased snapshots, removed packs, how many of these were rewritten, and freed bytes.

    `left`: objects that should be gone and still exist, because the remote refuses to delete them or uploads interfered in every
    round.
    """

    snapshots: int
    removed: int
    rewritten: int
    freed_bytes: int
    left: int


class _Needs(NamedTuple):
    """The remote session to which a manifest belongs, listed or not, its snapshot, and the packs that it needs."""

    session_id: str
    snapshot_id: str
    packs: list[PackRef]


def erase(
    bucket: Bucket,
    seal: Seal,
    seen: Seen,
    session_id: str,
    tell: Callable[[str], None] = lambda step: None,
    *,
    pack_bytes: int = PACK_BYTES,
) -> Erased:
    """Erase a remote session, whose id is that of its kernel; snapshots that other remote sessions list stay complete throughout.

    An erasure that was interrupted is completed. Raises RemoteObjectMissing if there is no such session, ConfigurationError if objects
    cannot be deleted, RemoteObjectInvalid for an object that cannot be read, and what `Bucket` raises.
    """
    if not bucket.deletes:
        raise ConfigurationError(
            f"Remote {bucket.name} refuses to delete objects, so nothing can be erased there.",
            hint="Grant the right to delete, and run `jupyter gpuckpt remote test`.",
        )
    eraser = _Eraser(bucket, seal, seen, pack_bytes)
    before = eraser.stored_bytes()
    snapshots = eraser.mark(session_id)
    rewritten = removed = 0
    left: set[str] = set()
    for number in range(_ROUNDS):
        tell("rewriting")
        try:
            moved, going = eraser.rewrite()
        except RemoteObjectMissing:
            # Another erasure has just rewritten the pack, or the pack is lost.
            if number == _LOOKS:
                raise
            continue
        rewritten += moved
        tell("removing")
        gone = sum(
            collect(bucket, seal, seen, min_age=timedelta(0)).removed for _ in range(_EPOCHS)
        )
        removed += gone
        left = eraser.still_there(going) | eraser.erased_still_there(session_id)
        if not left or not (moved or gone):
            break
    eraser.forget_gone_packs()
    freed = max(0, before - eraser.stored_bytes())
    return Erased(snapshots, removed, rewritten, freed, len(left))


class _Eraser:
    """An erasure in one remote: its steps, each of which may be repeated."""

    def __init__(self, bucket: Bucket, seal: Seal, seen: Seen, pack_bytes: int) -> None:
        self._bucket, self._seal, self._seen = bucket, seal, seen
        self._memory = Scratch()
        self._sessions, self._pack_bytes = Sessions(bucket, seal, seen), pack_bytes

    def stored_bytes(self) -> int:
        """Return the total length of all packs, in bytes."""
        return sum(one.size for one in self._bucket.list(pack_refs.FOLDER))

    def still_there(self, packs: set[str]) -> set[str]:
        """Return those of these packs that exist."""
        return packs.intersection(one.name for one in self._bucket.list(pack_refs.FOLDER))

    def forget_gone_packs(self) -> None:
        """Rewrite index objects that name removed packs: another collector may have brought some back."""
        index, _ = index_objects.load(self._bucket, self._seal)
        if gone := index.packs.keys() - self.still_there(set(index.packs)):
            index_objects.consolidate(self._bucket, self._seal, without=gone)

    def erased_still_there(self, session_id: str) -> set[str]:
        """Return the erased manifests of a remote session whose objects exist."""
        there = {one.name for one in self._bucket.list(remote_manifests.FOLDER)}
        return there.intersection(self._sessions.get(session_id).erased)

    def mark(self, session_id: str) -> int:
        """Empty the remote session, so that the collector removes its manifests; return how many snapshots it listed."""
        found = roots.read(self._bucket, self._seal, self._seen, _needs_of)
        unlisted = {
            name for name, needs in found.unlisted.items() if needs.session_id == session_id
        }
        if not unlisted:
            self._sessions.get(session_id)  # or there is nothing to erase
        return len(self._sessions.empty(session_id, unlisted).listed)

    def rewrite(self) -> tuple[int, set[str]]:
        """Move needed chunks out of every pack that also holds chunks that nothing needs.

        Return how many packs were rewritten, and the names of all packs to be removed.
        """
        now = epochs.read(self._bucket, self._seal, self._seen)
        digests: set[bytes] = set()

        def needs_of(manifest: RemoteManifest) -> _Needs:
            digests.update(manifests.references(manifest.manifest()))
            return _needs_of(manifest)

        found = roots.read(self._bucket, self._seal, self._seen, needs_of)
        needed = {self._seal.remote_id(digest) for digest in digests}
        table = self._table({ref.name: ref for one in found.all for ref in one.packs}.values())
        going = {
            name
            for name, (_, rows) in table.items()
            if name in now.condemned or not needed.issuperset(_ids(rows))
        }
        self._erase_uploads(found, going)
        used = {name: one for name, one in found.listed.items() if _uses(one[1], going)}
        if used:
            self._move(now, used, table, going, needed)
        moved = {ref.name for _, one in used.values() for ref in one.packs if ref.name in going}
        there = {one.name for one in self._bucket.list(pack_refs.FOLDER)}
        after = roots.read(self._bucket, self._seal, self._seen, _needs_of)
        return len(moved), there - {ref.name for one in after.all for ref in one.packs} | going

    def _table(self, refs: Iterable[PackRef]) -> dict[str, tuple[PackRef, Rows]]:
        """Return the rows of packs, by name, from index objects or else from the packs themselves."""
        index, _ = index_objects.load(self._bucket, self._seal)
        table, unknown = {}, []
        for ref in refs:
            known = index.packs.get(ref.name)
            if known is not None and known.ref == ref:
                table[ref.name] = ref, remote_packs.checked_rows(ref, known.rows)
            else:
                unknown.append(ref)
        for pack in open_packs(self._bucket, self._seal, unknown):
            table[pack.ref.name] = pack.ref, pack.rows
        return table

    def _erase_uploads(self, found: Roots[_Needs], going: set[str]) -> None:
        """Erase unlisted manifests that need a pack to be removed, and unlisted ones of snapshots that are listed."""
        listed = {(one.session_id, one.snapshot_id) for _, one in found.listed.values()}
        by_session: dict[str, set[str]] = {}
        for name, one in found.unlisted.items():
            if _uses(one, going) or (one.session_id, one.snapshot_id) in listed:
                by_session.setdefault(one.session_id, set()).add(name)
        for session_id, names in by_session.items():
            self._sessions.erase(session_id, names)

    def _move(
        self,
        now: CurrentEpoch,
        used: dict[str, tuple[str, _Needs]],
        table: dict[str, tuple[PackRef, Rows]],
        going: set[str],
        needed: set[bytes],
    ) -> None:
        """Rewrite the needed chunks of packs to be removed, and list manifests that name the new packs."""
        old = {ref.name: ref for _, one in used.values() for ref in one.packs if ref.name in going}
        new = [
            *self._write_anew(list(open_packs(self._bucket, self._seal, [*old.values()])), needed)
        ]
        if new:
            index_objects.write(self._bucket, self._seal, new)
        rows = {one.ref.name: remote_packs.checked_rows(one.ref, one.rows) for one in new}
        refs = {one.ref.name: one.ref for one in new}
        place = {remote_id: refs[name] for name, some in rows.items() for remote_id in _ids(some)}
        others: dict[str, dict[str, tuple[str, bytes]]] = {}
        for name, (session_id, _) in used.items():
            try:
                remote = remote_manifests.read(self._bucket, self._seal, name)
            except RemoteObjectMissing:
                continue  # its snapshot was erased meanwhile
            packs = self._packs_of(name, remote, table, going, place)
            moved = msgspec.structs.replace(remote, packs=packs)
            other = remote_manifests.new_name(remote.snapshot_id)
            digest = remote_manifests.write(self._bucket, self._seal, other, moved)
            others.setdefault(session_id, {})[name] = other, digest
        if self._is_sound(now, used, going, refs.values()):
            for session_id, some in others.items():
                self._list(session_id, some)
        else:
            for session_id, some in others.items():
                names = {other for other, _ in some.values()}
                self._sessions.erase(session_id, names)

    def _list(self, session_id: str, others: dict[str, tuple[str, bytes]]) -> None:
        """Replace listed manifests by others, and erase those of both kinds that are not listed afterwards."""
        after = self._sessions.replace(session_id, others)
        listed = {one.manifest for one in after.snapshots}
        names = {*others, *(name for name, _ in others.values())} - listed
        self._sessions.erase(session_id, names)

    def _write_anew(self, packs: list[OpenPack], needed: set[bytes]) -> Iterable[PackRows]:
        """Write the needed chunks of packs to new packs, each chunk once; yield the new packs."""
        chunks: list[RemoteChunk] = []
        room, done = self._pack_bytes, set[bytes]()
        for pack in packs:
            for chunk in self._chunks(pack, needed - done):
                done.add(chunk.remote_id)
                chunks.append(chunk)
                room -= len(chunk.payload)
                if room <= 0:
                    yield self._write(chunks)
                    chunks, room = [], self._pack_bytes
        if chunks:
            yield self._write(chunks)

    def _chunks(self, pack: OpenPack, wanted: set[bytes]) -> Iterable[RemoteChunk]:
        data: bytes | memoryview = b""
        for row in pack.rows:
            if row["id"].tobytes() not in wanted:
                continue
            data = data or self._bucket.get_range(pack.ref.name, 0, pack.ref.length)
            start, end = remote_packs.record_bounds(row)
            yield remote_packs.open_chunk(pack.ref.name, pack.key, row, data[start:end])

    def _write(self, chunks: list[RemoteChunk]) -> PackRows:
        pack = remote_packs.build_of(self._seal, chunks, self._memory)
        if not self._bucket.create(pack.ref.name, pack.data):
            raise invalid(pack.ref.name, "there is one of this name already")
        return PackRows(pack.ref, pack.rows.tobytes())

    def _packs_of(
        self,
        name: str,
        remote: RemoteManifest,
        table: dict[str, tuple[PackRef, Rows]],
        going: set[str],
        place: dict[bytes, PackRef],
    ) -> list[PackRef]:
        """Return the packs that a manifest needs after the removal of `going`."""
        kept = {ref.name: ref for ref in remote.packs if ref.name not in going}
        wanted = set(map(self._seal.remote_id, manifests.references(remote.manifest())))
        for pack_name in kept:
            wanted.difference_update(_ids(table[pack_name][1]))
        if missing := wanted - place.keys():
            raise invalid(name, f"{len(missing)} of its chunks are in none of its packs")
        return list((kept | {place[one].name: place[one] for one in wanted}).values())

    def _is_sound(
        self,
        now: CurrentEpoch,
        used: dict[str, tuple[str, _Needs]],
        going: set[str],
        new: Iterable[PackRef],
    ) -> bool:
        """Return whether all packs of the new manifests are safe: no collector has condemned or removed one meanwhile."""
        after = epochs.read(self._bucket, self._seal, self._seen)
        if after.epoch == now.epoch:
            return True
        refs = {ref for _, one in used.values() for ref in one.packs if ref.name not in going}
        return remote_packs.are_there(self._bucket, refs.union(new), after.condemned)


def _needs_of(manifest: RemoteManifest) -> _Needs:
    return _Needs(manifest.session_id, manifest.snapshot_id, manifest.packs)


def _uses(needs: _Needs, packs: set[str]) -> bool:
    return not packs.isdisjoint(ref.name for ref in needs.packs)


def _ids(rows: Rows) -> list[bytes]:
    return list(map(bytes, rows["id"].tolist()))
