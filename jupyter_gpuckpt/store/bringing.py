"""Copies of snapshots from a store beside this one, which another daemon writes or has abandoned.

Packs never change once they are sealed, so a hard link puts a pack into both stores; each store removes its own name of it. The other
store is not changed, unless it was abandoned and all of it is here.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import GpuCkptError, ObjectCorrupt, SnapshotExists, SnapshotNotFound, StoreUnavailable
from ..wire.manifest_records import Manifest
from . import annotation_files, manifests, packs, stub_files
from .faults import store_errors
from .lock import StoreLock

if TYPE_CHECKING:
    from .local import LocalStore

_log = logging.getLogger(__name__)
_GONE = ".gone"
#: Manifests of other stores by path, with the kernel of each: they never change.
_Kernels = dict[Path, str]


def bring_kernel(
    store: LocalStore, others: Iterable[Path], kernel_id: str, kernels: _Kernels
) -> None:
    """Copy a kernel's snapshots from other stores. One that cannot be read is logged and left out."""
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
    """Copy a snapshot from one of the other stores; return its manifest. Raises SnapshotNotFound if none has it, and the errors of `bring`.

    A daemon needs this if another process had the store with the snapshot open when the daemon opened its own.
    """
    for root in others:
        if bring(store, root, snapshot_id):
            break
    return store.manifest(snapshot_id)


def bring(store: LocalStore, root: Path, snapshot_id: str) -> bool:
    """Copy a snapshot from the store in `root`; return False if it is deleted there, or if only a remote has its chunks.

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
        store.pack_checks.look()
        with store.holding(digests):
            _link(store, root, digests)
            store.publish(manifest)
        if annotated.stated:
            store.annotate(snapshot_id, annotated.stated)
    return True


def take_all_in(store: LocalStore, roots: Iterable[Path]) -> None:
    """Take in each of these stores that no process has open; never raises."""
    for root in roots:
        try:
            if take_in(store, root):
                _log.info("the snapshots of %s were taken in", root)
        except (GpuCkptError, OSError) as error:
            _log.warning("the snapshots of %s stay there for now: %s", root, error)


def take_in(store: LocalStore, root: Path) -> bool:
    """Copy all snapshots from a store that no process has open, and remove that store; return whether it was removed."""
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
            # It is renamed first: after a crash nobody may find a half-removed store under the old name.
            gone = root.with_name(root.name + _GONE)
            shutil.rmtree(gone, ignore_errors=True)
            root.rename(gone)
            shutil.rmtree(gone)
    finally:
        lock.release()
    return not left


def _is_gone(root: Path, snapshot_id: str) -> bool:
    """Return whether a snapshot was deleted and its deletion can no longer be undone."""
    annotated = annotation_files.read(annotation_files.path_of(root / "manifests", snapshot_id))
    return annotated.deleted and not annotated.kept.left


def _link(store: LocalStore, root: Path, digests: set[bytes]) -> None:
    """Link the packs that have chunks which the store lacks, the newest first."""
    missing = digests.difference(store.find(digests).digests)
    for path in sorted((root / "packs").glob("*" + packs.SUFFIX), reverse=True):
        if not missing:
            return
        if path.name.startswith(packs.TEMPORARY):
            continue
        try:
            there = {entry.digest for entry in packs.read_index(path)}
        except (ObjectCorrupt, FileNotFoundError):
            continue  # it was removed just now, or is damaged: then its chunks will be found missing
        if not missing.isdisjoint(there):
            store.link_pack(path)
            missing -= there
