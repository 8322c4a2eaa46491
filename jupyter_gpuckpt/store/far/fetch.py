"""The fetch of a snapshot from a remote into the local store. It reads only missing chunks, in large ranges, and checks every digest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import FarObjectMissing, StoreError, StoreFull
from ...model import Manifest, SnapshotInfo
from ...snapshot_records import SnapshotChange, SnapshotChangeKind
from .. import manifests, packs
from ..codecs import CodecError, UnknownCodecError, digest_of_stored
from ..local import LocalStore
from ..scratch import ThreadScratch
from ..writer import PackWriter, Record
from . import far_manifests, far_packs
from .buckets import Bucket
from .far_manifests import FarManifest
from .far_packs import FarChunk, Rows
from .pack_refs import PackRef
from .sealing import HEADER_BYTES, Seal, invalid
from .sessions import FarSnapshot

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_READERS = 8
#: The most threads that check chunks at a time.
_MAX_CHECKERS = 4
#: The most bytes of one read, and the largest gap between chunks that is read with them and discarded.
RUN_BYTES, GAP_BYTES = 8 << 20, 256 << 10


class OpenPack(NamedTuple):
    """A pack with its key and its rows."""

    ref: PackRef
    key: AESGCM
    rows: Rows


class _Run(NamedTuple):
    """Chunks of a pack that one request reads; `rows` in the order of their offsets."""

    pack: OpenPack
    rows: Rows
    start: int
    end: int


def fetch(
    bucket: Bucket,
    seal: Seal,
    snapshot: FarSnapshot,
    store: LocalStore,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SnapshotInfo:
    """Fetch a snapshot into the local store, which lists it as a whole snapshot when this returns.

    `progress` is called with the bytes fetched and the bytes in all. Raises SnapshotExists, FarObjectInvalid, FarObjectMissing,
    FormatTooNew, StoreFull, StoreUnavailable, AccessDenied, OperationCancelled; then the local store lists the same as before.
    """
    far = far_manifest(bucket, seal, snapshot)
    is_stub = store.stubs.find(far.snapshot_id) is not None
    require_wanted(store, far.snapshot_id)
    # A stub has its manifest here; it names the chunks to fetch.
    manifest = store.manifest(far.snapshot_id) if is_stub else far.manifest()
    digests = manifests.references(manifest)
    with store.writer() as writer:
        known = writer.known(digests)
        wanted = {seal.far_id(digest): digest for digest in digests if digest not in known}
        runs = list(_runs(open_packs(bucket, seal, far.packs if wanted else []), wanted))
        missing = len(wanted) - sum(len(run.rows) for run in runs)
        if missing:
            raise invalid(snapshot.manifest, f"{missing} of its chunks are in none of its packs")
        needed = sum(int(run.rows["stored_length"].sum()) for run in runs)
        if needed > store.free_bytes():
            raise StoreFull(
                f"The snapshot needs {needed:,} bytes, and {store.free_bytes():,} are free.",
                hint="Delete snapshots that are no longer needed, or put the store on a larger disk.",
            )
        progress(0, needed)
        _Fetching(bucket, writer, wanted, needed, progress).run(runs)
        writer.finish()
        if is_stub:
            store.locate(digests)
            info = store.stubs.end(far.snapshot_id)
            store.on_change(
                SnapshotChange(info.snapshot_id, info.kernel_id, SnapshotChangeKind.CHANGED)
            )
        else:
            store.publish(manifest)
    with suppress(StoreError):  # without a time of use it would be the first to become a stub again
        store.stubs.note_use(far.snapshot_id)
    return manifest.info


def require_wanted(store: LocalStore, snapshot_id: str) -> None:
    """Raise SnapshotExists if the store has the whole snapshot, or keeps it although it was deleted; a stub does not count."""
    if store.stubs.find(snapshot_id) is None:
        store.require_absent(snapshot_id)


def far_manifest(bucket: Bucket, seal: Seal, snapshot: FarSnapshot) -> FarManifest:
    """Return the manifest that a far session names. Raises FarObjectInvalid, FarObjectMissing, FormatTooNew."""
    try:
        far = far_manifests.read(bucket, seal, snapshot.manifest, snapshot.digest)
    except FarObjectMissing as error:
        raise FarObjectMissing(
            str(error),
            hint="Somebody has deleted the snapshot from the remote, or the remote's rule has removed it. List its snapshots again.",
        ) from error
    if far.snapshot_id != snapshot.snapshot_id:
        raise invalid(snapshot.manifest, "it belongs to another snapshot")
    return far


def require_whole(bucket: Bucket, seal: Seal, snapshot: FarSnapshot, manifest: Manifest) -> None:
    """Raise an error unless the remote has all packs of a snapshot whose local manifest is `manifest`. No pack is read.

    Raises FarObjectInvalid, FarObjectMissing, FormatTooNew, StoreUnavailable, AccessDenied.
    """
    far = far_manifest(bucket, seal, snapshot)
    if manifests.references(far.manifest()) != manifests.references(manifest):
        raise invalid(snapshot.manifest, "it names other chunks than the local snapshot")
    gone = far_packs.gone(bucket, far.packs)
    for ref in far.packs:
        if ref.name in gone:
            raise invalid(ref.name, "the object is missing or has another length")


def open_packs(bucket: Bucket, seal: Seal, refs: Sequence[PackRef]) -> list[OpenPack]:
    """Read the rows of packs. Raises FarObjectInvalid, FarObjectMissing, FormatTooNew."""

    def look(ref: PackRef) -> OpenPack:
        header = bytes(bucket.get_range(ref.name, 0, HEADER_BYTES))
        end = bytes(bucket.get_range(ref.name, ref.length - ref.index_length, ref.length))
        rows = far_packs.rows_of(seal, ref, header, end)
        return OpenPack(ref, seal.key_of(ref.name, header), rows)

    with ThreadPoolExecutor(_READERS, "look") as pool:
        return list(pool.map(look, refs))


def _runs(found: Sequence[OpenPack], wanted: dict[bytes, bytes]) -> Iterator[_Run]:
    """Yield the reads that fetch each wanted chunk once."""
    left = set(wanted)
    for pack in found:
        chosen = []
        for number, one in enumerate(pack.rows["id"].tolist()):
            if (far_id := bytes(one)) in left:
                left.discard(far_id)
                chosen.append(number)
        rows = pack.rows[chosen]
        rows = rows[np.argsort(rows["offset"])]
        starts, ends = (some.tolist() for some in far_packs.bounds(rows))
        first = 0
        for number in range(1, len(rows) + 1):
            if (
                number < len(rows)
                and starts[number] - ends[number - 1] <= GAP_BYTES
                and ends[number] - starts[first] <= RUN_BYTES
            ):
                continue
            yield _Run(pack, rows[first:number], starts[first], ends[number - 1])
            first = number


class _Fetching:
    """One fetch: it reads runs, several at a time, and appends their chunks to the local store."""

    def __init__(
        self,
        bucket: Bucket,
        writer: PackWriter,
        wanted: dict[bytes, bytes],
        total: int,
        progress: Callable[[int, int], None],
    ) -> None:
        self._bucket, self._writer, self._wanted = bucket, writer, wanted
        self._total, self._progress = total, progress
        self._done, self._lock = 0, threading.Lock()
        #: More threads that check chunks hinder each other, because a part of the work on each chunk holds the GIL.
        self._checking = threading.Semaphore(far_packs.workers(2, _MAX_CHECKERS))
        self._decrypted = ThreadScratch()

    def run(self, runs: Sequence[_Run]) -> None:
        """Read and store all runs. Raises the first error."""
        with ThreadPoolExecutor(_READERS, "fetch") as pool:
            running: list[Future[None]] = [pool.submit(self._fetch_run, run) for run in runs]
            _, unfinished = wait(running, return_when=FIRST_EXCEPTION)
            for one in unfinished:
                one.cancel()
        for one in running:
            if not one.cancelled():
                one.result()

    def _fetch_run(self, run: _Run) -> None:
        name, length = run.pack.ref.name, int(run.rows["stored_length"].sum())
        data = self._bucket.get_range(name, run.start, run.end)
        if len(data) != run.end - run.start:
            raise invalid(name, "it is truncated")
        with self._checking:
            room = self._decrypted.memory.get(length)
            chunks = far_packs.open_chunks(name, run.pack.key, run.rows, data, run.start, room)
            records = [self._record(name, chunk) for chunk in chunks]
        self._writer.append_all(records)
        with self._lock:
            self._done += length
            self._progress(self._done, self._total)

    def _record(self, name: str, chunk: FarChunk) -> Record:
        digest = self._wanted[chunk.far_id]
        try:
            intact = digest_of_stored(chunk.codec, chunk.payload, chunk.raw_length) == digest
        except UnknownCodecError as error:
            raise packs.chunk_too_new(digest, chunk.codec) from error
        except CodecError:
            intact = False
        if not intact:
            raise invalid(name, f"chunk {digest.hex()[:16]} does not match its digest")
        return Record(digest, chunk.payload, chunk.raw_length, chunk.codec)
