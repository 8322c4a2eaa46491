"""The upload of a snapshot: packs, index object, manifest, and last the remote session, which lists the snapshot for other machines.

An upload relies on packs that other uploads wrote, and a collector may remove packs at the same time. Therefore the upload reads
the epoch before it looks for chunks in the remote, treats condemned packs as missing, and checks that every shared pack exists.
The manifest protects its packs once it is written. The upload then reads the epoch again. If the epoch changed, the upload checks
all packs once more, sends those that are condemned or missing again, and writes another manifest. An interrupted upload continues
from its journal, with the epoch that was current when it began.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from ..errors import (
    ConfigurationError,
    FormatTooNew,
    ObjectCorrupt,
    RemoteObjectInvalid,
    RemoteObjectMissing,
    StoreUnavailable,
)
from ..store import manifests
from ..store.codecs import CodecError, digest_of_stored
from ..store.index.places import Places
from ..store.packs import Entry
from ..wire.manifest_records import Manifest
from . import epochs, index_objects, remote_manifests, remote_packs, unneeded
from .buckets import Bucket
from .epochs import CurrentEpoch
from .index_objects import Place, RemoteIndex
from .listed_facts import about, title_of
from .pack_refs import INDEX_FOLDER, PACK_BYTES, PackRef, PackRows
from .pack_sender import Pace, PackSender
from .remote_manifests import RemoteManifest
from .remote_packs import RemotePack
from .remote_sessions import Facts, ManifestErased, RemoteSession, RemoteSnapshot, Sessions, Tenure
from .request_errors import of_the_whole_remote
from .sealing import Seal
from .seen import Seen
from .store_key import StoreKey
from .upload_progress import Journal, path_of

_log = logging.getLogger(__name__)

#: How often an upload begins again because the epoch changed during it.
_ROUNDS = 10


class Source(Protocol):
    """The store that an upload reads: a `LocalStore`, or a store that another process has open."""

    def manifest(self, snapshot_id: str) -> Manifest:
        """Return the manifest with its annotations."""

    def manifest_file(self, snapshot_id: str) -> bytes:
        """Return the content of the manifest's file."""

    def holding(self, digests: Collection[bytes]) -> AbstractContextManager[None]:
        """Keep these chunks in the store inside the context."""

    def locate(self, digests: Collection[bytes]) -> Places:
        """Return the locations of chunks, in the order in which they lie on the disk."""

    def read(self, digest: bytes) -> tuple[int, bytes | memoryview, int]:
        """Return codec, payload and raw length of a chunk. The payload is valid until this thread calls the method again."""

    def load(self, digest: bytes) -> bytes:
        """Return a chunk, decompressed and verified; raise ObjectCorrupt, which names the pack."""


class Sent(NamedTuple):
    """The amount of data that an upload sent."""

    count_bytes: int = 0
    packs: int = 0


class Uploaded(NamedTuple):
    """A snapshot that the remote lists, and the amount of data that this attempt sent for it. `is_new`: it was not listed before."""

    snapshot: RemoteSnapshot
    sent: Sent
    is_new: bool = True


class _Remote(NamedTuple):
    """A remote, with the settings for writing to it."""

    bucket: Bucket
    seal: Seal
    seen: Seen
    pace: Pace
    pack_bytes: int
    machine_id: str
    #: The folder with copies of index objects.
    index_copies: Path


