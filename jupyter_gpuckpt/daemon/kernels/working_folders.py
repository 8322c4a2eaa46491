"""The working folders of kernels: those of snapshots are put back, which is undone if it fails; branches have some for themselves."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...engine.settings import EngineSettings
from ...errors import CheckpointError
from ...wire.folder_records import STAGING, FolderComparison
from ...wire.manifest_records import Cause, Manifest
from ...wire.progress import Progress
from ...wire.protocol import FilesChoice
from ...wire.snapshot_order import Making
from ...wire.tool_branches import is_tool_branch

if TYPE_CHECKING:
    from ...snapshots.working_folder.folder_copies import FolderCopy
    from ...snapshots.working_folder.folder_saves import FolderSave
    from ...snapshots.working_folder.stored_folders import StoredFolder
    from ...store.local import LocalStore
    from .kernel_records import KernelRecord

_log = logging.getLogger(__name__)


class WorkingFolders:
    """The keeper of the working folders of this daemon's kernels. `folders`: the directory for those of branches."""

    def __init__(self, folders: Path) -> None:
        self._folders = folders

    def of_branch(self, manifest: Manifest, kernel_id: str, name: str) -> str:
        """Return the path of the folder that a new branch will have for itself; empty if it shares that of the original.

        A person's branch shares it: there the files are beside its notebook, and stay when it ends.
        """
        if manifest.folder is None or not is_tool_branch(name):
            return ""
        return str(self._folders / kernel_id / "files")

    def copy_of(
        self, record: KernelRecord, manifest: Manifest, store: LocalStore, settings: EngineSettings
    ) -> FolderCopy | None:
        """Return the folder that a kernel has for itself; None if it has none."""
        if not record.own_folder:
            return None
        from .. import late_modules  # noqa: PLC0415 - late: see there

        return late_modules.folder_copies.FolderCopy(
            Path(record.own_folder), manifest, store, settings
        )

    @contextmanager
    def put_back(
        self,
        manifest: Manifest,
        former: Manifest,
        record: KernelRecord,
        choice: FilesChoice,
        making: Making,
        store: LocalStore,
        settings: EngineSettings,
        progress: Progress,
    ) -> Iterator[list[str]]:
        """Put the files of a snapshot in place, and yield warnings; an error in the context brings the former files back.

        `former`, `making`: as in `folder_returns.put_back`. `record.restoring` names the directory for former files.
        """
        if not choice:
            yield []
            return
        if manifest.folder is None:
            yield [
                "The snapshot does not have the files of the working folder, so they are as they were."
            ]
            return
        from .. import late_modules  # noqa: PLC0415 - late: see there

        returns = late_modules.folder_returns
        place = returns.Place(
            record.kernel_id, _folder_of(record), record.spec.cwd, record.spec.working_folder
        )
        cause = Cause.TOOL if record.cause is Cause.TOOL else Cause.ROLLBACK
        restore, warnings = returns.put_back(
            manifest,
            former,
            place,
            record.restoring,
            store,
            settings,
            progress,
            merges=choice == "merge",
            making=making,
            cause=cause,
        )
        try:
            yield warnings
        except BaseException:
            restore.undo()
            raise

    def finish(self, record: KernelRecord) -> None:
        """Remove the former files of a kernel that runs with others now. Never raises."""
        if self._is_unfinished(record):
            from .. import late_modules  # noqa: PLC0415 - late: see there

            late_modules.folder_restores.FolderRestore(
                _folder_of(record), record.restoring
            ).finish()

    def undo(self, record: KernelRecord) -> None:
        """Bring back the former files of a kernel whose resume a killed daemon did not complete. Never raises."""
        if not self._is_unfinished(record):
            return
        from .. import late_modules  # noqa: PLC0415 - late: see there

        try:
            late_modules.folder_restores.FolderRestore(_folder_of(record), record.restoring).undo()
        except CheckpointError as error:
            _log.error("kernel %s: %s %s", record.kernel_id, error.message, error.details)

    def remove(self, record: KernelRecord) -> None:
        """Remove the folder that a branch that has ended had for itself. Never raises."""
        if record.own_folder:
            shutil.rmtree(Path(record.own_folder).parent, ignore_errors=True)

    def remove_others(self, kept: Collection[str]) -> None:
        """Remove the folders of branches that are gone. `kept`: the ids of kernels that may have one."""
        for folder in self._folders.glob("*"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def compare(
        self,
        first: Manifest | KernelRecord,
        second: Manifest | KernelRecord,
        store: LocalStore,
        settings: EngineSettings,
    ) -> FolderComparison:
        """Compare the files of two moments, each a snapshot, or a kernel: its files now."""
        from .. import late_modules  # noqa: PLC0415 - late: see there

        with (
            self._files(first, store, settings) as one,
            self._files(second, store, settings) as other,
        ):
            if one is None or other is None:
                return FolderComparison(known=False)
            return late_modules.folder_changes.compared(one, other, store)

    @contextmanager
    def _files(
        self, moment: Manifest | KernelRecord, store: LocalStore, settings: EngineSettings
    ) -> Iterator[StoredFolder | None]:
        from .. import late_modules  # noqa: PLC0415 - late: see there

        if isinstance(moment, Manifest):
            is_here = store.stubs.find(moment.info.snapshot_id) is None
            has_files = moment.folder is not None and is_here
            yield late_modules.stored_folders.stored_folder(moment, store) if has_files else None
            return
        spec = moment.spec
        saving: FolderSave = late_modules.folder_saves.FolderSave(
            _folder_of(moment), spec.cwd, spec.working_folder, store, settings
        )
        with saving.begun(Progress()):
            yield saving.stored() if saving.is_saved else None

    @staticmethod
    def _is_unfinished(record: KernelRecord) -> bool:
        return bool(record.restoring) and (_folder_of(record) / record.restoring).is_dir()


def new_restore() -> str:
    """Return a new name for the directory with the former and new files of a resume."""
    return STAGING + uuid.uuid4().hex[:12]


def _folder_of(record: KernelRecord) -> Path:
    """Return the working folder of a kernel as this daemon sees it."""
    return Path(record.own_folder or record.spec.cwd)
