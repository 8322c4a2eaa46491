"""Data directories with snapshots and remotes, as a daemon finds them, and readers of what it uploaded."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jupyter_gpuckpt.daemon.remotes import remote_keys, without_daemon
from jupyter_gpuckpt.errors import error_from
from jupyter_gpuckpt.images.compression import Compressor
from jupyter_gpuckpt.remote.fetch import fetch
from jupyter_gpuckpt.remote.remote_list import Remotes
from jupyter_gpuckpt.remote.remote_sessions import RemoteSession, Sessions
from jupyter_gpuckpt.store.codecs import digest_of
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.writer import Record
from jupyter_gpuckpt.wire.remote_records import (
    GivenSecret,
    Remote,
    RemoteAnswer,
    RemoteCall,
    RemoteVerb,
)
from tests.manifests import manifest

CHUNK_BYTES = 1 << 20


def ask(
    verb: RemoteVerb,
    data_dir: Path,
    name: str,
    remote: Remote | None = None,
    secret: GivenSecret | None = None,
) -> RemoteAnswer:
    """Do what the command line asks for. Raises what it would show."""
    answer = without_daemon.answer(RemoteCall(verb, str(data_dir), name, remote, secret))
    if answer.error:
        raise error_from(answer.error)
    return answer


def add_remote(data_dir: Path, name: str, url: str, **fields) -> Remote:
    """Create a remote with a new store, and return it."""
    remote = Remote(name, url, **fields)
    return ask(RemoteVerb.CREATE, data_dir, name, remote).remotes[0].remote


def some_chunks(seed: int, count: int) -> list[bytes]:
    """Return chunks that do not compress, the same for the same seed."""
    chance = random.Random(seed)
    return [chance.randbytes(CHUNK_BYTES) for _ in range(count)]


def save(store: LocalStore, snapshot_id: str, *chunks: bytes, created: float = 1.0) -> None:
    """Make a snapshot of these chunks, of a kernel of its own."""
    with store.writer() as writer:
        for chunk in chunks:
            codec, payload = Compressor().compress(memoryview(chunk))
            writer.append_all([Record(digest_of(chunk), payload, len(chunk), codec)])
    store.publish(manifest(snapshot_id, *chunks, kernel_id=f"of-{snapshot_id}", created=created))


@contextmanager
def store_of(data_dir: Path) -> Iterator[LocalStore]:
    """Open the store that a daemon will have."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with LocalStore(data_dir / "store") as store:
        yield store


class Reader:
    """Reader of a remote, with the key of an installation, into a store of its own."""

    def __init__(self, data_dir: Path, name: str) -> None:
        opened = remote_keys.opened(data_dir, Remotes(data_dir).get(name))
        self.bucket, self.seal = opened.bucket, opened.key.seal
        self.sessions = Sessions(opened.bucket, opened.key.seal, opened.seen)

    def listed(self) -> dict[str, RemoteSession]:
        """Return the remote sessions, by the snapshots that they list."""
        found = map(self.sessions.get, self.sessions.ids())
        return {one.snapshot_id: session for session in found for one in session.listed}

    def fetch_all(self) -> dict[str, list[bytes]]:
        """Fetch every snapshot into an empty store; return the bytes of each that are not zeros, in order."""
        return dict(self.fetch_each())

    def fetch_each(self) -> Iterator[tuple[str, list[bytes]]]:
        """Yield the same, one after the other."""
        with (
            tempfile.TemporaryDirectory(prefix="gpuckpt-") as folder,
            LocalStore(Path(folder) / "store") as store,
        ):
            for snapshot_id, session in self.listed().items():
                [one] = [one for one in session.listed if one.snapshot_id == snapshot_id]
                fetch(self.bucket, self.seal, one, store)
                yield snapshot_id, content_of(store, snapshot_id)


def content_of(store: LocalStore, snapshot_id: str) -> list[bytes]:
    """Return the bytes of a snapshot that are not zeros, in order; each is compared with its digest."""
    return [
        store.load(part.digest)[part.start : part.start + part.length]
        for stream in store.manifest(snapshot_id).streams
        for chunk in stream.chunks
        for part in chunk.stored()
    ]
