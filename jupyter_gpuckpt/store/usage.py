"""What the snapshots of a store take, as a picture of it needs: how much of it is the same, whose it is, how it came about.

Which name needs which chunk is found out from the manifests, and kept until there are other snapshots; the lengths of chunks are
the catalog's. No pack is looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from ..errors import StoreError
from ..model import SnapshotInfo
from ..snapshot_records import Growth, NameUsage, StoreUsage
from . import faults, manifests
from .catalog import Catalog

#: Points of the growth, at most.
MOST_POINTS = 60
#: Digests in one question to the catalog, which nobody else can ask meanwhile.
_AT_ONCE = 5000
_SHARED = -1


class Usage:
    """Of one store. Thread-safe. `root` and `manifests_directory` are its folders."""

    def __init__(self, root: Path, manifests_directory: Path, catalog: Catalog) -> None:
        self._root, self._manifests, self._catalog = root, manifests_directory, catalog
        self._lock = threading.Lock()
        self._known: tuple[frozenset[tuple[str, str]], _Shares] | None = None

    def of(self, snapshots: Iterable[SnapshotInfo]) -> StoreUsage:
        """What `snapshots`, all there are, take. Raises OSError, sqlite3.OperationalError."""
        by_name: dict[str, list[SnapshotInfo]] = {}
        infos = sorted(snapshots, key=lambda info: info.created)
        for info in infos:
            by_name.setdefault(info.name, []).append(info)
        shares = self._shares(by_name)
        names = [
            NameUsage(
                name,
                len(group),
                shares.stored[name],
                sum(info.sizes.raw_bytes for info in group),
                shares.exclusive[name],
            )
            for name, group in by_name.items()
        ]
        return StoreUsage(
            path=str(self._root),
            free_bytes=faults.free_bytes(self._root),
            disk_bytes=self._catalog.disk_bytes() + _length_of_files(self._manifests),
            stored_bytes=shares.stored_bytes,
            raw_bytes=sum(one.raw_bytes for one in names),
            unique_bytes=shares.unique_bytes,
            snapshots=len(infos),
            by_name=sorted(names, key=lambda one: (-one.stored_bytes, one.name)),
            growth=growth(infos),
        )

    def _shares(self, by_name: dict[str, list[SnapshotInfo]]) -> _Shares:
        key = frozenset((info.snapshot_id, name) for name in by_name for info in by_name[name])
        with self._lock:  # who comes second needs not read it all again
            if self._known is None or self._known[0] != key:
                shares = _Shares()
                for name, group in by_name.items():
                    self._add(shares, name, group)
                self._known = (key, shares)
            return self._known[1]

    def _add(self, shares: _Shares, name: str, group: list[SnapshotInfo]) -> None:
        lengths: dict[bytes, int] = {}
        for info in group:
            try:
                path = manifests.path_of(self._manifests, info.snapshot_id)
                found = manifests.read(path, manifests.References)
            except (StoreError, OSError):  # deleted meanwhile, or damaged
                continue
            for stream in found.streams:
                lengths.update((chunk.digest, chunk.length) for chunk in stream.chunks)
        lengths.pop(b"", None)
        digests = list(lengths)
        shares.begin(name)
        for start in range(0, len(digests), _AT_ONCE):
            stored = self._catalog.known(digests[start : start + _AT_ONCE])
            for digest, stored_length in stored.items():
                shares.count(digest, stored_length, lengths[digest])


class _Shares:
    """Who needs which chunk. A chunk that is damaged counts for nothing: it has to be stored again."""

    def __init__(self) -> None:
        self.stored: dict[str, int] = {}
        self.exclusive: dict[str, int] = {}
        self.stored_bytes = self.unique_bytes = 0
        self._names: list[str] = []
        self._of: dict[bytes, int] = {}

    def begin(self, name: str) -> None:
        """What is counted from here on belongs to `name`."""
        self.stored[name] = self.exclusive[name] = 0
        self._names.append(name)

    def count(self, digest: bytes, stored_length: int, raw_length: int) -> None:
        """A chunk, once for each name."""
        name = self._names[-1]
        self.stored[name] += stored_length
        before = self._of.setdefault(digest, len(self._names) - 1)
        if before == len(self._names) - 1:
            self.exclusive[name] += stored_length
            self.stored_bytes += stored_length
            self.unique_bytes += raw_length
        elif before != _SHARED:
            self.exclusive[self._names[before]] -= stored_length
            self._of[digest] = _SHARED


def growth(infos: list[SnapshotInfo]) -> list[Growth]:
    """What `infos`, oldest first, brought one after the other; the last point is always that of the last one."""
    total, points = 0, []
    for info in infos:
        total += info.sizes.new_bytes
        points.append(Growth(info.created, total))
    if len(points) <= MOST_POINTS:
        return points
    last = len(points) - 1
    return [points[round(place * last / (MOST_POINTS - 1))] for place in range(MOST_POINTS)]


def _length_of_files(directory: Path) -> int:
    total = 0
    for path in directory.iterdir():
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total
