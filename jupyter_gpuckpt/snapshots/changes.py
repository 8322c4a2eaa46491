"""What became since a snapshot of the files that its kernel had open: said before a resume, which brings back memory and not files."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from ..engine.criu import images as criu_images
from ..engine.criu import missing_files
from ..host import fingerprint
from ..host.file_digests import FileDigests
from ..model import FORMER_SCRATCH, Manifest
from ..protocol import Change, Changes, FileChange
from ..store.local import LocalStore
from .resume import obstacles
from .stored_images import FILES, write_images

#: Not files of the user's.
_SYSTEM = ("/proc/", "/sys/", "/dev/", f"{FORMER_SCRATCH}/")
#: Written by every IPython kernel of a user all the time; the agent sees to it.
_HISTORY = "history.sqlite"


def changes(manifest: Manifest, store: LocalStore, digests: FileDigests | None = None) -> Changes:
    """Open files that differ from what they were, by path; and what keeps the snapshot from being resumed here.

    A file has changed when it was written after the snapshot was taken or has another length. Files that had been deleted by
    then come back from the snapshot and are not among them.
    """
    found = []
    with TemporaryDirectory() as directory:
        images = Path(directory)
        write_images(manifest, store, images, FILES)
        remapped = criu_images.remapped(images)
        files = {file.path: file for file in criu_images.regular_files(images)}
        _, lost = missing_files.missing(images, Path, manifest.captured)
    for file in files.values():
        if file.file_id in remapped:
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
    except OSError:
        return FileChange(path, Change.REMOVED, 0.0, length, None)
    if length is not None and now.st_size < length:
        change = Change.SMALLER
    elif now.st_mtime > created or (length is not None and now.st_size != length):
        change = Change.CHANGED
    else:
        return None
    return FileChange(path, change, now.st_mtime, length, now.st_size)
