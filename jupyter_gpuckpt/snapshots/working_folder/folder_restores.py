"""The carrying out of a plan, which can be undone completely, also by the next daemon if this one is killed at any step.

The new files are prepared in a directory inside the folder, so that putting them in place is only renaming; former files are renamed
into it. Before the first step the steps are written to a journal there. The daemon's record of the kernel, which names the
directory, decides whether they are undone: they are, until the record says that the kernel runs in its new state.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from ...errors import CheckpointError, is_disk_full
from ...images.sinks import FileSink
from ...images.unpack import Sink, Unpacking
from ...linux.beneath import Beneath, sync_file_system
from ...store.local import LocalStore
from ...wire import decoding
from ...wire.folder_records import FolderJournal, FolderStep
from ...wire.manifest_records import Stream
from ...wire.progress import Progress
from .folder_plans import FolderPlan
from .folder_walks import SYMLINK
from .stored_folders import StoredFile

_log = logging.getLogger(__name__)

_JOURNAL, _UNFINISHED, _OLD, _NEW = "journal", "journal.unfinished", "old", "new"
#: How many files are written at the same time, and from how many on the whole file system is written to the disk instead of each file.
_AT_ONCE, _MANY = 128, 64
#: That something else, a link for instance, is where a directory was.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class FolderRestore:
    """The files of one plan on their way into a folder. `name`: of the directory in it for former and new files."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name

    def prepare(
        self,
        plan: FolderPlan,
        store: LocalStore,
        threads: int,
        memory_bytes: int,
        progress: Progress,
    ) -> None:
        """Write the new files, and then the journal; nothing else in the folder changes. Raises CheckpointError, StoreError."""
        with self._errors("The files cannot be written"), Beneath(self._folder) as beneath:
            os.mkdir(self._name, 0o700, dir_fd=beneath.descriptor)
            for one in (_OLD, _NEW):
                with beneath.parent(f"{self._name}/{one}") as (folder, name):
                    os.mkdir(name, 0o700, dir_fd=folder)
            numbered = list(plan.files.items())
            for first in range(0, len(numbered), _AT_ONCE):
                self._write(
                    beneath,
                    numbered[first : first + _AT_ONCE],
                    store,
                    threads,
                    memory_bytes,
                    progress,
                )
            made = [f"{self._name}/{_NEW}/{n}" for n, one in numbered if one.entry.kind != SYMLINK]
            _settle(beneath, made)
            self._record(beneath, plan.steps)

    def apply(self, steps: Sequence[FolderStep]) -> None:
        """Put everything in place. Raises CheckpointError; then the caller undoes it."""
        doing = {
            "take": self._take,
            "remove": self._remove,
            "make": self._make,
            "put": self._put,
            "set": self._set,
        }
        with self._errors("The files cannot be put in place"), Beneath(self._folder) as beneath:
            for step in steps:
                doing[step.kind](beneath, step)
            # What was made has its mode only now: a directory may not be writable.
            for step in reversed(steps):
                if step.kind == "make":
                    _set_mode(beneath, step.path, step.mode, None)
            _settle(beneath, sorted({_above(step.path) for step in steps}))

    def undo(self) -> None:
        """Bring the former files back, as far as steps were done; may be repeated. Raises CheckpointError."""
        with self._errors("The former files cannot be put back"), Beneath(self._folder) as beneath:
            if beneath.status(self._name) is None:
                return
            steps = self._journal(beneath)
            for step in reversed(steps):
                self._undo(beneath, step)
            _settle(beneath, sorted({_above(step.path) for step in steps}))
            self._drop(beneath)

    def finish(self) -> None:
        """Remove the former files. Never raises: what is left is removed by the next one."""
        try:
            with Beneath(self._folder) as beneath:
                if beneath.status(self._name) is not None:
                    self._drop(beneath)
        except OSError as error:
            _log.warning("files of a restore are left in %s: %s", self._folder, error)

    def _write(
        self,
        beneath: Beneath,
        numbered: Sequence[tuple[int, StoredFile]],
        store: LocalStore,
        threads: int,
        memory_bytes: int,
        progress: Progress,
    ) -> None:
        """Write some new files, with modes and times."""
        jobs: list[tuple[Stream, Sink]] = []
        with ExitStack() as opened:
            descriptors = []
            for number, one in numbered:
                path = f"{self._name}/{_NEW}/{number}"
                if one.entry.kind == SYMLINK:
                    with beneath.parent(path) as (folder, name):
                        os.symlink(one.entry.target, name, dir_fd=folder)
                    continue
                descriptor = beneath.open(path, os.O_RDWR | os.O_CREAT)
                opened.callback(os.close, descriptor)
                descriptors.append((descriptor, one.entry))
                jobs.append((one.stream, FileSink(descriptor)))
            Unpacking(jobs, store, threads=threads, memory_bytes=memory_bytes).run(
                Progress(lambda _: progress.check())
            )
            for descriptor, entry in descriptors:
                os.fchmod(descriptor, entry.mode)
                os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))

    def _record(self, beneath: Beneath, steps: Sequence[FolderStep]) -> None:
        """Write the journal: from here on the steps can be undone without this object."""
        path = f"{self._name}/{_UNFINISHED}"
        descriptor = beneath.open(path, os.O_WRONLY | os.O_CREAT)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.msgpack.encode(FolderJournal(list(steps))))
        _settle(beneath, [path])
        beneath.move(path, f"{self._name}/{_JOURNAL}", replace=True)
        _settle(beneath, ["", self._name, f"{self._name}/{_NEW}"])

    def _take(self, beneath: Beneath, step: FolderStep) -> None:
        beneath.move(step.path, self._old(step))

    def _remove(self, beneath: Beneath, step: FolderStep) -> None:
        with beneath.parent(step.path) as (folder, name):
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError as error:
                # Something is in it that is left out of versions: it stays, unless a file is to be there, which fails then.
                if error.errno != errno.ENOTEMPTY:
                    raise

    def _make(self, beneath: Beneath, step: FolderStep) -> None:
        with beneath.parent(step.path) as (folder, name), suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)

    def _put(self, beneath: Beneath, step: FolderStep) -> None:
        beneath.move(self._new(step), step.path)

    def _set(self, beneath: Beneath, step: FolderStep) -> None:
        _set_mode(beneath, step.path, step.mode, step.mtime_ns)

    def _undo(self, beneath: Beneath, step: FolderStep) -> None:
        """Undo a step, if it was done and not undone yet."""
        if step.kind == "take" and beneath.status(self._old(step)) is not None:
            beneath.move(self._old(step), step.path, replace=True)
        elif step.kind == "remove" and beneath.status(step.path) is None:
            with beneath.parent(step.path) as (folder, name):
                os.mkdir(name, 0o700, dir_fd=folder)
            _set_mode(beneath, step.path, step.mode, None)
        elif step.kind == "make":
            with suppress(OSError), beneath.parent(step.path) as (folder, name):
                os.rmdir(name, dir_fd=folder)
        elif step.kind == "put":
            is_there = beneath.status(self._new(step)) is None
            if is_there and beneath.status(step.path) is not None:
                beneath.move(step.path, self._new(step))
        elif step.kind == "set" and beneath.status(step.path) is not None:
            _set_mode(beneath, step.path, step.former_mode, step.former_mtime_ns)

    def _journal(self, beneath: Beneath) -> list[FolderStep]:
        """Return the steps that the journal has; none without a journal, because nothing was done then."""
        try:
            descriptor = beneath.open(f"{self._name}/{_JOURNAL}")
        except FileNotFoundError:
            return []
        with os.fdopen(descriptor, "rb") as file:
            return decoding.from_msgpack(file.read(), FolderJournal).steps

    def _drop(self, beneath: Beneath) -> None:
        """Remove the directory, its journal first: without one nothing is undone any more."""
        with suppress(FileNotFoundError), beneath.parent(f"{self._name}/{_JOURNAL}") as place:
            os.unlink(place[1], dir_fd=place[0])
            os.fsync(place[0])
        shutil.rmtree(self._name, dir_fd=beneath.descriptor)

    def _old(self, step: FolderStep) -> str:
        return f"{self._name}/{_OLD}/{step.number}"

    def _new(self, step: FolderStep) -> str:
        return f"{self._name}/{_NEW}/{step.number}"

    def _errors(self, what: str) -> _SystemErrors:
        return _SystemErrors(what, self._folder / self._name)


