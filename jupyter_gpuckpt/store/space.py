"""The disk space of a store's snapshots: how much they share, and the share of each name.

The records (`snapshot_rows.py`) show which name needs which chunk; the result is cached until the snapshots change.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..linux.disk_reserve import free_bytes
from ..wire.manifest_records import SnapshotInfo
from ..wire.snapshot_records import NameUsage, StoreUsage
from .index.catalog import Catalog
from .index.needs import Needs, add, chosen_of
from .snapshot_rows import Records


class Space:
    """A counter of the disk space in one store. Thread-safe. `root` and `manifests_directory` are its folders."""

    def __init__(
        self, root: Path, manifests_directory: Path, catalog: Catalog, records: Records
    ) -> None:
        self._root, self._manifests = root, manifests_directory
        self._catalog, self._records = catalog, records
        self._lock = threading.Lock()
        self._known: tuple[frozenset[tuple[str, str]], _Shares] | None = None

    def of(self, snapshots: Iterable[SnapshotInfo], remote: Collection[str] = ()) -> StoreUsage:
        """Return the disk use of `snapshots`, which must be all of the store's; only remotes have the chunks of those in `remote`.

        Raises OSError, sqlite3.OperationalError.
        """
        by_name: dict[str, list[SnapshotInfo]] = {}
        infos = sorted(snapshots, key=lambda info: info.created)
        here = [info for info in infos if info.snapshot_id not in remote]
        for info, name in zip(here, _present_names(here), strict=True):
            by_name.setdefault(name, []).append(info)
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
            free_bytes=free_bytes(self._root),
            disk_bytes=sum(self._catalog.lengths().values()) + _length_of_files(self._manifests),
            stored_bytes=shares.stored_bytes,
            raw_bytes=sum(one.raw_bytes for one in names),
            unique_bytes=shares.unique_bytes,
            snapshots=len(infos),
            remote_snapshots=len(infos) - len(here),
            remote_bytes=sum(i.sizes.stored_bytes for i in infos if i.snapshot_id in remote),
            by_name=sorted(names, key=lambda one: (-one.stored_bytes, one.name)),
        )

    def _shares(self, by_name: dict[str, list[SnapshotInfo]]) -> _Shares:
        key = frozenset((info.snapshot_id, name) for name in by_name for info in by_name[name])
        with self._lock:  # a second caller waits for the result of the first
            if self._known is None or self._known[0] != key:
                self._known = (key, self._count(by_name))
            return self._known[1]

    def _count(self, by_name: dict[str, list[SnapshotInfo]]) -> _Shares:
        name_of = {info.snapshot_id: name for name in by_name for info in by_name[name]}
        # For every pack, the chunks that each name needs.
        packs: dict[str, Needs] = {}
        for snapshot_id, needs in self._records.all():
            name = name_of.get(snapshot_id)
            if name is not None:
                for pack, bits in needs.items():
                    add(packs.setdefault(pack, {}), {name: bits})
        shares = _Shares(by_name)
        for pack, wanted in packs.items():
            numbers = self._catalog.numbers(pack)
            if numbers is not None:
                shares.count(numbers, wanted)
        return shares


def _present_names(infos: Sequence[SnapshotInfo]) -> list[str]:
    """Return the present name of each snapshot's notebook, which may have been renamed since. `infos`: the oldest first.

    A kernel's snapshots belong to the notebook of its newest one, and so do older snapshots of other kernels under its former name.
    """
    of_kernel: dict[str, str] = {}
    renamed: dict[str, str] = {}
    names = []
    for info in reversed(infos):
        name = of_kernel.setdefault(info.kernel_id, renamed.get(info.name, info.name))
        if info.name != name:
            renamed[info.name] = name
        names.append(name)
    return names[::-1]


class _Shares:
    """The sums of the bytes that each name needs, and of those that only one name needs."""

    def __init__(self, names: Iterable[str]) -> None:
        self.stored = dict.fromkeys(names, 0)
        self.exclusive = dict(self.stored)
        self.stored_bytes = self.unique_bytes = 0

    def count(self, numbers: NDArray[Any], wanted: Needs) -> None:
        """Add one pack. `wanted`: the chunks of it that each name needs."""
        stored = numbers["stored_length"].astype(np.int64)
        chosen = {name: chosen_of(bits, len(numbers)) for name, bits in wanted.items()}
        times = np.sum(list(chosen.values()), axis=0)
        self.stored_bytes += int(stored[times > 0].sum())
        self.unique_bytes += int(numbers["raw_length"][times > 0].sum(dtype=np.int64))
        for name, mine in chosen.items():
            self.stored[name] += int(stored[mine].sum())
            self.exclusive[name] += int(stored[mine & (times == 1)].sum())


def _length_of_files(directory: Path) -> int:
    total = 0
    for path in directory.iterdir():
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total
