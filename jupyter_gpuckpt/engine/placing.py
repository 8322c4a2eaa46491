"""Placement of captured files where a restore needs them: on the kernel's own mounts, and CRIU's links beside the user's files.

A link is written under a temporary name and renamed last, never over an existing file, which may be the user's. Links are
removed when the restore is over or has failed, folders only when it has failed. If the daemon is killed meanwhile, the next one
calls `remove_links`, which recognizes the links by their attributes.

See also: `store.manifest_checks`, which checks the names in a manifest.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..errors import ThawFailed
from ..store import manifest_checks
from ..wire.manifest_records import CapturedFile, Manifest
from .criu import images as criu_images

#: The suffix of a link that is being written.
_UNFINISHED = ".gpuckpt-unfinished"


class Placing:
    """The placement of the captured files of one restore.

    `inside` translates a path of the kernel's mount namespace. `owners`: whether to set the recorded owners of the files; a kernel
    in a user namespace of its own has only one owner.

    Links beside the user's files are made by paths of our own mount namespace, so that they can be removed when the kernel's
    mounts are gone.
    """

    def __init__(
        self, manifest: Manifest, inside: Callable[[str], Path], *, owners: bool = True
    ) -> None:
        self._manifest, self._inside, self._owners = manifest, inside, owners
        self._links = {record.path: record for record in _links(manifest)}
        self._made: dict[Path, tuple[int, int]] = {}
        self._folders: list[Path] = []

    def check(self, images: Path) -> None:
        """Raise ThawFailed if the images do not name every link, or if another file is where a link has to be."""
        if problem := problem_of_images(self._manifest, images):
            raise ThawFailed(
                f"The snapshot is not one that a save made: {problem}.",
                hint="Nothing was written. Delete the snapshot if you do not know where it comes from.",
                details=f"snapshot {self._manifest.info.snapshot_id}: {problem}",
            )
        for path, record in self._links.items():
            try:
                there = _is_there(Path(path))
            except OSError as error:
                raise ThawFailed(
                    f"The folder of a file that the kernel needs cannot be reached: {path}.",
                    hint="Give yourself the right to write into that folder, then try again. Nothing was written.",
                    details=str(error),
                ) from error
            if there and not _is_left_over(record, Path(path), self._manifest):
                raise ThawFailed(
                    f"A file that is not the kernel's is in the place of one that it needs: {path}.",
                    hint="Move that file away, then try again. Nothing was written.",
                    details=f"{path}: it is there, and no earlier resume made it",
                )

    def prepare(self) -> list[tuple[str, Path]]:
        """Make directories; return (stream, path) of every regular file that is to be written."""
        jobs = []
        for record in self._manifest.captured:
            path = self._at(record.path)
            if record.path in self._links:
                self.make_folders(path.parent)
                path.unlink(missing_ok=True)  # `check` has found it to be left over
                path = self._begun(path) if record.kind == "file" else path
            else:
                folder = path if record.kind == "directory" else path.parent
                folder.mkdir(parents=True, exist_ok=True)
            if record.kind == "file":
                jobs.append((record.stream, path))
        return jobs

    def finish(self) -> None:
        """Make links, set owners, modes and times, when the bytes have been written."""
        for record in self._manifest.captured:
            path = self._at(record.path)
            if record.path in self._links:
                self._finish_link(record, path)
            elif record.kind == "hardlink":
                path.unlink(missing_ok=True)
                os.link(self._at(record.target), path)
            else:
                _finish_private(record, path, owner=self._owners)

    def make_folders(self, folder: Path, mode: int = 0o777) -> None:
        """Make a folder and its missing parents."""
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for one in reversed(missing):
            one.mkdir(mode=mode, exist_ok=True)
            self._folders.append(one)

    def remove_links(self) -> None:
        """Remove the links that were made and still exist; after a successful restore CRIU has removed them itself."""
        for path, identity in self._made.items():
            with suppress(OSError):
                if _identity(path.lstat()) == identity:
                    path.unlink()

    def remove_folders(self) -> None:
        """Remove those folders that were made and are empty."""
        for folder in reversed(self._folders):
            with suppress(OSError):
                folder.rmdir()

    def _at(self, path: str) -> Path:
        return Path(path) if path in self._links else self._inside(path)

    def _begun(self, path: Path) -> Path:
        """Create the file that becomes the link; return its path."""
        unfinished = _unfinished(path)
        unfinished.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(unfinished, flags, 0o600)
        self._made[unfinished] = _identity(os.fstat(descriptor))
        os.close(descriptor)
        return unfinished

    def _finish_link(self, record: CapturedFile, path: Path) -> None:
        """Rename a link to its final name. Its owner is the user who resumes the kernel, whatever the manifest says."""
        if record.kind == "hardlink":
            source = self._at(record.target)
        else:
            source = _unfinished(path)
            source.chmod(record.mode)
            os.utime(source, ns=(record.mtime_ns, record.mtime_ns))
        try:
            os.link(source, path, follow_symlinks=False)
        except FileExistsError as error:
            raise ThawFailed(
                f"A file that is not the kernel's is in the place of one that it needs: {record.path}.",
                hint="Move that file away, then try again. The snapshot is untouched.",
                details=str(error),
            ) from error
        self._made[path] = _identity(path.lstat())
        if record.kind == "file":
            source.unlink()


def problem_of_images(manifest: Manifest, images: Path) -> str:
    """Return a text about the first name in the manifest or the images that no save would have written; empty if there is none.

    Raises ObjectCorrupt for images that cannot be read, OSError.
    """
    listed = (images / "files.img").exists()
    named = {link for link, _ in criu_images.link_remaps(images)} if listed else set()
    for record in _links(manifest):
        if record.path not in named:
            return f"its images do not name the link {record.path}"
    for file in criu_images.regular_files(images) if listed else []:
        if ".." in file.path.split("/") or "\0" in file.path:
            return f"its images name a file by {file.path!r}"
    return ""


def remove_links(manifest: Manifest) -> None:
    """Remove links that an interrupted restore may have left beside the user's files."""
    for record in _links(manifest):
        path = Path(record.path)
        with suppress(OSError):
            if _is_left_over(record, path, manifest):
                path.unlink()
        with suppress(OSError):
            _unfinished(path).unlink()


def _links(manifest: Manifest) -> list[CapturedFile]:
    """Return the records of files outside of the kernel's own mounts."""
    private = manifest.launch.private_shm
    return [
        record
        for record in manifest.captured
        if not manifest_checks.is_private(record.path, private_shm=private)
    ]


def _finish_private(record: CapturedFile, path: Path, *, owner: bool) -> None:
    if record.kind == "symlink":
        path.unlink(missing_ok=True)
        path.symlink_to(record.target)
    elif record.kind == "fifo":
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    if owner:
        os.chown(path, record.uid, record.gid, follow_symlinks=False)
    if record.kind != "symlink":
        path.chmod(record.mode)
        os.utime(path, ns=(record.mtime_ns, record.mtime_ns))


def _is_left_over(record: CapturedFile, path: Path, manifest: Manifest) -> bool:
    """Return whether a file is a link that an interrupted restore left: mtime in nanoseconds, length and mode match the record."""
    if record.kind == "hardlink":
        record = next(one for one in manifest.captured if one.path == record.target)
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return (
        stat.S_ISREG(status.st_mode)
        and stat.S_IMODE(status.st_mode) == record.mode
        and status.st_mtime_ns == record.mtime_ns
        and status.st_size == manifest.stream(record.stream).length
    )


def _is_there(path: Path) -> bool:
    """Return whether something has this path. Raises OSError where that cannot be known."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + _UNFINISHED)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
