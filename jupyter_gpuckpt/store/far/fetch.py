"""Fetching a snapshot from a remote into a local store: only what is not there, in large reads, every chunk compared with its digest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import StoreFull
from ...model import SnapshotInfo
from .. import manifests, packs
from ..codecs import CodecError, UnknownCodecError, decompress, digest_of
from ..local import LocalStore
from ..writer import PackWriter, Record
from . import far_manifests, far_packs
from .buckets import Bucket
from .far_manifests import FarManifest
from .far_packs import PackRef, Rows
from .sealing import HEADER_BYTES, Seal, invalid
from .sessions import FarSnapshot

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_READERS = 8
#: One read: what lies closer than the gap is read with it and thrown away.
RUN_BYTES, GAP_BYTES = 8 << 20, 256 << 10


class _Pack(NamedTuple):
    ref: PackRef
    key: AESGCM
    rows: Rows


class _Run(NamedTuple):
    """Chunks of a pack that are read at once; `rows` in the order of their offsets."""

    pack: _Pack
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
    """Bring a snapshot into the local store; it is listed there when this returns. `progress`: bytes done and in all.

    Raises SnapshotExists, FarObjectInvalid, FarObjectMissing, FormatTooNew, StoreFull, StoreUnavailable, AccessDenied,
    OperationCancelled; then the store lists what it did before.
    """
    far = far_manifest(bucket, seal, snapshot)
    manifest = far.manifest()
    store.require_absent(far.snapshot_id)
    digests = manifests.references(manifest)
    with store.writer() as writer:
        known = writer.known(digests)
        wanted = {seal.far_id(digest): digest for digest in digests if digest not in known}
        runs = list(_runs(_packs(bucket, seal, far.packs if wanted else []), wanted))
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
        store.publish(manifest)
    return manifest.info


def far_manifest(bucket: Bucket, seal: Seal, snapshot: FarSnapshot) -> FarManifest:
    """Return the manifest that a far session names. Raises FarObjectInvalid, FarObjectMissing, FormatTooNew."""
    far = far_manifests.read(bucket, seal, snapshot.manifest, snapshot.digest)
    if far.snapshot_id != snapshot.snapshot_id:
        raise invalid(snapshot.manifest, "it is that of another snapshot")
    return far


def _packs(bucket: Bucket, seal: Seal, refs: Sequence[PackRef]) -> list[_Pack]:
    """Ask packs what lies in them."""

    def look(ref: PackRef) -> _Pack:
        header = bucket.get_range(ref.name, 0, HEADER_BYTES)
        end = bucket.get_range(ref.name, ref.length - ref.index_length, ref.length)
        rows = far_packs.rows_of(seal, ref, header, end)
        return _Pack(ref, seal.key_of(ref.name, header), rows)

    with ThreadPoolExecutor(_READERS, "look") as pool:
        return list(pool.map(look, refs))


def _runs(found: Sequence[_Pack], wanted: dict[bytes, bytes]) -> Iterator[_Run]:
    """Yield what to read, each chunk once."""
    left = set(wanted)
    for pack in found:
        chosen = []
        for number, one in enumerate(pack.rows["id"].tolist()):
            if (far_id := bytes(one)) in left:
                left.discard(far_id)
                chosen.append(number)
        rows = np.sort(pack.rows[chosen], order="offset")
        first = 0
        for number in range(1, len(rows) + 1):
            start, _ = far_packs.record_bounds(rows[first])
            _, end = far_packs.record_bounds(rows[number - 1])
            if number < len(rows):
                following, its_end = far_packs.record_bounds(rows[number])
                if following - end <= GAP_BYTES and its_end - start <= RUN_BYTES:
                    continue
            yield _Run(pack, rows[first:number], start, end)
            first = number


class _Fetching:
    """Reads runs, many at a time, and stores what is in them."""

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

    def run(self, runs: Sequence[_Run]) -> None:
        """Do all of it. Raises the first error."""
        with ThreadPoolExecutor(_READERS, "fetch") as pool:
            running: list[Future[None]] = [pool.submit(self._one, run) for run in runs]
            _, unfinished = wait(running, return_when=FIRST_EXCEPTION)
            for one in unfinished:
                one.cancel()
        for one in running:
            if not one.cancelled():
                one.result()

    def _one(self, run: _Run) -> None:
        data = self._bucket.get_range(run.pack.ref.name, run.start, run.end)
        if len(data) != run.end - run.start:
            raise invalid(run.pack.ref.name, "it is truncated")
        self._writer.append_all([self._record(run, row, data) for row in run.rows])
        with self._lock:
            self._done += int(run.rows["stored_length"].sum())
            self._progress(self._done, self._total)

    def _record(self, run: _Run, row: np.void, data: bytes) -> Record:
        start, end = far_packs.record_bounds(row)
        record = data[start - run.start : end - run.start]
        chunk = far_packs.open_chunk(run.pack.ref.name, run.pack.key, row, record)
        digest = self._wanted[chunk.far_id]
        try:
            intact = digest_of(decompress(chunk.codec, chunk.payload, chunk.raw_length)) == digest
        except UnknownCodecError as error:
            raise packs.chunk_too_new(digest, chunk.codec) from error
        except CodecError:
            intact = False
        if not intact:
            raise invalid(
                run.pack.ref.name, f"chunk {digest.hex()[:16]} is not what its digest says"
            )
        return Record(digest, chunk.payload, chunk.raw_length, chunk.codec)
