"""The rules by which files are left out of a working folder: those of .gitignore files, and the user's own in the same form."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pathspec import GitIgnoreSpec

from ...linux.beneath import Beneath

#: The file with rules of a directory, and how many bytes of it are read.
NAME, _MAX_BYTES = ".gitignore", 1 << 20


class _Rules(NamedTuple):
    """The rules of one directory, whose path ends in `/` unless it is empty."""

    directory: str
    spec: GitIgnoreSpec


class IgnoreRules:
    """The rules that apply in a directory: its own after those above it, the last that matches decides."""

    def __init__(self, rules: Sequence[_Rules] = ()) -> None:
        self._rules = rules

    @classmethod
    def of_user(cls, patterns: Sequence[str]) -> IgnoreRules:
        """Return rules for the whole folder; a pattern that means nothing is left out."""
        return cls([_Rules("", _spec(patterns))] if patterns else [])

    def within(self, beneath: Beneath, directory: str) -> IgnoreRules:
        """Return the rules in a directory (`` or with `/` at its end) that has a file with rules."""
        try:
            descriptor = beneath.open(directory + NAME)
        except OSError:  # it is a link, or may not be read
            return self
        try:
            text = os.read(descriptor, _MAX_BYTES).decode(errors="replace")
        finally:
            os.close(descriptor)
        return IgnoreRules([*self._rules, _Rules(directory, _spec(text.splitlines()))])

    def ignore(self, path: str, *, is_directory: bool) -> bool:
        """Return whether the rules leave a path out."""
        name = f"{path}/" if is_directory else path
        for rules in reversed(self._rules):
            decided = rules.spec.check_file(name[len(rules.directory) :]).include
            if decided is not None:
                return decided
        return False


def is_home(folder: Path) -> bool:
    """Return whether a folder is the user's home directory or contains it."""
    home = Path.home()
    return any(folder.resolve() in {one, *one.parents} for one in (home, home.resolve()))


def _spec(lines: Sequence[str]) -> GitIgnoreSpec:
    valid = []
    for line in lines:
        with suppress(ValueError):  # git, too, passes over what it does not understand
            GitIgnoreSpec.from_lines([line])
            valid.append(line)
    return GitIgnoreSpec.from_lines(valid)