class Uploader:
    """An uploader of snapshots from a local store to one remote, one snapshot at a time.

    `state`: the folder for journals and for copies of index objects. `machine_id`: this machine's. `upload_rate`: in bytes per
    second; 0 means no limit. `ahead_seconds`: by how much the remote's clock is ahead.
    """

    def __init__(
        self,
        bucket: Bucket,
        key: StoreKey,
        seen: Seen,
        *,
        state: Path,
        machine_id: str,
        upload_rate: int = 0,
        pack_bytes: int = PACK_BYTES,
        ahead_seconds: float = 0.0,
    ) -> None:
        only = key.public.only_machine
        if only not in {"", machine_id}:
            raise ConfigurationError(
                f"Only the machine that made remote {bucket.name} may write to it: its endpoint cannot compare and swap.",
                hint="Use an endpoint that supports conditional writes (If-Match), or a remote of this machine's own.",
            )
        self._remote = _Remote(
            bucket,
            key.seal,
            seen,
            Pace(upload_rate),
            pack_bytes,
            machine_id,
            state / INDEX_FOLDER,
        )
        self._store_id, self._state = key.public.store_id, state
        self._sessions = Sessions(bucket, key.seal, seen)
        self._ahead_seconds = ahead_seconds

    def upload(
        self,
        store: Source,
        snapshot_id: str,
        facts: Facts,
        progress: Callable[[int, int], None] = lambda done, total: None,
        *,
        tenure: Tenure | None = None,
        term: int = 0,
    ) -> Uploaded:
        """Upload a snapshot; the remote lists it when this returns.

        `progress` is called with the bytes sent and the bytes in all, from any thread. `tenure`: the lease of the remote session. `term`:
        that in which the snapshot was made. Raises SessionLost if another daemon has held the lease since, SnapshotNotFound,
        ObjectCorrupt if a chunk is damaged on this machine, AccessDenied, StoreUnavailable, RemoteObjectInvalid, OperationCancelled.
        After an error the next attempt does not send the same packs again.
        """
        manifest = store.manifest(snapshot_id)
        journal = self._journal(snapshot_id)
        digests, sent = manifests.references(manifest), Sent()
        for _ in range(_ROUNDS):
            snapshot = self._listed(facts.session_id, snapshot_id)
            if snapshot is not None:
                is_new = False
                break
            with store.holding(digests):
                run = _Run(self._remote, store, manifest, digests, journal, progress)
                snapshot = run.upload(facts.session_id, term)
            sent = Sent(sent.count_bytes + run.sent.count_bytes, sent.packs + run.sent.packs)
            # An erasure that ran at the same time removed the manifest: the loop writes it again.
            with suppress(ManifestErased):
                self._sessions.add(facts, snapshot, tenure, self._thinned)
                is_new = True
                break
        else:
            raise StoreUnavailable(
                f"An erasure removed the upload's manifest {_ROUNDS} times.",
                hint="Try again when it has ended.",
            )
        self._end(journal, {snapshot.manifest})
        return Uploaded(snapshot, sent, is_new)

    def give_up(self, snapshot_id: str) -> None:
        """End an interrupted upload whose snapshot was deleted: remove its manifests, except those that a remote session lists.

        The collector removes packs that no other manifest needs. Raises AccessDenied, StoreUnavailable.
        """
        journal = self._journal(snapshot_id)
        try:
            for session_id in journal.sessions:
                # The last request of the upload may be on its way; it must not list a manifest that is removed here.
                with suppress(RemoteObjectMissing):
                    self._sessions.rewrite(session_id, lambda session: session)
            listed = [self._listed(session_id, snapshot_id) for session_id in journal.sessions]
        except (RemoteObjectInvalid, FormatTooNew) as error:
            # The remote session cannot be read, so it may list them.
            _log.warning(
                "The manifests of the ended upload of %s are not removed: %s", snapshot_id, error
            )
            journal.end()
        else:
            self._end(journal, {one.manifest for one in listed if one})

    def _thinned(self, session: RemoteSession) -> RemoteSession:
        """Return a remote session with fewer periodic saves; as it is if the remote would not let the collector remove them."""
        now = time.time() + self._ahead_seconds
        return unneeded.thinned(session, now) if self._remote.bucket.deletes else session

    def _journal(self, snapshot_id: str) -> Journal:
        return Journal(path_of(self._state, snapshot_id), self._store_id)

    def _end(self, journal: Journal, listed: set[str]) -> None:
        """Remove an upload's journal and its unlisted manifests, which would otherwise protect their packs from the collector."""
        self._remote.bucket.delete([name for name in journal.manifests if name not in listed])
        journal.end()

    def _listed(self, session_id: str, snapshot_id: str) -> RemoteSnapshot | None:
        try:
            session = self._sessions.get(session_id)
        except RemoteObjectMissing:
            return None
        return next((one for one in session.listed if one.snapshot_id == snapshot_id), None)


