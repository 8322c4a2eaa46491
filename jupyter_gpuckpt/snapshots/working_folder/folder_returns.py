"""A resume's part for the working folder: the present files are saved, then those of the snapshot are put in place.

The caller undoes the returned restore if the resume fails, and finishes it when the kernel's record says that it runs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from ...engine.settings import EngineSettings
from ...errors import ConfigurationError, SnapshotNotFound
from ...linux.beneath import Beneath
from ...store.local import LocalStore
from ...wire.folder_records import CONTENT, TABLE, FolderRules
from ...wire.manifest_records import Cause, Manifest
from ...wire.progress import Progress
from ...wire.snapshot_order import Making
from .folder_merges import merged
from .folder_plans import plan
from .folder_restores import FolderRestore
from .folder_saves import FolderSave, FolderStored, earlier_folder
from .stored_folders import StoredFolder, stored_folder


class Place(NamedTuple):
    """The working folder of a kernel: where it is, its path as the kernel sees it, and its rules."""

    kernel_id: str
    folder: Path
    path: str
    rules: FolderRules


def put_back(  # noqa: PLR0913 - the last three by name
    manifest: Manifest,
    former: Manifest,
    place: Place,
    name: str,
    store: LocalStore,
    settings: EngineSettings,
    progress: Progress,
    *,
    merges: bool,
    making: Making,
    cause: Cause,
) -> tuple[FolderRestore, list[str]]:
    """Put the files of `manifest` in place; return what undoes that, and warnings.

    `former`: the snapshot in which the kernel is suspended; if the files are others now, a copy of it with them is made first for this
    kernel, with the id and number of `making`. `merges`: keep what was changed here since the branch began whose snapshot it is.
    Raises ConfigurationError, KernelStateConflict for what cannot be merged, CheckpointError, StoreError; then nothing was changed.
    """
    if manifest.folder is None or manifest.folder.path != place.path:
        raise ConfigurationError(
            f"Snapshot {manifest.info.snapshot_id} has no files of {place.path}.",
            hint="Restore it without files.",
        )
    wanted = stored_folder(manifest, store, with_git=place.rules.with_git)
    earlier = earlier_folder(former, store)
    saving = FolderSave(place.folder, place.path, place.rules, store, settings, earlier)
    with saving.begun(progress):
        if not saving.is_saved:
            raise ConfigurationError(
                f"The present files cannot be saved, so none were changed. {' '.join(saving.warnings)}",
                hint="Restore the snapshot without files.",
            )
        now = saving.stored()
        if merges and manifest.folder.base:
            wanted = merged(_base(manifest.folder.base, store), now, wanted)
        if earlier is None or not _is_same(earlier, now):
            stored = saving.finish(progress)
            if stored is not None:
                store.publish(_with_files(former, place.kernel_id, stored, making, cause))
        restore = FolderRestore(place.folder, name)
        try:
            with Beneath(place.folder) as beneath:
                planned = plan(beneath, now, wanted)
            restore.prepare(planned, store, settings.threads, settings.memory_bytes, progress)
            restore.apply(planned.steps)
        except BaseException:
            restore.undo()
            raise
    return restore, planned.warnings


def _base(snapshot_id: str, store: LocalStore) -> StoredFolder:
    """Return the files with which a branch began. Raises ConfigurationError if they are gone."""
    try:
        found = store.manifest(snapshot_id)
    except SnapshotNotFound:
        found = None
    if found is None or found.folder is None:
        raise ConfigurationError(
            "The files with which the branch began are not saved any more, so its files cannot be merged.",
            hint='Take the branch\'s files (files="restore") or leave the folder as it is (files="").',
        )
    return stored_folder(found, store)


def _is_same(one: StoredFolder, other: StoredFolder) -> bool:
    """Return whether both have the same files."""

    def known(folder: StoredFolder) -> dict[str, object]:
        return {
            path: (replace(file.entry, seen=[]), [chunk.digest for chunk in file.chunks])
            for path, file in folder.files.items()
        }

    return known(one) == known(other)


def _with_files(
    former: Manifest, kernel_id: str, stored: FolderStored, making: Making, cause: Cause
) -> Manifest:
    """Return the manifest of a copy of a snapshot, with the files of now."""
    streams = [one for one in former.streams if one.name not in {CONTENT, TABLE}]
    info = replace(
        former.info,
        snapshot_id=making.snapshot_id,
        kernel_id=kernel_id,
        number=making.number,
        created=time.time(),
        cause=cause,
        pinned=False,
        title="",
        note="",
        has_files=True,
    )
    launch = replace(former.launch, kernel_id=kernel_id)
    return replace(
        former,
        info=info,
        launch=launch,
        streams=[*streams, *stored.packed.streams],
        folder=stored.record,
    )
