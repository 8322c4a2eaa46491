"""A store that this process only reads, such as that of another user: nothing in it is locked, created or changed.

Its owner may change it at any time. Chunks that are gone then are reported as missing, and every one is compared with its digest.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import numpy as np

from ..errors import StoreUnavailable
from ..linux.foreign_files import open_regular
from ..wire.manifest_records import Manifest
from . import manifests, packs
from .index.contents import Contents
from .index.places import PLACE, Places, unique

_MAX_MANIFEST_BYTES = 64 << 20


class ReadableStore(Protocol):
    """What reading a snapshot needs of its store; the methods are those of `LocalStore`."""

    root: Path

    def locate(self, digests: Collection[bytes]) -> Places:
        """Return the places of all `digests`. Raises ObjectCorrupt if one is not in the store."""

    def path_of(self, pack: str) -> Path:
        """Return the path of a pack that `locate` named; the pack may be removed before it is read."""

    def read_span(self, path: str, offset: int, into: memoryview) -> int:
        """Fill `into` from `offset` of a pack, unchecked; return the number of bytes read, fewer if the pack is truncated or gone."""

    def load(self, digest: bytes) -> bytes:
        """Return a chunk, decompressed and verified. Raises ObjectCorrupt, which names the pack, and FormatTooNew."""

    def holding(self, digests: Collection[bytes]) -> AbstractContextManager[None]:
        """Keep these chunks in the store inside the context, in which the collection must not change."""


class ReadOnlyStore:
    """The store in the directory `root`. Thread-safe. All methods raise StoreUnavailable for what cannot be read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._packs = root / "packs"
        self._lock = threading.Lock()
        #: The contents of the packs that were read so far, by name.
        self._known = dict[str, Contents]()

    def manifest(self, snapshot_id: str) -> Manifest:
        """Return the manifest, verified. Raises SnapshotNotFound, ManifestInvalid, FormatTooNew."""
        path = manifests.path_of(self.root / "manifests", snapshot_id)
        with _errors(self.root):
            try:
                with open(open_regular(path), "rb") as file:  # noqa: PTH123 - a descriptor
                    content = file.read(_MAX_MANIFEST_BYTES)
            except FileNotFoundError as error:
                raise manifests.not_found(snapshot_id) from error
        return manifests.parse(path, content, Manifest)

    def locate(self, digests: Collection[bytes]) -> Places:
        """Return the places of all `digests`. Raises ObjectCorrupt if one is not in the store."""
        wanted = set(unique(digests))
        names, parts = list[str](), []
        with self._lock, _errors(self.root):
            for name in self._names():
                if not wanted:
                    break
                contents = self._contents(name)
                chosen = [
                    (number, digest)
                    for number, digest in enumerate(contents.each_digest())
                    if digest in wanted
                ]
                if chosen:
                    wanted.difference_update(digest for _, digest in chosen)
                    numbers = contents.numbers[[number for number, _ in chosen]]
                    rows = np.zeros(len(chosen), PLACE)
                    for field in numbers.dtype.names or ():
                        rows[field] = numbers[field]
                    rows["digest"] = np.frombuffer(
                        b"".join(digest for _, digest in chosen), PLACE["digest"]
                    )
                    rows["pack"] = len(names)
                    names.append(name)
                    parts.append(rows)
        if wanted:
            raise packs.missing_chunk(self.root, *wanted)
        return Places(parts, names)

    def path_of(self, pack: str) -> Path:
        """Return the path of a pack that `locate` named; the pack may be removed before it is read."""
        return self._packs / (pack + packs.SUFFIX)

    def read_span(self, path: str, offset: int, into: memoryview) -> int:
        """Fill `into` from `offset` of a pack, unchecked; return the number of bytes read, fewer if the pack is truncated or gone."""
        with _errors(self.root):
            return packs.read_span(Path(path), offset, into)

    def load(self, digest: bytes) -> bytes:
        """Return a chunk, decompressed and verified. Raises ObjectCorrupt, which names the pack, and FormatTooNew."""
        places = self.locate((digest,))
        [entry], path = places.entries(), self.path_of(places.packs[0])
        with _errors(self.root):
            payload = packs.read_payload(path, entry)
        data, why = packs.unpacked(digest, entry.codec, payload, entry.raw_length)
        if why:
            raise packs.damaged_chunk(path, digest, why)
        return data

    def holding(self, digests: Collection[bytes]) -> AbstractContextManager[None]:
        """Return a context that keeps nothing: only the store's owner could."""
        return nullcontext()

    def _names(self) -> list[str]:
        """Return the names of the sealed packs that exist now, the newest first; forget the others."""
        found = {
            path.name.removesuffix(packs.SUFFIX)
            for path in self._packs.iterdir()
            if path.name.endswith(packs.SUFFIX) and not path.name.startswith(packs.TEMPORARY)
        }
        for gone in self._known.keys() - found:
            del self._known[gone]
        return sorted(found, reverse=True)

    def _contents(self, name: str) -> Contents:
        if name not in self._known:
            path = self.path_of(name)
            if not path.is_file():  # reading anything else might never end
                raise OSError(f"{path} is not a file")
            self._known[name] = Contents.of_index(packs.index_of(path))
        return self._known[name]


@contextmanager
def _errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"The store {root} cannot be read: {error.strerror or error}.",
            hint="Its owner must make it readable for you.",
        ) from error
