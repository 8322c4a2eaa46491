"""Uploads and fetches beside obstore's own parallel put and get of the same objects, the cipher's share, and a large remote store.

The object store is SeaweedFS on this machine: it shares the processors with what is measured. An upload sends each pack in one
request, because only that can be create-only. It compares each chunk, unpacked, with its digest, and so does a fetch.
GPUCKPT_BENCH_CHUNKS names other sizes of the large remote store, whose chunks are short, and all else is as large as it would be.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import msgspec
import numpy as np
from obstore.store import S3Store

from jupyter_gpuckpt.daemon.remotes import sending
from jupyter_gpuckpt.daemon.remotes.upload_worker import Source
from jupyter_gpuckpt.errors import error_from
from jupyter_gpuckpt.images import worker_processes
from jupyter_gpuckpt.images.compression import Compressor
from jupyter_gpuckpt.linux.control_groups import processors
from jupyter_gpuckpt.linux.fresh_memory import Scratch, ThreadScratch
from jupyter_gpuckpt.remote import (
    index_objects,
    pack_refs,
    remote_manifests,
    store_key,
)
from jupyter_gpuckpt.remote.buckets import Bucket, open_bucket
from jupyter_gpuckpt.remote.check_client import CheckingProcesses, checkers
from jupyter_gpuckpt.remote.collector import collect
from jupyter_gpuckpt.remote.fetch import fetch
from jupyter_gpuckpt.remote.pack_refs import PackRef, PackRows
from jupyter_gpuckpt.remote.remote_manifests import RemoteManifest
from jupyter_gpuckpt.remote.remote_packs import NewPack, RemoteChunk, RemotePack
from jupyter_gpuckpt.remote.remote_sessions import Facts, RemoteSession, RemoteSnapshot, Sessions
from jupyter_gpuckpt.remote.sealing import TAG_BYTES, Seal
from jupyter_gpuckpt.remote.seen import Seen
from jupyter_gpuckpt.remote.store_key import Secret
from jupyter_gpuckpt.remote.upload import Uploader
from jupyter_gpuckpt.store import manifests
from jupyter_gpuckpt.store.codecs import digest_of
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.packs import Entry
from jupyter_gpuckpt.store.writer import Record
from jupyter_gpuckpt.wire.manifest_records import Chunk, Manifest
from jupyter_gpuckpt.wire.remote_records import EntryKind, Remote
from tests.remote import servers
from tests.remote.stores import mark_deleted

from . import large_store
from .engine_kernel import scratch
from .measured import Row, ratios
from .room import GB, scaled

#: So many, because the disk is idle only in the first rounds of a kind of data: the median is to be that of a busy disk.
ROUNDS = 7
#: Bytes of a chunk, as they are on average.
CHUNK_BYTES = 274_000
#: How many times as long an upload or a fetch may take as obstore alone, and a sealed upload as one in the clear.
BUDGET, CIPHER_BUDGET = 1.3, 1.15
SIZES = [int(size) for size in os.environ.get("GPUCKPT_BENCH_CHUNKS", "100000,1000000").split(",")]
#: As many requests at a time as uploads and fetches make.
_AT_A_TIME = 8
#: A remote store has so many index objects at most.
_INDEXES = index_objects.MAX_INDEXES
_CHUNKS_PER_PACK = pack_refs.PACK_BYTES // CHUNK_BYTES
#: The size at which the server begins another volume: a write waits about a second for a new one, and by default it has 1 GB.
_VOLUME_MB = 8000
#: The most volumes; by default as many as fit on the disk if all were full, which are too few of this size.
_VOLUMES = 50
_SECRET = Secret(EntryKind.FILE, b"b" * 32)
_SESSION = "session"


def run() -> Iterator[Row]:
    """Each kind of data, then each size."""
    size = int(scaled(0.25, max_gb=1, memory=3, disk=12) * GB)
    with mock.patch.dict(os.environ, servers.s3_variables()):
        for kind in ("random", "compressible"):
            with _serving() as (url, place):
                yield from _transfers(url, place, kind, size)
                if kind == "random":
                    yield _cipher(url, place / "made", place / "cipher")
        with _serving() as (url, place):
            by_size: list[list[Row]] = [[] for _ in SIZES]
            for count, rows in zip(SIZES, by_size, strict=True):
                for row in _large(url, place / f"large-{count}", count):
                    rows.append(row)
                    yield row
            yield from _slopes(*by_size)


@contextmanager
def _serving() -> Iterator[tuple[str, Path]]:
    """Run an object store; yield its URL and a folder.

    What the block writes is removed, so that the disk does not write it later.
    """
    with scratch() as place:
        (place / "weed").mkdir()
        server = servers.SeaweedFS(place / "weed")
        server.words += [f"-master.volumeSizeLimitMB={_VOLUME_MB}", f"-volume.max={_VOLUMES}"]
        with server.running() as url:
            _plain(url).put("first", os.urandom(CHUNK_BYTES))  # the first volume
            yield url, place


class _Remote:
    """A remote of its own, and what a machine knows of it."""

    def __init__(self, url: str, prefix: str, folder: Path) -> None:
        self.bucket = open_bucket(servers.s3_remote(url, prefix))
        self.folder = folder
        self.seen = Seen(folder / "seen.json")
        self.key = store_key.create(self.bucket, self.seen, [_SECRET])
        self.seal = self.key.seal
        self.sessions = Sessions(self.bucket, self.seal, self.seen)

    def upload(self, store: LocalStore, snapshot_id: str) -> RemoteSnapshot:
        uploader = Uploader(
            self.bucket, self.key, self.seen, state=self.folder / "state", machine_id="here"
        )
        source = _source(store, snapshot_id)
        return uploader.upload(source, snapshot_id, Facts(_SESSION)).snapshot


class _OpenStore:
    """The open store of a daemon, without the socket between it and the process that uploads."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def ask(self, question: sending.Locate | sending.Read) -> sending.Located | sending.Chunk:
        answer = sending.answer(self._store, question)
        if isinstance(answer, sending.Refused):
            raise error_from(answer.error)
        return answer

    def wait_while_held(self) -> None:
        """Go on: nothing else runs."""


