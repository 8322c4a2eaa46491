"""The files of a branch put together with those of the kernel that it was made from, by the files with which the branch began."""

from __future__ import annotations

from ...errors import KernelStateConflict
from ...wire.plurals import some
from .folder_walks import DIRECTORY
from .stored_folders import StoredFile, StoredFolder


def merged(base: StoredFolder, ours: StoredFolder, theirs: StoredFolder) -> StoredFolder:
    """Return our files with what was changed in theirs since `base`. Raises KernelStateConflict, which names what both have changed."""
    files: dict[str, StoredFile] = {}
    conflicts = []
    for path in sorted(base.files.keys() | ours.files.keys() | theirs.files.keys()):
        then, mine, other = (one.files.get(path) for one in (base, ours, theirs))
        if _is_same(other, then) or _is_same(other, mine):
            chosen = mine
        elif _is_same(mine, then):
            chosen = other
        else:
            conflicts.append(path)
            continue
        if chosen is not None:
            files[path] = chosen
    for path in list(files):
        conflicts += _add_directories(path, files, (ours, theirs))
    if conflicts:
        raise KernelStateConflict(
            f"Both the notebook's session and the branch have changed {some(sorted(set(conflicts)))}.",
            hint='Nothing was changed. Take the branch\'s files (files="restore") or leave the folder as it is (files="").',
            details="\n".join(sorted(set(conflicts))),
        )
    ordered = dict(sorted(files.items()))
    return StoredFolder(ordered, [*ours.left_out, *theirs.left_out], ours.boot_id)


def _is_same(one: StoredFile | None, other: StoredFile | None) -> bool:
    """Return whether both are the same file; times do not count."""
    if one is None or other is None:
        return one is other
    mine, yours = one.entry, other.entry
    return (mine.kind, mine.mode, mine.target, mine.length) == (
        yours.kind,
        yours.mode,
        yours.target,
        yours.length,
    ) and one.has_chunks_of(other)


def _add_directories(
    path: str, files: dict[str, StoredFile], sides: tuple[StoredFolder, StoredFolder]
) -> list[str]:
    """Add the directories above a path that one side has removed; return those in whose place a file is."""
    names = path.split("/")
    for count in range(1, len(names)):
        above = "/".join(names[:count])
        if above not in files:
            found = [side.files[above] for side in sides if above in side.files]
            directory = next((one for one in found if one.entry.kind == DIRECTORY), None)
            if directory is None:
                return [path]
            files[above] = directory
        elif files[above].entry.kind != DIRECTORY:
            return [above]
    return []
