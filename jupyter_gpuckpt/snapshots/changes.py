"""The changes, since a snapshot, of the files that its kernel had open. Users see them before a resume, which restores no files."""

from __future__ import annotations

import stat
from pathlib import Path
from tempfile import TemporaryDirectory

from ..engine.criu import images as criu_images
from ..engine.criu import missing_files
from ..host import fingerprint
from ..host.file_digests import FileDigests
from ..manifest_records import FORMER_SCRATCH, Manifest
from ..snapshot_records import Change, Changes, FileChange
from ..store.local import LocalStore
from .resume import obstacles
from .stored_images import FILES, write_images

#: Folders that have no files of the user.
_SYSTEM = ("/proc/", "/sys/", "/dev/", f"{FORMER_SCRATCH}/")
#: IPython's history, which every kernel of a user writes all the time; the agent handles it.
_HISTORY = "history.sqlite"


def changes(manifest: Manifest, store: LocalStore, digests: FileDigests | None = None) -> Changes:
    """Return the open files that have changed, by path, and the obstacles to resuming the snapshot here.

    A file has changed when it was written after the snapshot was taken or has another length. Files that had been deleted before the
    snapshot are restored from it and not listed, nor are those that travel with it. The images of a stub are not here, so no files are
    listed for it.
    """
    if store.stubs.find(manifest.info.snapshot_id) is not None:
        return Changes([], obstacles(manifest, fingerprint.host(), digests))
    found = []
    with TemporaryDirectory() as directory:
        images = Path(directory)
        write_images(manifest, store, images, FILES)
        remapped, kept = criu_images.remapped(images), {file.path for file in manifest.kept}
        files = {file.path: file for file in criu_images.regular_files(images)}
        _, lost = missing_files.missing(images, Path, manifest.traveling)
    for file in files.values():
        if file.file_id in remapped or file.path in kept:
            continue
        if file.path.startswith(_SYSTEM) or Path(file.path).name.startswith(_HISTORY):
            continue
        if file.build_id or file.path == manifest.launch.log_path:
            continue
        change = _change(file.path, file.length, manifest.info.created)
        if change is not None:
            found.append(change)
    found.sort(key=lambda change: change.path)
    return Changes(found, [*obstacles(manifest, fingerprint.host(), digests), *lost])


def _change(path: str, length: int | None, created: float) -> FileChange | None:
    try:
        now = Path(path).stat()
    except PermissionError:  # nothing is known of it
        return None
    except OSError:
        return FileChange(path, Change.REMOVED, 0.0, length, None)
    if stat.S_ISDIR(now.st_mode):
        return None  # CRIU lists the working directory among the files, and anything in it changes its time
    if length is not None and now.st_size < length:
        change = Change.SMALLER
    elif now.st_mtime > created or (length is not None and now.st_size != length):
        change = Change.CHANGED
    else:
        return None
    return FileChange(path, change, now.st_mtime, length, now.st_size)
