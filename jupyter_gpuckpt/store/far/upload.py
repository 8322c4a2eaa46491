"""Uploading a snapshot: packs, index, manifest, and last the far session, which makes it exist for others.

What is uploaded rests on answers about packs of others, and a collector may be at work. So the epoch is read before the first
answer, condemned packs count as gone, and every pack that the snapshot shares is asked for. When the manifest is written, which
protects its packs from then on, the epoch is read again: if it moved, all packs are looked at once more, and what is condemned or
gone goes up again, with another manifest. An upload that was cut off goes on from its journal, with the epoch of its beginning.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from ...errors import ConfigurationError, FarObjectMissing, ObjectCorrupt, StoreUnavailable
from ...model import Manifest
from .. import manifests
from ..codecs import CodecError, decompress, digest_of
from ..packs import Entry
from ..places import Location
from . import epochs, far_manifests, far_packs, indexes
from .buckets import Bucket
from .epochs import Now
from .far_manifests import FarManifest
from .far_packs import PACK_BYTES, PackRef
from .indexes import FarIndex, PackRows, Place
from .journal import Journal
from .keyring import Keyring
from .pace import Pace
from .sealing import Seal
from .seen import Seen
from .sessions import Facts, FarSnapshot, Sessions

_WRITERS = 8
#: How often a collector may overtake an upload.
_ROUNDS = 10


class Source(Protocol):
    """Where an upload reads a snapshot: a `LocalStore`, or one that another process has open."""

    def manifest(self, snapshot_id: str) -> Manifest:
        """Return the manifest with its annotations."""

    def manifest_file(self, snapshot_id: str) -> bytes:
        """Return the content of the manifest's file."""

    def holding(self, digests: Collection[bytes]) -> AbstractContextManager[None]:
        """Keep these chunks in the store inside the context."""

    def locate(self, digests: Collection[bytes]) -> Iterable[Location]:
        """Return where chunks lie, in the order of the disk."""

    def read(self, digest: bytes) -> tuple[int, bytes, int]:
        """Return codec, payload and raw length of a chunk."""

    def load(self, digest: bytes) -> bytes:
        """Return a chunk, decompressed and verified; raise ObjectCorrupt, which names the pack."""


class Sent(NamedTuple):
    """What went over the wire."""

    count_bytes: int = 0
    packs: int = 0


class Uploaded(NamedTuple):
    """A snapshot that the remote lists, and what had to be sent for it by this attempt."""

    snapshot: FarSnapshot
    sent: Sent


class _Far(NamedTuple):
    """The remote, and how it is written to."""

    bucket: Bucket
    seal: Seal
    seen: Seen
    pace: Pace
    pack_bytes: int