class _SystemErrors:
    """A context that raises CheckpointError in place of errors of the system."""

    def __init__(self, what: str, place: Path) -> None:
        self._what, self._place = what, place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError | msgspec.DecodeError):
            is_full = isinstance(error, OSError) and is_disk_full(error)
            raise CheckpointError(
                f"{self._what}: {error}.",
                hint="Free space on the disk, then try again."
                if is_full
                else "Look at the folder, then try again.",
                details=f"Former and new files are in {self._place}, if there is such a directory.",
            ) from error


def _above(path: str) -> str:
    return path.rpartition("/")[0]


def _set_mode(beneath: Beneath, path: str, mode: int, mtime_ns: int | None) -> None:
    """Set the mode, and unless it is None the time, of a file or directory."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    with beneath.parent(path) as (folder, name):
        descriptor = os.open(name, flags, dir_fd=folder)
    try:
        # Neither may be done to such a descriptor itself (man 2 open, O_PATH), and opening a file for reading may be forbidden.
        there = f"/proc/self/fd/{descriptor}"
        Path(there).chmod(mode)
        if mtime_ns is not None:
            os.utime(there, ns=(mtime_ns, mtime_ns))
    finally:
        os.close(descriptor)


def _settle(beneath: Beneath, paths: Collection[str]) -> None:
    """Write files and directories to the disk; those that are gone are left out."""
    if len(paths) > _MANY:
        sync_file_system(beneath.descriptor)
        return
    for path in paths:
        if not path:
            os.fsync(beneath.descriptor)
            continue
        try:
            with beneath.parent(path) as (folder, name):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
                descriptor = os.open(name, flags, dir_fd=folder)
        except PermissionError:  # a file of ours that nobody may read
            sync_file_system(beneath.descriptor)
            return
        except OSError as error:
            if error.errno in _GONE:
                continue
            raise
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