def _source(store: LocalStore, snapshot_id: str) -> Source:
    """Return the snapshot as the process reads it that uploads."""
    info, content = store.manifest(snapshot_id).info, store.manifest_file(snapshot_id)
    task = sending.Task("", Remote("b", "file:///b"), Facts(_SESSION), info, content)
    return Source(_OpenStore(store), task)


def _transfers(url: str, place: Path, kind: str, size: int) -> Iterator[Row]:
    """Rows of one kind of data: upload and fetch, each beside obstore in the same round."""
    stored = _make_store(place / "made", kind, size // CHUNK_BYTES)
    seconds = defaultdict[str, list[float]](list)
    plain = _plain(url)
    worker_processes.warm_up(size, processors())  # long before the first fetch
    with LocalStore(place / "made") as store:
        for number in range(ROUNDS):
            remote = _Remote(url, f"{kind}-{number}", place / f"remote-{number}")
            with _timed(seconds["upload"]):
                snapshot = remote.upload(store, "s1")
            with mock.patch.object(Seal, "_key", return_value=_InTheClear()):
                clear = _Remote(url, f"{kind}-{number}-clear", place / f"clear-{number}")
                with _timed(seconds["upload in the clear"]):
                    clear.upload(store, "s1")
            manifest = remote_manifests.read(remote.bucket, remote.seal, snapshot.manifest)
            names = [ref.name for ref in manifest.packs]
            packs = [remote.bucket.get(name).data for name in names]
            keys = [f"plain-{kind}-{number}/{name}" for name in names]
            create = partial(plain.put, mode="create", use_multipart=False)
            _timed_calls(seconds["put"], create, keys, packs)
            others = [f"parts/{key}" for key in keys]
            _timed_calls(seconds["put in parts"], plain.put, others, packs)
            del packs
            _timed_calls(seconds["get"], lambda key: plain.get(key).bytes(), keys)
            with TemporaryDirectory(dir=place) as files:
                get = partial(_get_into_file, plain, Path(files))
                _timed_calls(seconds["get into files"], get, keys)
            ways = {"fetch": worker_processes._fork_server}
            if isinstance(checkers(stored), CheckingProcesses):
                ways["first fetch"] = worker_processes._ForkServer()
            # In turns, because what a fetch leaves in memory and on the disk can delay the next one.
            for way in sorted(ways, reverse=number % 2 == 0):
                with mock.patch.object(worker_processes, "_fork_server", ways[way]):
                    _fetch(remote, snapshot, place, seconds[way])
    facts = {"of": f"{size / 1e6:.0f} MB, {stored / 1e6:.0f} MB stored, {len(names)} packs"}
    yield Row(f"{kind}: upload", seconds["upload"], facts=facts)
    yield Row("    obstore's own put of these packs, create-only as well", seconds["put"])
    yield Row("    ratio", ratios(seconds["upload"], seconds["put"]), "x", BUDGET)
    yield Row("    obstore's own put in parts, which overwrites", seconds["put in parts"])
    held = CIPHER_BUDGET if kind == "compressible" else None
    found = ratios(seconds["upload"], seconds["upload in the clear"])
    yield Row("    an upload beside one without a cipher", found, "x", held)
    yield Row(f"{kind}: fetch into an empty store", seconds["fetch"])
    yield Row("    obstore's own get of these packs into files", seconds["get into files"])
    yield Row("    ratio", ratios(seconds["fetch"], seconds["get into files"]), "x", BUDGET)
    if first := seconds["first fetch"]:
        yield Row("    the first fetch of a daemon, which starts its fork server", first)
        yield Row("    ratio", ratios(first, seconds["get into files"]), "x")
    yield Row("    obstore's own get of these packs into memory", seconds["get"])


def _fetch(remote: _Remote, snapshot: RemoteSnapshot, place: Path, seconds: list[float]) -> None:
    """Fetch a snapshot into an empty store, as a daemon does; add the time that this takes to `seconds`."""
    with TemporaryDirectory(dir=place) as folder, LocalStore(Path(folder)) as store:
        with _timed(seconds):
            worker_processes.warm_up(snapshot.raw_bytes, processors())
            fetch(remote.bucket, remote.seal, snapshot, store, checkers=checkers)
        store.verify("s1")


def _plain(url: str) -> S3Store:
    """Return obstore's own object for the server."""
    return S3Store(servers.BUCKET, endpoint=url, client_options={"allow_http": True})


def _get_into_file(plain: S3Store, folder: Path, key: str) -> None:
    """Get an object and keep it, as a fetch does with chunks: it is on the disk when this returns."""
    with (folder / key.rpartition("/")[2]).open("wb") as file:
        file.write(plain.get(key).bytes())
        os.fsync(file.fileno())


class _InTheClear:
    """A cipher that leaves everything as it is."""

    def encrypt(self, _nonce: bytes, data: bytes, _beside: bytes) -> bytes:
        return bytes(data) + bytes(TAG_BYTES)

    def encrypt_into(self, _nonce: bytes, data: bytes, _beside: bytes, target: memoryview) -> int:
        target[: len(data)] = data
        return len(target)

    def decrypt(self, _nonce: bytes, data: bytes, _beside: bytes) -> bytes:
        return bytes(data)[:-TAG_BYTES]


def _built(seal: Seal, chunks: Sequence[Entry], source: Source, memory: Scratch) -> RemotePack:
    """Make a pack of chunks, in one thread."""
    pack = NewPack(seal, [chunk.stored_length for chunk in chunks], memory)
    read = (RemoteChunk(seal.remote_id(one.digest), *source.read(one.digest)) for one in chunks)
    pack.fill(0, read)
    return pack.finish()


def _cipher(url: str, made: Path, place: Path) -> Row:
    """Return what making a pack of what the page cache has costs with a cipher, beside one without: nothing is sent."""
    seconds = defaultdict[str, list[float]](list)
    seal = _Remote(url, "cipher", place).seal
    with LocalStore(made) as store:
        digests, source = manifests.references(store.manifest("s1")), _source(store, "s1")
        chunks, memory = _entries(source, digests)[:_CHUNKS_PER_PACK], Scratch()
        _built(seal, chunks, source, memory)  # its memory is fresh once
        for _ in range(ROUNDS):
            with _timed(seconds["sealed"]):
                _built(seal, chunks, source, memory)
            with (
                mock.patch.object(Seal, "_key", return_value=_InTheClear()),
                _timed(seconds["clear"]),
            ):
                _built(seal, chunks, source, memory)
    facts = {"sealed": f"{statistics.median(seconds['sealed']):.3f} s"}
    found = ratios(seconds["sealed"], seconds["clear"])
    return Row("making a pack of random data, beside one without a cipher", found, "x", facts=facts)


def _large(url: str, place: Path, count: int) -> Iterator[Row]:
    """Rows of a remote store of `count` chunks: lists, an upload of what it has, a cold start, a collection."""
    large_store.make(place / "store", count)
    remote = _Remote(url, f"large-{count}", place)
    with LocalStore(place / "store") as store:
        store.sweep()
        _fill(remote, store)
        label = f"{count:,} chunks: "
        opened = store_key.open_with(remote.bucket, Seen(place / "newcomer.json"), _SECRET)
        yield _row(
            f"{label}opening by a new machine",
            remote,
            lambda: store_key.open_with(remote.bucket, Seen(place / "newcomer.json"), _SECRET),
        )
        newcomer = Sessions(remote.bucket, opened.seal, Seen(place / "newcomer.json"))
        yield _row("    list of a new machine", remote, lambda: _listed(newcomer))
        *_, last = large_store.snapshot_ids(place / "store")
        again = store.manifest(last)
        again = msgspec.structs.replace(
            again, info=msgspec.structs.replace(again.info, snapshot_id="again")
        )
        store.publish(again)
        yield _row(
            "    upload of a snapshot all of whose chunks it has",
            remote,
            lambda: remote.upload(store, "again"),
        )
        _save_new(store, again)
        yield _row(
            "    upload of a snapshot with one new chunk, with the indexes in this machine's copies",
            remote,
            lambda: remote.upload(store, "changed"),
        )
        [snapshot] = [
            one for one in remote.sessions.get(_SESSION).listed if one.snapshot_id == "again"
        ]
        with LocalStore(place / "fetched") as target:
            yield _row(
                "    cold start: fetch of the former into an empty store",
                remote,
                lambda: fetch(remote.bucket, remote.seal, snapshot, target),
            )
            target.verify("again")
        first = newcomer.ids()[0]
        for one in newcomer.get(first).listed:
            mark_deleted(remote.sessions, first, one.snapshot_id, 1.0)
        for what in ("condemns", "removes"):
            yield _row(
                f"    collection that {what} those of one session",
                remote,
                lambda: collect(remote.bucket, remote.seal, remote.seen, min_age=timedelta(0)),
            )
        assert len(_listed(remote.sessions)) == len(newcomer.ids())


def _slopes(smallest: Sequence[Row], *others: Sequence[Row]) -> Iterator[Row]:
    """Rows of how many times as long a larger remote store takes, for how many times as many chunks."""
    for some, count in zip(others, SIZES[1:], strict=True):
        times = count / SIZES[0]
        for row, before in zip(some, smallest, strict=True):
            name = row.name.partition(": ")[2] if row is some[0] else row.name.strip()
            found = ratios(row.samples, before.samples)
            yield Row(f"{times:.0f} times as many chunks: {name}", found, "x")


def _save_new(store: LocalStore, like: Manifest) -> None:
    """Save a snapshot like another one, but with one chunk of its own."""
    content = os.urandom(CHUNK_BYTES)
    codec, payload = Compressor().compress(memoryview(content))
    with store.writer() as writer:
        writer.append_all([Record(digest_of(content), payload, len(content), codec)])
        writer.finish()
        first, *streams = like.streams
        chunk = Chunk(digest_of(content), len(content))
        first = msgspec.structs.replace(
            first, chunks=[*first.chunks, chunk], length=first.length + len(content)
        )
        info = msgspec.structs.replace(like.info, snapshot_id="changed")
        store.publish(msgspec.structs.replace(like, info=info, streams=[first, *streams]))


def _listed(sessions: Sessions) -> list[RemoteSession]:
    return [sessions.get(one) for one in sessions.ids()]


def _row(name: str, remote: _Remote, work: Callable[[], object]) -> Row:
    """Do the work once; return a row with its requests."""
    seconds = list[float]()
    with (
        mock.patch.object(Bucket, "_once", autospec=True, side_effect=Bucket._once) as once,
        _timed(seconds),
    ):
        work()
    return Row(name, seconds, facts={"requests": f"{once.call_count:,}"})


def _fill(remote: _Remote, store: LocalStore) -> None:
    """Upload all snapshots of a store, each notebook into a session of its own, without a question about what is there."""
    sent: list[PackRows] = []
    pack_of: dict[bytes, PackRef] = {}
    scratch = ThreadScratch()

    def send(source: Source, chunks: Sequence[Entry]) -> PackRows:
        pack = _built(remote.seal, chunks, source, scratch.memory)
        remote.bucket.create(pack.ref.name, pack.data)
        pack_of.update(dict.fromkeys((chunk.digest for chunk in chunks), pack.ref))
        return PackRows(pack.ref, pack.rows.tobytes())

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        for info in sorted(store.snapshots(), key=lambda info: info.snapshot_id):
            digests = manifests.references(store.manifest(info.snapshot_id))
            source = _source(store, info.snapshot_id)
            fresh = _entries(source, digests - pack_of.keys())
            starts = range(0, len(fresh), _CHUNKS_PER_PACK)
            groups = (fresh[start : start + _CHUNKS_PER_PACK] for start in starts)
            sent += pool.map(partial(send, source), groups)
            refs = list({pack_of[digest].name: pack_of[digest] for digest in digests}.values())
            name = remote_manifests.new_name(info.snapshot_id)
            content = store.manifest_file(info.snapshot_id)
            made = RemoteManifest(info.snapshot_id, content, refs, info.kernel_id)
            digest = remote_manifests.write(remote.bucket, remote.seal, name, made)
            listed = RemoteSnapshot(info.snapshot_id, info.kernel_id, name, digest, info.created)
            remote.sessions.add(Facts(info.kernel_id), listed)
    for start in range(_INDEXES):
        index_objects.write(remote.bucket, remote.seal, sent[start::_INDEXES])


def _entries(store: LocalStore | Source, digests: Collection[bytes]) -> list[Entry]:
    """Return where chunks lie, as packs are made of them."""
    return [Entry(one.digest, one.offset, *one[3:]) for one in store.locate(digests)]


def _make_store(root: Path, kind: str, count: int) -> int:
    """Make a store with the snapshot `s1` of so many chunks; return their bytes as stored."""
    chance = np.random.default_rng(1)
    digests = np.empty(count, "V32")
    stored = 0
    with LocalStore(root) as store:
        with store.writer() as writer:
            for number in range(count):
                content = chance.bytes(CHUNK_BYTES)
                if kind == "compressible":  # to a third
                    content = content[: CHUNK_BYTES // 3] * 3
                codec, payload = Compressor().compress(memoryview(content))
                digests[number] = digest = digest_of(content)
                stored += writer.append_all([Record(digest, payload, len(content), codec)])
            writer.finish()
        store.publish(large_store.manifest("s1", "n.ipynb", digests, CHUNK_BYTES))
    return stored


@contextmanager
def _timed(into: list[float]) -> Iterator[None]:
    began = time.monotonic()
    yield
    into.append(time.monotonic() - began)


def _timed_calls(into: list[float], work: Callable[..., object], *given: Sequence[object]) -> None:
    """Call `work` with each of the given values, as many at a time as uploads and fetches make requests; time all of it."""
    with _timed(into), ThreadPoolExecutor(_AT_A_TIME) as pool:
        list(pool.map(work, *given))
