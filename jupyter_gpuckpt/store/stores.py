"""The choice of a daemon's store in a data directory that several hosts or containers share: `store`, or `store-2` while that is in use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from os.path import lexists
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreUnavailable
from ..linux.file_locks import is_locked
from ..linux.shared_folders import locks_reach_all
from ..wire.snapshot_records import SnapshotChange
from . import manifests, stub_files
from .faults import store_errors
from .lock import names_another_host

if TYPE_CHECKING:
    from .local import LocalStore

_MAX_STORES = 64
_PAUSE = 0.05
#: How long to wait for a store that a process of this host has open, in seconds: the process may just be ending.
_ENDING_SECONDS = 2.0


def open_free(
    root: Path,
    are_others_there: Callable[[], bool],
    on_change: Callable[[SnapshotChange], None] = lambda change: None,
) -> LocalStore:
    """Open the first store that no other process has open. Raises what `LocalStore` raises.

    If a process of this host has it open, this waits for a moment: it may be the previous daemon, which was killed and is ending.
    `are_others_there`: whether daemons of other hosts run; called only if file locks may not reach them.
    """
    from .local import LocalStore  # noqa: PLC0415 - a daemon opens its store when a snapshot is asked for

    for directory in _directories(root):
        with store_errors(directory):
            if _stays_locked(directory / "lock"):
                continue
        if not _is_free(directory, are_others_there):
            continue
        for is_last in (False, False, True):
            try:
                return LocalStore(directory, on_change=on_change)
            except StoreUnavailable:
                # Another daemon has it now, or has only looked whether it is in use.
                if is_locked(directory / "lock"):
                    break
                if is_last:
                    raise
                time.sleep(_PAUSE)
    raise StoreUnavailable(
        f"All {_MAX_STORES} snapshot stores beside {root} are in use.",
        hint="Stop a gpuckptd on another machine, or choose another store.",
    )


def _stays_locked(lock: Path) -> bool:
    deadline = time.monotonic() + _ENDING_SECONDS
    while is_locked(lock):
        if names_another_host(lock) or time.monotonic() > deadline:
            return True
        time.sleep(_PAUSE)
    return False


def others(root: Path, own: LocalStore) -> list[Path]:
    """Return the directories of the stores beside the one that is open."""
    found = (one for one in _directories(root) if (one / "manifests").is_dir())
    return [one for one in found if one != own.root]


def finder_elsewhere(root: Path, own: LocalStore) -> Callable[[str], bool]:
    """Return a function that returns whether another store beside `own` has a file of a snapshot, or may have one."""
    # A folder without manifests is perhaps not mounted.
    found = [one / "manifests" for one in _directories(root) if one != own.root and lexists(one)]

    def is_elsewhere(snapshot_id: str) -> bool:
        return any(_may_have(directory, snapshot_id) for directory in found)

    return is_elsewhere


def _may_have(directory: Path, snapshot_id: str) -> bool:
    manifest = manifests.path_of(directory, snapshot_id)
    try:
        directory.stat()
        # `lexists` answers False where it may not look.
        for path in (manifest, manifest.with_suffix(stub_files.SUFFIX)):
            with suppress(FileNotFoundError):
                path.lstat()
                return True
    except OSError:
        return True
    return False


def abandoned(root: Path, own: LocalStore, are_others_there: Callable[[], bool]) -> list[Path]:
    """Return those of the other stores that no daemon has open."""
    return [one for one in others(root, own) if _is_free(one, are_others_there)]


def all_of(root: Path) -> list[Path]:
    """Return the directories of all existing stores."""
    return [one for one in _directories(root) if one.is_dir()]


def _is_free(directory: Path, are_others_there: Callable[[], bool]) -> bool:
    lock = directory / "lock"
    with store_errors(directory):
        if is_locked(lock):
            return False
        is_doubtful = names_another_host(lock) and not locks_reach_all(directory)
    return not (is_doubtful and are_others_there())


def _directories(root: Path) -> Iterator[Path]:
    yield root
    for number in range(2, _MAX_STORES + 1):
        yield root.with_name(f"{root.name}-{number}")
