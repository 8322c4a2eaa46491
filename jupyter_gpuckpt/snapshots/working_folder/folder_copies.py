"""The folders that branches have for themselves: copies of a snapshot's files, mounted over the path of the original.

Open files, the current directory and absolute paths in memory all lead to the copy. What the snapshot leaves out of the folder is
the original's: it is mounted into the copy.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from ...engine.settings import EngineSettings
from ...engine.tree import mounts
from ...errors import CheckpointError, ConfigurationError, PrivilegeMissing
from ...host.commands import CommandFailed
from ...linux.beneath import Beneath
from ...store.local import LocalStore
from ...wire import decoding
from ...wire.manifest_records import Manifest
from ...wire.progress import Progress
from .folder_plans import plan
from .folder_restores import FolderRestore
from .stored_folders import StoredFolder, stored_folder

_NAME, _UNFINISHED = "copy", "unfinished"
#: The most files and directories of the original that are mounted into a copy.
_MAX_MOUNTS = 100


class FolderCopy:
    """The folder of one branch, made at its first resume. `manifest`: the snapshot that it begins with, or a later one of the branch."""

    def __init__(
        self, folder: Path, manifest: Manifest, store: LocalStore, settings: EngineSettings
    ) -> None:
        self._folder, self._manifest, self._store = folder, manifest, store
        self._settings = settings
        #: What the copy lacks of the original.
        self._list = folder.with_name("left-out.json")

    def make(self, progress: Progress) -> None:
        """Make the copy, unless it is there. Raises StoreError, CheckpointError; then nothing is left."""
        if self._folder.exists():
            return
        if self._manifest.folder is None:
            raise ConfigurationError(
                "The branch's own copy of the working folder is gone, and the snapshot has no files.",
                hint="Resume an earlier snapshot of it.",
            )
        stored = stored_folder(self._manifest, self._store)
        unfinished = self._folder.with_name(_UNFINISHED)
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(mode=0o700, parents=True)
            self._list.write_bytes(msgspec.json.encode(list(stored.left_out)))
            with Beneath(unfinished) as beneath:
                planned = plan(beneath, StoredFolder({}, []), stored)
            made = FolderRestore(unfinished, _NAME)
            settings = self._settings
            made.prepare(planned, self._store, settings.threads, settings.memory_bytes, progress)
            made.apply(planned.steps)
            made.finish()
            unfinished.rename(self._folder)
        except OSError as error:
            raise CheckpointError(
                f"The branch's own copy of the working folder could not be made: {error}.",
                hint=f"Look at {self._folder.parent}, then try again.",
            ) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def inside(self, path: str) -> Path:
        """Return where a path of the kernel is before the copy is mounted."""
        original = self._manifest.launch.cwd
        if path == original or path.startswith(f"{original}/"):
            return Path(f"{self._folder}{path.removeprefix(original)}")
        return Path(path)

    def mount(self, init_pid: int) -> None:
        """Mount the copy over the original in the mount namespace of a kernel's init. Raises PrivilegeMissing."""
        original = Path(self._manifest.launch.cwd)
        pairs = [(original / one, self._folder / one) for one in self._mountable(original)]
        try:
            for source, target in pairs:
                mounts.bind(init_pid, source, target)
            mounts.bind(init_pid, self._folder, original)
        except CommandFailed as error:
            raise PrivilegeMissing(
                "The branch cannot have a working folder of its own, because nothing can be mounted in its namespace.",
                hint="Make branches without files (c.GpuCkptProvisioner.working_folder), or look at `jupyter gpuckpt doctor`.",
                details=str(error),
            ) from error

    def _mountable(self, original: Path) -> Iterable[str]:
        """Make places in the copy for what only the original has, and return them."""
        for path in decoding.from_json(self._list.read_bytes(), list[str])[:_MAX_MOUNTS]:
            source, target = original / path, self._folder / path
            if source.is_symlink() or not source.exists() or target.is_symlink():
                continue
            with suppress(OSError):
                if source.is_dir():
                    target.mkdir(exist_ok=True)
                elif source.is_file():
                    target.touch()
                else:
                    continue
                yield path
