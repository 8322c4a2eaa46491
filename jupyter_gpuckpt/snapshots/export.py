"""Export of a snapshot as a tar archive that is a store of its own: packs with exactly its chunks, its annotations, its manifest.

    manifests/<snapshot>.annotations   first, so that a reader knows the snapshot's id at once
    packs/<time>-<random>.pack
    manifests/<snapshot>.manifest      last, as in a store: a truncated archive contains no snapshot

Unpacked into an empty directory, the archive can be used as a store. All lengths are known before the first byte is sent, no file is
written, and only one chunk at a time is in memory.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..store import annotation_files, manifests, packs
from ..store.annotation_files import Annotations
from ..store.codecs import CodecError, digest_of_stored
from ..store.local import LocalStore
from ..store.pack_streams import PackPlan
from ..store.packs import Entry
from ..store.writer import PACK_BYTES

#: The least length of a piece, which limits the overhead per piece.
_PIECE_BYTES = 1 << 20
_END = bytes(2 * tarfile.BLOCKSIZE)


class Export:
    """An archive that can be read once. `length`: its total length in bytes."""

    def __init__(self, store: LocalStore, snapshot_id: str, pack_bytes: int) -> None:
        self._store = store
        manifest = store.manifest(snapshot_id)
        info = manifest.info
        annotations = Annotations(title=info.title, note=info.note, pinned=info.pinned)
        name = f"manifests/{snapshot_id}"
        self._modified = int(info.created)
        self._first = (name + annotation_files.SUFFIX, annotation_files.encoded(annotations))
        self._last = (
            name + manifests.SUFFIX,
            store.manifest_file(snapshot_id),
        )
        self._plans = _plans(store, manifests.references(manifest), pack_bytes)
        self.length = (
            sum(map(_length_as_member, (len(self._first[1]), len(self._last[1]))))
            + sum(_length_as_member(plan.length) for plan in self._plans)
            + len(_END)
        )

    def pieces(self) -> Iterator[bytes]:
        """Yield the archive. Raises ObjectCorrupt at a damaged chunk, and StoreUnavailable; the bytes read so far are useless then."""
        gathered: list[bytes] = []
        room = _PIECE_BYTES
        for piece in self._parts():
            gathered.append(piece)
            room -= len(piece)
            if room <= 0:
                yield b"".join(gathered)
                gathered, room = [], _PIECE_BYTES
        yield b"".join(gathered)

    def _parts(self) -> Iterator[bytes]:
        yield from self._small(*self._first)
        for plan in self._plans:
            yield self._header(f"packs/{packs.new_name()}{packs.SUFFIX}", plan.length)
            yield from plan.pieces(self._read)
            yield _padding(plan.length)
        yield from self._small(*self._last)
        yield _END

    def _read(self, digest: bytes) -> tuple[int, bytes | memoryview, int]:
        codec, payload, raw_length = self._store.read(digest)
        try:
            intact = digest_of_stored(codec, payload, raw_length) == digest
        except CodecError:
            intact = False
        if not intact:
            self._store.load(digest)  # raises, naming the pack
        return codec, payload, raw_length

    def _small(self, name: str, content: bytes) -> Iterator[bytes]:
        yield self._header(name, len(content))
        yield content
        yield _padding(len(content))

    def _header(self, name: str, length: int) -> bytes:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = length, 0o600, self._modified
        return member.tobuf(tarfile.USTAR_FORMAT)


@contextmanager
def export(
    store: LocalStore, snapshot_id: str, *, pack_bytes: int = PACK_BYTES
) -> Iterator[Export]:
    """Yield an archive of a snapshot, whose chunks are kept inside the block. Raises SnapshotNotFound, ManifestInvalid, ObjectCorrupt."""
    digests = manifests.references(store.manifest(snapshot_id))
    with store.holding(digests):
        yield Export(store, snapshot_id, pack_bytes)


def _plans(store: LocalStore, digests: set[bytes], pack_bytes: int) -> list[PackPlan]:
    """Return plans of packs of about `pack_bytes`, with the chunks in the order of the disk."""
    groups: list[Sequence[Entry]] = []
    room = 0
    for place in store.locate(digests):
        if room <= 0:
            group: list[Entry] = []
            groups.append(group)
            room = pack_bytes
        group.append(Entry(place.digest, place.offset, *place[3:]))
        room -= place.stored_length
    return [PackPlan(group) for group in groups]


def _length_as_member(length: int) -> int:
    return tarfile.BLOCKSIZE + length + len(_padding(length))


def _padding(length: int) -> bytes:
    return bytes(-length % tarfile.BLOCKSIZE)
