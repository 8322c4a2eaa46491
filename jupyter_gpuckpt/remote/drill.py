"""A drill: a sample of a remote's snapshots is fetched, decrypted and compared with its digests, as in a fetch. Nothing is kept."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from ..errors import FormatTooNew, RemoteObjectInvalid, RemoteObjectMissing
from ..store import manifests
from ..wire.remote_records import Damage, Drill
from .buckets import Bucket
from .checking import OpenPack, Span, check, open_packs, payload_bytes, spans
from .fetch import remote_manifest
from .pack_refs import PackRef
from .remote_sessions import RemoteSnapshot, Sessions
from .sealing import Seal
from .seen import Seen

_READERS = 8
#: Errors that show damage; any other error ends the drill.
_DAMAGE = (RemoteObjectInvalid, RemoteObjectMissing, FormatTooNew)


def drill(bucket: Bucket, seal: Seal, seen: Seen, sample: int, chance: random.Random) -> Drill:
    """Check `sample` snapshots, and `sample` chunks of each. Raises AccessDenied, StoreUnavailable, OperationCancelled."""
    sessions, damaged = Sessions(bucket, seal, seen), list[Damage]()
    listed: list[tuple[str, RemoteSnapshot]] = []
    for session_id in sessions.ids():
        try:
            listed += [(session_id, one) for one in sessions.get(session_id).listed]
        except _DAMAGE as error:
            damaged.append(Damage(session_id, "", f"sessions/{session_id}", error.message))
    chosen = chance.sample(listed, min(sample, len(listed)))
    looking = _Looking(bucket, seal, sample, chance)
    for session_id, snapshot in chosen:
        for name, why in looking.at(snapshot):
            damaged.append(Damage(session_id, snapshot.snapshot_id, name, why))
    return Drill(len(listed), len(chosen), looking.chunks, looking.chunk_bytes, damaged)


class _Looking:
    """A checker of snapshots, which opens each pack once."""

    def __init__(self, bucket: Bucket, seal: Seal, sample: int, chance: random.Random) -> None:
        self._bucket, self._seal, self._sample, self._chance = bucket, seal, sample, chance
        self._packs: dict[PackRef, OpenPack | str] = {}
        self.chunks = self.chunk_bytes = 0

    def at(self, snapshot: RemoteSnapshot) -> Iterator[tuple[str, str]]:
        """Yield the damage of a snapshot: each damaged object's name, with the reason."""
        try:
            remote = remote_manifest(self._bucket, self._seal, snapshot)
            digests = manifests.references(remote.manifest())
        except _DAMAGE as error:
            yield snapshot.manifest, error.message
            return
        wanted = {self._seal.remote_id(digest): digest for digest in digests}
        found: dict[bytes, Span] = {}
        is_whole = True
        with ThreadPoolExecutor(_READERS, "drill") as pool:
            for ref, pack in zip(remote.packs, pool.map(self._open, remote.packs), strict=True):
                if isinstance(pack, str):
                    is_whole = False
                    yield ref.name, pack
                    continue
                for number, one in enumerate(pack.rows["id"].tolist()):
                    if (digest := wanted.get(bytes(one))) is not None:
                        [found[digest]] = spans(pack, pack.rows[[number]], [digest])
            if is_whole and (missing := len(wanted) - len(found)):
                yield snapshot.manifest, f"{missing} of its chunks are in none of its packs."
            sampled = [found[one] for one in sorted(found)]
            sampled = self._chance.sample(sampled, min(self._sample, len(sampled)))
            for one, why in zip(sampled, pool.map(self._problem_of, sampled), strict=True):
                self.chunks += 1
                self.chunk_bytes += payload_bytes(one.rows)
                if why:
                    yield one.pack.ref.name, why

    def _open(self, ref: PackRef) -> OpenPack | str:
        """Return a pack with its rows, or the reason why it cannot be read."""
        if ref not in self._packs:
            try:
                [self._packs[ref]] = open_packs(self._bucket, self._seal, [ref])
            except _DAMAGE as error:
                self._packs[ref] = error.message
        return self._packs[ref]

    def _problem_of(self, sampled: Span) -> str:
        """Return the problem of a chunk; empty if there is none."""
        try:
            data = self._bucket.get_range(sampled.pack.ref.name, sampled.start, sampled.end)
            check(sampled, data, memoryview(bytearray(payload_bytes(sampled.rows))))
        except _DAMAGE as error:
            return error.message
        return ""
