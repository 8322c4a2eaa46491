"""A walk through a working folder: the files, directories and links in it that belong to versions, and what is left out.

Left out are notebooks, which pages may have open, their checkpoints, `.git` unless it is asked for, what the rules of .gitignore files
name, files of other users, other file systems, and everything that is neither file, directory nor link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from typing import NamedTuple

from ...linux.beneath import Beneath
from ...wire.folder_records import STAGING, FolderRules
from .ignore_rules import NAME, IgnoreRules

#: The names of files and directories that are never in a version, and the ends of such names.
_NEVER, _NEVER_ENDS = frozenset({".ipynb_checkpoints"}), (".ipynb",)
_GIT = ".git"

#: Kinds of entries.
FILE, DIRECTORY, SYMLINK = "file", "directory", "symlink"
_KINDS = {stat.S_IFREG: FILE, stat.S_IFDIR: DIRECTORY, stat.S_IFLNK: SYMLINK}


class FolderNotSaved(Exception):  # noqa: N818 - a save goes on without the files
    """The working folder is not saved; the text is a sentence for users."""


class Present(NamedTuple):
    """What is at a path of the folder. `target`: of a link."""

    kind: str
    status: os.stat_result
    target: str = ""


class Walked(NamedTuple):
    """What is in a folder, by path, parents first, and the paths that were left out."""

    found: dict[str, Present]
    left_out: list[str]


def walk(
    beneath: Beneath, rules: FolderRules, excluded: Collection[tuple[int, int]] = ()
) -> Walked:
    """Return what is in the folder. Raises FolderNotSaved, and OSError if the folder itself cannot be read.

    `excluded`: device and inode of directories that are left out, as the store is.
    """
    return _Walk(beneath, rules, excluded).run()


def is_never_saved(name: str, *, with_git: bool) -> bool:
    """Return whether a name is one that no version has, whatever the rules are."""
    if name == _GIT:
        return not with_git
    return name in _NEVER or name.endswith(_NEVER_ENDS) or name.startswith(STAGING)


class _Walk:
    """One walk, and what it has found so far."""

    def __init__(
        self, beneath: Beneath, rules: FolderRules, excluded: Collection[tuple[int, int]]
    ) -> None:
        self._beneath, self._rules, self._excluded = beneath, rules, excluded
        self._device, self._user = os.fstat(beneath.descriptor).st_dev, os.geteuid()
        self._found: dict[str, Present] = {}
        self._left_out: list[str] = []
        self._bytes = 0

    def run(self) -> Walked:
        self._look(self._beneath.descriptor, "", IgnoreRules.of_user(self._rules.ignored))
        return Walked(self._found, self._left_out)

    def _look(self, descriptor: int, directory: str, rules: IgnoreRules) -> None:
        """Add what is in a directory, whose path is empty or ends in `/`."""
        with os.scandir(descriptor) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        if any(entry.name == NAME for entry in listed):
            rules = rules.within(self._beneath, directory)
        for entry in listed:
            try:
                path = directory + entry.name
                path.encode()
                status = entry.stat(follow_symlinks=False)
            except (
                FileNotFoundError,
                UnicodeEncodeError,
            ):  # it is just gone, or cannot be recorded
                continue
            kind = self._kind(entry.name, path, status, rules)
            if not kind:
                self._left_out.append(path)
                continue
            self._add(entry.name, path, kind, status, descriptor)
            if kind == DIRECTORY:
                self._descend(entry.name, path, descriptor, rules)

    def _kind(self, name: str, path: str, status: os.stat_result, rules: IgnoreRules) -> str:
        """Return the kind of an entry; empty if it is left out."""
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "")
        is_ours = status.st_uid == self._user and status.st_dev == self._device
        if (
            not is_ours
            or is_never_saved(name, with_git=self._rules.with_git)
            or (status.st_dev, status.st_ino) in self._excluded
            or rules.ignore(path, is_directory=kind == DIRECTORY)
        ):
            return ""
        return kind

    def _add(
        self, name: str, path: str, kind: str, status: os.stat_result, descriptor: int
    ) -> None:
        target = ""
        if kind == SYMLINK:
            try:
                target = os.readlink(name, dir_fd=descriptor)
                target.encode()
            except (OSError, UnicodeEncodeError):
                self._left_out.append(path)
                return
        self._found[path] = Present(kind, status, target)
        self._bytes += status.st_size if kind == FILE else 0
        if len(self._found) > self._rules.max_files or self._bytes > self._rules.max_bytes:
            raise FolderNotSaved(
                f"The working folder has more than {self._rules.max_files:,} files or {self._rules.max_bytes:,} bytes,"
                " so its files are not in the snapshot. Name what is not needed in a .gitignore there, or raise"
                " c.GpuCkptProvisioner.working_folder_bytes or working_folder_files."
            )

    def _descend(self, name: str, path: str, above: int, rules: IgnoreRules) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=above)
        except OSError:  # it may not be read, or is just gone
            del self._found[path]
            self._left_out.append(path)
            return
        try:
            self._look(descriptor, f"{path}/", rules)
        finally:
            os.close(descriptor)
