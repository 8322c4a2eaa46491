"""Makes a store of very many chunks without the data: chunks are short, and all else is as large as it would be.

Packs and manifests are written by the store's own functions. Every notebook has some snapshots, each of which shares most chunks
with the one before; a few chunks are in every snapshot of the store, as those of libraries are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jupyter_gpuckpt.store import manifests, packs
from jupyter_gpuckpt.store.codecs import RAW, digest_of
from jupyter_gpuckpt.wire.manifest_records import Chunk, Manifest, Sizes, SnapshotInfo, Stream
from tests.manifests import manifest_of

#: Bytes of a chunk: enough to be most of its pack, as a real one is.
CHUNK_BYTES = 256
#: As many as a pack of 256 MB has.
CHUNKS_PER_PACK = 2500
#: A notebook's chunks, over all of its snapshots.
_CHUNKS_PER_NOTEBOOK = 20_000
SNAPSHOTS_PER_NOTEBOOK = 20
#: Of its chunks each snapshot has anew, and leaves out, this share.
_CHANGED = 0.1
#: In every snapshot of the store, of the first notebook's chunks.
_LIBRARY_SHARE = 0.05


def make(root: Path, chunks: int) -> None:
    """Make a store of about `chunks` chunks in `root`, without a catalog."""
    notebooks = max(1, chunks // _CHUNKS_PER_NOTEBOOK)
    per_notebook = chunks // notebooks
    first = int(per_notebook / (1 + _CHANGED * (SNAPSHOTS_PER_NOTEBOOK - 1)))
    fresh = int(_CHANGED * first)
    library = np.arange(int(_LIBRARY_SHARE * first))
    for folder in ("packs", "manifests"):
        (root / folder).mkdir(mode=0o700, parents=True)
    digests = np.empty(notebooks * per_notebook, "V32")
    for start in range(0, len(digests), CHUNKS_PER_PACK):
        _write_pack(root / "packs", digests[start : start + CHUNKS_PER_PACK], start)
    for notebook in range(notebooks):
        mine = notebook * per_notebook
        for number in range(SNAPSHOTS_PER_NOTEBOOK):
            begin = mine + number * fresh
            wanted = np.concatenate([library, np.arange(begin, begin + first)])
            made = manifest(f"s{notebook:04}-{number:02}", f"n{notebook}.ipynb", digests[wanted])
            # Without the flush of each: they are made for the moment.
            (root / "manifests" / f"{made.info.snapshot_id}{manifests.SUFFIX}").write_bytes(
                manifests.encoded(made)
            )


def manifest(
    snapshot_id: str, name: str, digests: np.ndarray, chunk_bytes: int = CHUNK_BYTES
) -> Manifest:
    """Return a snapshot of these chunks."""
    number = int.from_bytes(digests[0].tobytes()[:3], "big")
    size = len(digests) * chunk_bytes
    found = [Chunk(digest, chunk_bytes) for digest in map(bytes, digests.tolist())]
    info = SnapshotInfo(
        snapshot_id, f"kernel-of-{name}", 1e9 + number, "save", name=name, sizes=Sizes(size, size)
    )
    return manifest_of(info, Stream("pages", size, found))


def payload(number: int) -> bytes:
    """Return the bytes of a chunk."""
    return struct.pack("<Q", number) * (CHUNK_BYTES // 8)


def _write_pack(directory: Path, digests: np.ndarray, start: int) -> None:
    """Fill `digests` and write these chunks."""
    pack = packs.PackFile(directory, packs.new_name())
    payloads = [payload(start + place) for place in range(len(digests))]
    for place, content in enumerate(payloads):
        digest = digest_of(content)
        digests[place] = digest
        pack.entries.append(pack.reserve(digest, CHUNK_BYTES, CHUNK_BYTES, RAW))
    pack.write(pack.entries, payloads)
    pack.seal()


def snapshot_ids(root: Path) -> Iterator[str]:
    """All of them, in order."""
    for path in sorted((root / "manifests").glob("*" + manifests.SUFFIX)):
        yield path.name.removesuffix(manifests.SUFFIX)