class _Run:
    """One attempt to upload one snapshot."""

    def __init__(
        self,
        remote: _Remote,
        store: Source,
        manifest: Manifest,
        digests: set[bytes],
        journal: Journal,
        progress: Callable[[int, int], None],
    ) -> None:
        self._remote, self._bucket, self._seal = remote, remote.bucket, remote.seal
        self._store, self._manifest, self._journal = store, manifest, journal
        self._remote_ids = {digest: self._seal.remote_id(digest) for digest in digests}
        self._progress = progress
        self._done = self._total = 0
        #: What this attempt has sent so far.
        self.sent = Sent()

    def upload(self, session_id: str, term: int) -> RemoteSnapshot:
        """Send packs, index object and manifest; return the entry that the remote session must list."""
        now = self._now()
        self._journal.begin(now.epoch)
        began = self._journal.epoch
        for _ in range(_ROUNDS):
            # The list of condemned packs must be older than the index objects and than the checks of packs.
            packs = self._send_missing(now.condemned)
            name, digest = self._write_manifest(packs, session_id)
            now = self._now()
            if now.epoch == began or remote_packs.are_there(self._bucket, packs, now.condemned):
                break
            began = now.epoch
        else:
            raise StoreUnavailable(
                f"The remote's collector removed packs during the upload {_ROUNDS} times.",
                hint="Try again.",
            )
        info = self._manifest.info
        return RemoteSnapshot(
            info.snapshot_id,
            info.kernel_id,
            name,
            digest,
            info.created,
            title_of(info),
            info.sizes.raw_bytes,
            info.sizes.stored_bytes,
            about=about(info),
            machine_id=self._remote.machine_id,
            term=term,
            number=info.number,
        )

    def _now(self) -> CurrentEpoch:
        with of_the_whole_remote():
            return epochs.read(self._bucket, self._seal, self._remote.seen)

    def _send_missing(self, condemned: set[str]) -> list[PackRef]:
        """Send the chunks that the remote does not have; return all packs that the snapshot needs."""
        with of_the_whole_remote():
            index, names = index_objects.load(self._bucket, self._seal, self._remote.index_copies)
            if len(names) > index_objects.MAX_INDEXES and self._bucket.deletes:
                index_objects.consolidate(self._bucket, self._seal)
        known = [index, RemoteIndex(self._journal.packs.values())]
        shared = {place.ref for one in known for place in self._find(one, condemned)}
        gone = condemned | remote_packs.gone(self._bucket, shared)
        there = {
            place.row["id"].tobytes(): place.ref for one in known for place in self._find(one, gone)
        }
        sent = self._send(
            [d for d, remote_id in self._remote_ids.items() if remote_id not in there]
        )
        unlisted = [
            one
            for name, one in self._journal.packs.items()
            if name not in index.packs and name not in gone
        ]
        if unlisted:
            index_objects.write(self._bucket, self._seal, unlisted)
        return list({ref.name: ref for ref in [*there.values(), *sent]}.values())

    def _find(self, index: RemoteIndex, without: set[str]) -> Iterable[Place]:
        return index.find(self._remote_ids.values(), without).values()

    def _send(self, digests: Collection[bytes]) -> list[PackRef]:
        groups = self._groups(digests)
        self._done, self._total = 0, sum(one.stored_length for group in groups for one in group)

        def note(pack: RemotePack, chunks: Sequence[Entry]) -> None:
            self._journal.add_pack(PackRows(pack.ref, pack.rows.tobytes()))
            self.sent = Sent(self.sent.count_bytes + pack.ref.length, self.sent.packs + 1)
            self._done += sum(chunk.stored_length for chunk in chunks)
            self._progress(self._done, self._total)

        remote = self._remote
        sender = PackSender(
            remote.bucket, remote.seal, remote.pace, self._read, self._remote_ids, note
        )
        return sender.send(groups)

    def _groups(self, digests: Collection[bytes]) -> list[list[Entry]]:
        """Divide chunks into remote packs, in the order in which they lie on the disk; one remote pack may join small local packs."""
        groups: list[list[Entry]] = []
        room = 0
        for entry in self._store.locate(digests).entries():
            if room <= 0:
                groups.append([])
                room = self._remote.pack_bytes
            groups[-1].append(entry)
            room -= entry.stored_length
        return groups

    def _read(self, digest: bytes) -> tuple[int, bytes | memoryview, int]:
        """Return a chunk as it is stored here, after comparing it with its digest, so that no damaged chunk is uploaded."""
        codec, payload, raw_length = self._store.read(digest)
        try:
            intact = digest_of_stored(codec, payload, raw_length) == digest
        except CodecError:
            intact = False
        if not intact:
            self._store.load(digest)  # raises, naming the pack
            raise ObjectCorrupt(
                f"Chunk {digest.hex()[:16]} was replaced during the upload.", hint="Try again."
            )
        return codec, payload, raw_length

    def _write_manifest(self, packs: Sequence[PackRef], session_id: str) -> tuple[str, bytes]:
        snapshot_id = self._manifest.info.snapshot_id
        content = self._store.manifest_file(snapshot_id)
        name = remote_manifests.new_name(snapshot_id)
        self._journal.add_manifest(name, session_id)
        made = RemoteManifest(snapshot_id, content, list(packs), session_id)
        return name, remote_manifests.write(self._bucket, self._seal, name, made)