class Uploader:
    """Uploads snapshots of a local store to one remote, from the machine `machine_id`; one at a time.

    `state`: the folder where it keeps what it has done. `upload_rate`: bytes per second, 0: no limit.
    """

    def __init__(
        self,
        bucket: Bucket,
        keyring: Keyring,
        seen: Seen,
        *,
        state: Path,
        machine_id: str,
        upload_rate: int = 0,
        pack_bytes: int = PACK_BYTES,
    ) -> None:
        only = keyring.public.only_machine
        if only not in {"", machine_id}:
            raise ConfigurationError(
                f"Only the machine that made remote {bucket.name} may write to it: its endpoint cannot compare and swap.",
                hint="Use an endpoint that supports conditional writes (If-Match), or a remote of this machine's own.",
            )
        self._far = _Far(bucket, keyring.seal, seen, Pace(upload_rate), pack_bytes)
        self._store_id, self._state = keyring.public.store_id, state
        self._sessions = Sessions(bucket, keyring.seal, seen)

    def upload(
        self,
        store: Source,
        snapshot_id: str,
        facts: Facts,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Uploaded:
        """Upload a snapshot; complete when this returns. `progress` is told bytes done and in all, from any thread.

        Raises SnapshotNotFound, ObjectCorrupt for a chunk that is damaged here, AccessDenied, StoreUnavailable,
        FarObjectInvalid, OperationCancelled. What was sent is not sent again by the next attempt.
        """
        manifest = store.manifest(snapshot_id)
        journal = Journal(self._state / "uploads" / f"{snapshot_id}.jsonl", self._store_id)
        snapshot, sent = self._listed(facts.session_id, snapshot_id), Sent()
        if snapshot is None:
            digests = manifests.references(manifest)
            with store.holding(digests):
                run = _Run(self._far, store, manifest, digests, journal, progress)
                snapshot = run.upload()
            self._sessions.add(facts, snapshot)
            sent = run.sent
        # Manifests of earlier attempts would protect packs for ever.
        superseded = [name for name in journal.manifests if name != snapshot.manifest]
        self._far.bucket.delete(superseded)
        journal.end()
        return Uploaded(snapshot, sent)

    def _listed(self, session_id: str, snapshot_id: str) -> FarSnapshot | None:
        try:
            session = self._sessions.get(session_id)
        except FarObjectMissing:
            return None
        return next((one for one in session.listed if one.snapshot_id == snapshot_id), None)


class _Run:
    """One attempt to upload one snapshot."""

    def __init__(
        self,
        far: _Far,
        store: Source,
        manifest: Manifest,
        digests: set[bytes],
        journal: Journal,
        progress: Callable[[int, int], None],
    ) -> None:
        self._far, self._bucket, self._seal = far, far.bucket, far.seal
        self._store, self._manifest, self._journal = store, manifest, journal
        self._digests = {self._seal.far_id(digest): digest for digest in digests}
        self._progress, self._lock = progress, threading.Lock()
        self._done = self._total = 0
        #: What went over the wire.
        self.sent = Sent()

    def upload(self) -> FarSnapshot:
        """Send everything but the far session, in which the result has to be listed."""
        now = self._now()
        self._journal.begin(now.epoch)
        began = self._journal.epoch
        for _ in range(_ROUNDS):
            # What is condemned was read before the indexes, and before any pack is asked for.
            packs = self._send_missing(now.condemned)
            name, digest = self._write_manifest(packs)
            now = self._now()
            if now.epoch == began or self._are_there(packs, now.condemned):
                break
            began = now.epoch
        else:
            raise StoreUnavailable("The remote's collector overtakes the upload all the time.")
        info = self._manifest.info
        return FarSnapshot(
            info.snapshot_id,
            info.kernel_id,
            name,
            digest,
            info.created,
            info.title or info.name,
            info.sizes.raw_bytes,
            info.sizes.stored_bytes,
        )

    def _now(self) -> Now:
        return epochs.read(self._bucket, self._seal, self._far.seen)

    def _send_missing(self, condemned: set[str]) -> list[PackRef]:
        """Send the chunks that the remote has not; all packs that the snapshot needs."""
        index, names = indexes.load(self._bucket, self._seal)
        if len(names) > indexes.MOST_INDEXES:
            indexes.consolidate(self._bucket, self._seal)
        known = [index, FarIndex(self._journal.packs.values())]
        shared = {place.ref for one in known for place in self._find(one, condemned)}
        gone = condemned | self._gone(shared)
        there = {
            place.row["id"].tobytes(): place.ref for one in known for place in self._find(one, gone)
        }
        sent = self._send([d for far_id, d in self._digests.items() if far_id not in there])
        unlisted = [
            one
            for name, one in self._journal.packs.items()
            if name not in index.packs and name not in gone
        ]
        if unlisted:
            indexes.write(self._bucket, self._seal, unlisted)
        return list({ref.name: ref for ref in [*there.values(), *sent]}.values())

    def _find(self, index: FarIndex, without: set[str]) -> Iterable[Place]:
        return index.find(self._digests, without).values()

    def _gone(self, packs: Iterable[PackRef]) -> set[str]:
        def is_gone(ref: PackRef) -> bool:
            found = self._bucket.head(ref.name)
            return found is None or found.size != ref.length

        refs = list(packs)
        with ThreadPoolExecutor(_WRITERS, "look") as pool:
            gone = list(pool.map(is_gone, refs))
        return {ref.name for ref, is_it in zip(refs, gone, strict=True) if is_it}

    def _are_there(self, packs: Collection[PackRef], condemned: set[str]) -> bool:
        return condemned.isdisjoint(ref.name for ref in packs) and not self._gone(packs)

    def _send(self, digests: Collection[bytes]) -> list[PackRef]:
        groups = self._groups(digests)
        self._done, self._total = 0, sum(one.stored_length for group in groups for one in group)
        with ThreadPoolExecutor(_WRITERS, "upload") as pool:
            running = [pool.submit(self._send_pack, group) for group in groups]
            _, unfinished = wait(running, return_when=FIRST_EXCEPTION)
            for one in unfinished:
                one.cancel()
        # The first error in the order of packs; those that were cancelled come after it or did not begin.
        failed = [one for one in running if not one.cancelled() and one.exception()]
        return [one.result() for one in failed or running]

    def _groups(self, digests: Collection[bytes]) -> list[list[Entry]]:
        """Return the chunks in the order in which they lie here, by far pack: those of small local packs go together."""
        groups: list[list[Entry]] = []
        room = 0
        for place in self._store.locate(digests):
            if room <= 0:
                groups.append([])
                room = self._far.pack_bytes
            groups[-1].append(Entry(place.digest, place.offset, *place[3:]))
            room -= place.stored_length
        return groups

    def _send_pack(self, chunks: Sequence[Entry]) -> PackRef:
        pack = far_packs.build(self._seal, chunks, self._read)
        self._far.pace.wait(len(pack.data), self._bucket.retries)
        if not self._bucket.create(pack.ref.name, pack.data):
            raise StoreUnavailable(f"A pack of this name is in remote {self._bucket.name} already.")
        with self._lock:
            self._journal.add_pack(PackRows(pack.ref, pack.rows.tobytes()))
            self.sent = Sent(self.sent.count_bytes + len(pack.data), self.sent.packs + 1)
            self._done += sum(chunk.stored_length for chunk in chunks)
            self._progress(self._done, self._total)
        return pack.ref

    def _read(self, digest: bytes) -> tuple[int, bytes, int]:
        """Return a chunk as it is stored here, after comparing it with its digest: damage must not travel."""
        codec, payload, raw_length = self._store.read(digest)
        try:
            intact = digest_of(decompress(codec, payload, raw_length)) == digest
        except CodecError:
            intact = False
        if not intact:
            self._store.load(digest)  # raises, naming the pack
            raise ObjectCorrupt(
                f"Chunk {digest.hex()[:16]} was stored again meanwhile.", hint="Try again."
            )
        return codec, payload, raw_length

    def _write_manifest(self, packs: Sequence[PackRef]) -> tuple[str, bytes]:
        snapshot_id = self._manifest.info.snapshot_id
        content = manifests.to_share(self._manifest, self._store.manifest_file(snapshot_id))
        name = far_manifests.new_name(snapshot_id)
        self._journal.add_manifest(name)
        digest = far_manifests.write(
            self._bucket, self._seal, name, FarManifest(snapshot_id, content, list(packs))
        )
        return name, digest
