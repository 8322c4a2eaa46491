"""Snapshots that come from a store beside this one, which another daemon writes or has left.

Packs never change once they are sealed, so a link makes one a part of both stores; each removes its own name of it. Nothing of the
other store is changed, unless it was abandoned and all of it is here.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..errors import GpuCkptError, ObjectCorrupt, SnapshotExists, SnapshotNotFound, StoreUnavailable
from ..model import Manifest
from . import annotation_files, manifests, packs, stub_files
from .faults import store_errors
from .local import LocalStore
from .lock import StoreLock

_log = logging.getLogger(__name__)
_GONE = ".gone"
#: Manifests of other stores by path, with the kernel of each: they never change.
_Kernels = dict[Path, str]


def bring_kernel(
    store: LocalStore, others: Iterable[Path], kernel_id: str, kernels: _Kernels
) -> None:
    """Bring a kernel's snapshots here. One that cannot be read is logged and left out."""
    for root in others:
        for path in sorted((root / "manifests").glob("*" + manifests.SUFFIX)):
            try:
                if path not in kernels:
                    kernels[path] = manifests.read(path, manifests.Listed).info.kernel_id
                if kernels[path] == kernel_id:
                    bring(store, root, path.name.removesuffix(manifests.SUFFIX))
            except (GpuCkptError, OSError) as error:
                _log.warning("%s cannot be brought here: %s", path, error)


def bring_from(store: LocalStore, others: Iterable[Path], snapshot_id: str) -> Manifest:
    """Bring a snapshot from another store, and return its manifest. Raises SnapshotNotFound if none has it, and the errors of `bring`.

    A daemon needs this if a process had the store with the snapshot when the daemon opened its own.
    """
    for root in others:
        if bring(store, root, snapshot_id):
            break
    return store.manifest(snapshot_id)


def bring(store: LocalStore, root: Path, snapshot_id: str) -> bool:
    """Bring a snapshot of the store in `root` here; return False for one that is deleted there, or whose chunks only a remote has.

    Raises ObjectCorrupt, ManifestInvalid, FormatTooNew, StoreFull, StoreUnavailable.
    """
    directory = root / "manifests"
    with suppress(SnapshotExists), store_errors(root):
        store.require_absent(snapshot_id)
        annotated = annotation_files.read(annotation_files.path_of(directory, snapshot_id))
        if annotated.deleted or stub_files.read(stub_files.path_of(directory, snapshot_id)):
            return False
        try:
            manifest = manifests.read(manifests.path_of(directory, snapshot_id), Manifest)
        except SnapshotNotFound:
            return False  # it was deleted just now
        digests = manifests.references(manifest)
        with store.holding(digests):
            _link(store, root, digests)
            store.publish(manifest)
        stated = {name: getattr(annotated, name) for name in ("title", "note", "pinned")}
        if changes := {name: value for name, value in stated.items() if value is not None}:
            store.annotate(snapshot_id, changes)
    return True


def take_all_in(store: LocalStore, roots: Iterable[Path]) -> None:
    """Take in each of these stores that no process has; never raises."""
    for root in roots:
        try:
            if take_in(store, root):
                _log.info("the snapshots of %s were taken in", root)
        except (GpuCkptError, OSError) as error:
            _log.warning("the snapshots of %s stay there for now: %s", root, error)


def take_in(store: LocalStore, root: Path) -> bool:
    """Bring everything of a store that no process has, and remove that; return whether it was removed."""
    try:
        lock = StoreLock(root / "lock")
    except StoreUnavailable:
        return False
    try:
        found = [
            path.name.removesuffix(manifests.SUFFIX)
            for path in sorted((root / "manifests").glob("*" + manifests.SUFFIX))
        ]
        left = [one for one in found if not (_is_gone(root, one) or bring(store, root, one))]
        if not left:
            # A part of a store must not be found under its name.
            gone = root.with_name(root.name + _GONE)
            shutil.rmtree(gone, ignore_errors=True)
            root.rename(gone)
            shutil.rmtree(gone)
    finally:
        lock.release()
    return not left


def _is_gone(root: Path, snapshot_id: str) -> bool:
    """Return whether a snapshot was deleted, and its deletion cannot be undone any more."""
    annotated = annotation_files.read(annotation_files.path_of(root / "manifests", snapshot_id))
    return annotated.deleted and annotated.kept_until <= time.time()


def _link(store: LocalStore, root: Path, digests: set[bytes]) -> None:
    """Make those packs a part of the store that have chunks which it lacks, the newest first."""
    missing = digests.difference(store.find(digests).digests)
    for path in sorted((root / "packs").glob("*" + packs.SUFFIX), reverse=True):
        if not missing:
            return
        if path.name.startswith(packs.TEMPORARY):
            continue
        try:
            there = {entry.digest for entry in packs.read_index(path)}
        except (ObjectCorrupt, FileNotFoundError):
            continue  # removed just now; what is damaged is found missing
        if not missing.isdisjoint(there):
            store.link_pack(path)
            missing -= there
