"""The records of a kernel's working folder in its snapshots: what is saved of it, and its table of files. Lengths are in bytes."""

from __future__ import annotations

import msgspec

#: The names of the streams with the content of all files, one after the other, and with the table of them.
CONTENT, TABLE = "folder", "folder-table"
#: The beginning of the names of directories in which files are prepared and kept while they are put in place.
STAGING = ".gpuckpt-files-"


class FolderRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What of a kernel's working folder is in its snapshots. `is_saved`: in all of them, else only in those that tools take."""

    is_saved: bool = False
    max_bytes: int = 1 << 30
    max_files: int = 20_000
    #: Patterns of files that are left out, as in a .gitignore, besides those of the folder's own ones.
    ignored: list[str] = []
    #: Whether `.git` is in it.
    with_git: bool = False


class SavedFolder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a manifest about the working folder. `path`: the folder's, as the kernel sees it.

    `base`: the snapshot with whose files the folder began that a branch has for itself; empty: it is not a branch's.
    """

    path: str
    files: int
    bytes: int
    base: str = ""


class FolderEntry(msgspec.Struct, frozen=True, array_like=True):
    """A file, directory or symlink (`kind`) of a working folder, by its path in the folder.

    `seen`: device, inode and change time in nanoseconds by which it is known to be unchanged on the same start of the same machine;
    empty: it may have changed unseen. Of a symlink only `target` is kept.
    """

    path: str
    kind: str
    mode: int = 0o600
    mtime_ns: int = 0
    length: int = 0
    target: str = ""
    seen: list[int] = []


class FolderTable(msgspec.Struct, frozen=True):
    """The content of a stream: all entries, by path, and the paths of what was left out, a whole directory by its own path."""

    entries: list[FolderEntry]
    left_out: list[str] = []


class FolderStep(msgspec.Struct, frozen=True, array_like=True):
    """A step by which files are put in place. `number`: of the file that is taken away or put there.

    `kind`: take (a file away), remove or make (a directory), put (a file there), set (mode and time of what stays).
    """

    kind: str
    path: str
    number: int = 0
    former_mode: int = 0
    former_mtime_ns: int = 0
    mode: int = 0
    mtime_ns: int = 0


class FolderJournal(msgspec.Struct, frozen=True):
    """The file that is written before the first step: what is to be undone if the steps are interrupted."""

    steps: list[FolderStep]


class ChangedFile(msgspec.Struct, frozen=True):
    """A file that differs between two moments. `change`: added, removed or changed. `diff`: of texts, maybe cut; empty for others."""

    path: str
    change: str
    diff: str = ""


class FolderComparison(msgspec.Struct, frozen=True):
    """GET /files: the files that differ between two moments. `left`: how many more there are. `known`: both moments have files."""

    files: list[ChangedFile] = []
    left: int = 0
    known: bool = True
