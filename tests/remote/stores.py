"""A remote that is set up, and local stores with snapshots, in a few lines."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from jupyter_gpuckpt.errors import RemoteObjectMissing
from jupyter_gpuckpt.images.compression import Compressor
from jupyter_gpuckpt.remote import store_key
from jupyter_gpuckpt.remote.buckets import Bucket
from jupyter_gpuckpt.remote.fetch import fetch
from jupyter_gpuckpt.remote.listed_facts import Deletion
from jupyter_gpuckpt.remote.remote_deletions import delete
from jupyter_gpuckpt.remote.remote_sessions import Facts, Sessions
from jupyter_gpuckpt.remote.seen import Seen
from jupyter_gpuckpt.remote.store_key import Secret, StoreKey
from jupyter_gpuckpt.remote.upload import Uploader
from jupyter_gpuckpt.store.codecs import digest_of
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.writer import Record
from jupyter_gpuckpt.wire.remote_records import EntryKind
from tests.unit.test_store_local import manifest

OWN = Secret(EntryKind.FILE, b"o" * 32)
FACTS = Facts("session-1", hub_user="ada lovelace", path="work/notes.ipynb", host_name="first")
#: Far smaller than in earnest, so that a few hundred kB make several.
PACK_BYTES = 100_000


@dataclass
class Machine:
    """A machine with a store of its own, and what it has seen of the remote."""

    bucket: Bucket
    folder: Path
    machine_id: str = "one machine"
    store: LocalStore = field(init=False)

    def __post_init__(self):
        self.store = LocalStore(self.folder / "store")
        self.seen = Seen(self.folder / "seen.json")

    @property
    def key(self) -> StoreKey:
        try:
            return store_key.open_with(self.bucket, self.seen, OWN)
        except RemoteObjectMissing:
            return store_key.create(self.bucket, self.seen, [OWN])

    @property
    def seal(self):
        return self.key.seal

    @property
    def sessions(self) -> Sessions:
        return Sessions(self.bucket, self.seal, self.seen)

    def uploader(self, **options) -> Uploader:
        options = {"pack_bytes": PACK_BYTES} | options
        return Uploader(
            self.bucket,
            self.key,
            self.seen,
            state=self.folder / "state",
            machine_id=self.machine_id,
            **options,
        )

    def save(self, snapshot_id: str, *chunks: bytes) -> None:
        """Make a snapshot of these chunks."""
        with self.store.writer() as writer:
            for chunk in chunks:
                codec, payload = Compressor().compress(memoryview(chunk))
                writer.append_all([Record(digest_of(chunk), payload, len(chunk), codec)])
        self.store.publish(manifest(snapshot_id, *chunks))

    def upload(self, snapshot_id: str, **options):
        return self.uploader(**options).upload(self.store, snapshot_id, FACTS)

    def fetch(self, snapshot_id: str, session_id: str = FACTS.session_id):
        session = self.sessions.get(session_id)
        [one] = [one for one in session.listed if one.snapshot_id == snapshot_id]
        return fetch(self.bucket, self.seal, one, self.store)

    def close(self) -> None:
        self.store.close()


def mark_deleted(sessions: Sessions, session_id: str, snapshot_id: str, now: float) -> None:
    """Delete a snapshot in a remote session, as the machine that uploaded it does when its user deletes it."""
    for one in sessions.get(session_id).listed:
        if one.snapshot_id == snapshot_id:
            wanted = {snapshot_id: Deletion()}
            delete(sessions, session_id, wanted, one.machine_id, now=now, fenced=False)


def chunks(seed: int, count: int = 20, length: int = 20_000) -> list[bytes]:
    """Chunks that are the same for the same seed; every third compresses."""
    chance = random.Random(seed)
    return [
        chance.randbytes(50) * (length // 50) if number % 3 == 0 else chance.randbytes(length)
        for number in range(count)
    ]
