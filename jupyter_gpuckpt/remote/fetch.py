"""The fetch of a snapshot from a remote into the local store. It reads only missing chunks, in large ranges, and checks every digest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from typing import Self

import numpy as np

from ..errors import RemoteObjectMissing, StoreError, StoreFull
from ..store import manifests
from ..store.local import LocalStore
from ..store.writer import PackWriter
from ..wire.manifest_records import Manifest, SnapshotInfo
from ..wire.snapshot_records import SnapshotChange, SnapshotChangeKind
from . import remote_manifests, remote_packs
from .buckets import Bucket
from .checking import Checkers, CheckingThreads, OpenPack, Span, open_packs, payload_bytes, spans
from .remote_manifests import RemoteManifest
from .remote_sessions import RemoteSnapshot
from .sealing import Seal, invalid

_READERS = 8


def fetch(
    bucket: Bucket,
    seal: Seal,
    snapshot: RemoteSnapshot,
    store: LocalStore,
    progress: Callable[[int, int], None] = lambda done, total: None,
    checkers: Callable[[int], Checkers] = lambda stored_bytes: CheckingThreads(),
) -> SnapshotInfo:
    """Fetch a snapshot into the local store, which lists it as a whole snapshot when this returns.

    `progress` is called with the bytes fetched and the bytes in all. `checkers` returns the checkers for about so many bytes of
    packs. Raises SnapshotExists, RemoteObjectInvalid, RemoteObjectMissing, FormatTooNew, StoreFull, StoreUnavailable, AccessDenied,
    OperationCancelled; then the local store lists the same as before.
    """
    remote = remote_manifest(bucket, seal, snapshot)
    is_stub = store.stubs.find(remote.snapshot_id) is not None
    require_wanted(store, remote.snapshot_id)
    # A stub has its manifest here; it names the chunks to fetch.
    manifest = store.manifest(remote.snapshot_id) if is_stub else remote.manifest()
    digests = manifests.references(manifest)
    store.pack_checks.look()
    with store.writer() as writer:
        _fetch_missing(bucket, seal, snapshot, remote, digests, store, writer, progress, checkers)
        writer.finish()
        if is_stub:
            _end_stub(store, remote.snapshot_id, digests)
        else:
            store.publish(manifest)
    with suppress(StoreError):  # without a time of use it would be the first to become a stub again
        store.stubs.note_use(remote.snapshot_id)
    return manifest.info


def is_made_whole(store: LocalStore, snapshot_id: str) -> bool:
    """Turn a stub whose chunks are all here into a whole snapshot; return whether it was one."""
    digests = manifests.references(store.manifest(snapshot_id))
    store.pack_checks.look()
    with store.writer() as writer:
        if not writer.known(digests).keys() >= digests:
            return False
        writer.finish()
        _end_stub(store, snapshot_id, digests)
    return True


def _end_stub(store: LocalStore, snapshot_id: str, digests: set[bytes]) -> None:
    store.locate(digests)
    info = store.stubs.end(snapshot_id)
    store.on_change(SnapshotChange(info.snapshot_id, info.kernel_id, SnapshotChangeKind.CHANGED))


def repair(bucket: Bucket, seal: Seal, snapshot: RemoteSnapshot, store: LocalStore) -> None:
    """Fetch the chunks of a snapshot in the local store that are missing there or damaged. Raises as `fetch` does."""
    remote = remote_manifest(bucket, seal, snapshot)
    digests = manifests.references(store.manifest(remote.snapshot_id))
    store.pack_checks.look()
    with store.writer() as writer:
        _fetch_missing(bucket, seal, snapshot, remote, digests, store, writer)
        writer.finish()
        store.damage.snapshots()  # the record protects what was fetched


def _fetch_missing(
    bucket: Bucket,
    seal: Seal,
    snapshot: RemoteSnapshot,
    remote: RemoteManifest,
    digests: set[bytes],
    store: LocalStore,
    writer: PackWriter,
    progress: Callable[[int, int], None] = lambda done, total: None,
    checkers: Callable[[int], Checkers] = lambda stored_bytes: CheckingThreads(),
) -> None:
    """Fetch those of the chunks that the store lacks. Raises as `fetch` does."""
    known = writer.known(digests)
    refs = [] if known.keys() >= digests else remote.packs
    missing = 1 - len(known) / max(1, len(digests))
    with (
        checkers(int(missing * sum(ref.length for ref in refs))) as checking,
        _Fetching(bucket, writer, checking, progress) as fetching,
    ):
        # If all of the packs fit on the disk, chunks are read while other packs are opened.
        begins_early = sum(ref.length for ref in refs) <= store.free_bytes()
        packs = open_packs(bucket, seal, refs, fetching.reading)
        wanted = {seal.remote_id(digest): digest for digest in digests if digest not in known}
        for pack in packs:
            fetching.add(_spans(pack, wanted), begin=begins_early)
        if wanted:
            raise invalid(
                snapshot.manifest, f"{len(wanted)} of its chunks are in none of its packs"
            )
        if not begins_early and fetching.total > store.free_bytes():
            raise StoreFull(
                f"The disk is too full: the snapshot needs {fetching.total:,} bytes, and {store.free_bytes():,} are free.",
                hint="Delete snapshots that are no longer needed, or put the store on a larger disk.",
            )
        fetching.run()


def require_wanted(store: LocalStore, snapshot_id: str) -> None:
    """Raise SnapshotExists if the store has the whole snapshot, or keeps it although it was deleted; a stub does not count."""
    if store.stubs.find(snapshot_id) is None:
        store.require_absent(snapshot_id)


def remote_manifest(bucket: Bucket, seal: Seal, snapshot: RemoteSnapshot) -> RemoteManifest:
    """Return the manifest that a remote session names. Raises RemoteObjectInvalid, RemoteObjectMissing, FormatTooNew."""
    try:
        remote = remote_manifests.read(bucket, seal, snapshot.manifest, snapshot.digest)
    except RemoteObjectMissing as error:
        raise RemoteObjectMissing(
            str(error),
            hint="The snapshot was deleted from the remote, by a user or by `remote prune`. List its snapshots again.",
        ) from error
    if remote.snapshot_id != snapshot.snapshot_id:
        raise invalid(snapshot.manifest, "it belongs to another snapshot")
    return remote


def require_whole(bucket: Bucket, seal: Seal, snapshot: RemoteSnapshot, manifest: Manifest) -> None:
    """Raise an error unless the remote has all packs of a snapshot whose local manifest is `manifest`. No pack is read.

    Raises RemoteObjectInvalid, RemoteObjectMissing, FormatTooNew, StoreUnavailable, AccessDenied.
    """
    remote = remote_manifest(bucket, seal, snapshot)
    if manifests.references(remote.manifest()) != manifests.references(manifest):
        raise invalid(snapshot.manifest, "it names other chunks than the local snapshot")
    gone = remote_packs.gone(bucket, remote.packs)
    for ref in remote.packs:
        if ref.name in gone:
            raise invalid(ref.name, "the object is missing or has another length")


def _spans(pack: OpenPack, wanted: dict[bytes, bytes]) -> Iterator[Span]:
    """Return the reads that fetch the wanted chunks of a pack, and remove these chunks from `wanted`."""
    chosen, digests = [], []
    for number, one in enumerate(pack.rows["id"].tolist()):
        if (digest := wanted.pop(bytes(one), None)) is not None:
            chosen.append(number)
            digests.append(digest)
    rows = pack.rows[chosen]
    order = np.argsort(rows["offset"])
    return spans(pack, rows[order], [digests[number] for number in order.tolist()])


class _Fetching:
    """One fetch: it reads spans, several at a time, and appends their chunks to the local store. The first error ends all reading."""

    def __init__(
        self,
        bucket: Bucket,
        writer: PackWriter,
        checkers: Checkers,
        progress: Callable[[int, int], None],
    ) -> None:
        self._bucket, self._writer, self._checkers = bucket, writer, checkers
        self._progress, self._lock = progress, threading.Lock()
        self._pool = ThreadPoolExecutor(_READERS + checkers.elsewhere, "fetch")
        self._turns = threading.Semaphore(_READERS)
        self._error: BaseException | None = None
        self._waiting: list[Span] = []
        self._running: list[Future[None]] = []
        self._is_total_known = False
        self._done = 0
        #: The stored bytes of all chunks that were added.
        self.total = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._error = self._error or error
        self._pool.shutdown(cancel_futures=True)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read from the remote inside the block. Raises the first error of this fetch if it has failed: then nothing more is read."""
        if self._error is not None:
            raise self._error
        with self._noting_error():
            yield

    def add(self, spans: Iterable[Span], *, begin: bool) -> None:
        """Add spans, and begin with them at once, or in `run`."""
        for span in spans:
            self.total += payload_bytes(span.rows)
            self._waiting.append(span)
        if begin:
            self._begin()

    def run(self) -> None:
        """Read and store all spans. Raises the first error."""
        with self._lock:
            self._is_total_known = True
            self._progress(self._done, self.total)
        self._begin()
        wait(self._running, return_when=FIRST_EXCEPTION)
        self._pool.shutdown(cancel_futures=True)
        if self._error is not None:
            raise self._error

    def _begin(self) -> None:
        self._running += [self._pool.submit(self._fetch_span, span) for span in self._waiting]
        self._waiting.clear()

    @contextmanager
    def _noting_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            raise

    def _fetch_span(self, span: Span) -> None:
        with self._noting_error():
            # The error is noted before the next thread has its turn.
            with self._turns, self.reading():
                data = self._bucket.get_range(span.pack.ref.name, span.start, span.end)
            if len(data) != span.end - span.start:
                raise invalid(span.pack.ref.name, "it is truncated")
            with closing(self._checkers.checked(span, data)) as checked:
                for records in checked:
                    self._writer.append_all(records)
            with self._lock:
                self._done += payload_bytes(span.rows)
                if self._is_total_known:
                    self._progress(self._done, self.total)
