"""The changes, since a snapshot, of the files that its kernel had open. Users see them before a resume, which restores no files."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from ..engine.criu import missing_files
from ..host import machine_profile
from ..host.file_digests import FileDigests
from ..store.local import LocalStore
from ..wire.manifest_records import Manifest
from ..wire.snapshot_records import Change, Changes, FileChange
from . import open_files
from .open_files import Difference, Found
from .resume import obstacles
from .stored_images import FILES, MEMORY, write_images
from .working_folder.stored_folders import stored_folder

#: What users are told of each difference; nothing of others.
_CHANGES = {
    Difference.GONE: Change.REMOVED,
    Difference.MISSING: Change.MISSING,
    Difference.TOO_SHORT: Change.TOO_SHORT,
    Difference.IN_TRANSACTION: Change.IN_TRANSACTION,
    Difference.SHORTER: Change.SMALLER,
    Difference.OTHER: Change.CHANGED,
    Difference.PERHAPS_OTHER: Change.CHANGED,
    Difference.GROWN: Change.CHANGED,
}


def changes(
    manifest: Manifest,
    store: LocalStore,
    digests: FileDigests | None = None,
    *,
    with_files: bool = False,
) -> Changes:
    """Return the open files that have changed, by path, and the obstacles to resuming the snapshot here.

    `with_files`: without those of the working folder that the snapshot has, which will be put back.

    Files that had been deleted before the snapshot are restored from it and not listed, nor are those that travel with it. The images
    of a stub are not here, so files that are missing are no obstacles for it.
    """
    this_host, known = machine_profile.host(), digests or FileDigests()
    found = open_files.differences(manifest, this_host, known.outlines)
    is_here = store.stubs.find(manifest.info.snapshot_id) is None
    put_back = set[str]()
    if with_files and is_here and manifest.folder is not None:
        put_back = _in_folder(manifest, store)
    listed = {
        one.file.path: _change(one)
        for one in found
        if one.difference in _CHANGES and one.file.path not in put_back
    }
    problems = obstacles(manifest, this_host, known)
    if is_here:
        with TemporaryDirectory() as directory:
            images = Path(directory)
            write_images(manifest, store, images, [*FILES, *MEMORY])
            missing = missing_files.missing(images, Path, manifest.traveling | put_back)
        problems += missing.lost
        listed |= {path: FileChange(path, Change.MISSING, 0.0) for path in missing.needed}
    return Changes([listed[path] for path in sorted(listed)], problems)


def _in_folder(manifest: Manifest, store: LocalStore) -> set[str]:
    """Return the paths of the files of the working folder in a snapshot, as the kernel sees them."""
    return {f"{manifest.launch.cwd}/{path}" for path in stored_folder(manifest, store).files}


def _change(found: Found) -> FileChange:
    gone = not found.mtime_ns
    return FileChange(
        found.file.path,
        _CHANGES[found.difference],
        found.mtime_ns / 1e9,
        found.file.length,
        None if gone else found.length,
    )
