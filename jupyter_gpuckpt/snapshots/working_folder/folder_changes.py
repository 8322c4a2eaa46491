"""The files that differ between two moments of a working folder, with the differences of texts."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from msgspec.structs import replace

from ...images.unpack import read_stream
from ...store.local import LocalStore
from ...wire.folder_records import ChangedFile, FolderComparison
from .folder_walks import DIRECTORY, FILE
from .stored_folders import StoredFile, StoredFolder

#: The most files that are named, bytes of a file whose text is compared, and characters of one difference and of all together.
_NAMED, _COMPARED_BYTES, _DIFF, _ALL_DIFFS = 100, 256 << 10, 3000, 20_000


def compared(first: StoredFolder, second: StoredFolder, store: LocalStore) -> FolderComparison:
    """Return what differs in the second folder from the first. Times and modes do not count."""
    paths = [
        path
        for path in sorted(first.files.keys() | second.files.keys())
        if _differs(first.files.get(path), second.files.get(path))
    ]
    found, left = [], _ALL_DIFFS
    for path in paths[:_NAMED]:
        one = _changed(path, first.files.get(path), second.files.get(path), store)
        if len(one.diff) > left:
            one = replace(one, diff=one.diff[:left])
        left -= len(one.diff)
        found.append(one)
    return FolderComparison(found, len(paths) - len(found))


def _differs(then: StoredFile | None, now: StoredFile | None) -> bool:
    if then is None or now is None:
        found = then or now
        return found is not None and found.entry.kind != DIRECTORY
    mine, other = then.entry, now.entry
    is_same = (mine.kind, mine.target, mine.length) == (other.kind, other.target, other.length)
    return not (is_same and then.has_chunks_of(now))


def _changed(
    path: str, then: StoredFile | None, now: StoredFile | None, store: LocalStore
) -> ChangedFile:
    if then is None:
        return ChangedFile(path, "added")
    if now is None:
        return ChangedFile(path, "removed")
    before, after = _text(then, store), _text(now, store)
    if before is None or after is None:
        return ChangedFile(path, "changed")
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return ChangedFile(path, "changed", "\n".join(_cut(lines)))


def _cut(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines without the two with names, up to the most characters of a difference."""
    length = 0
    for number, line in enumerate(lines):
        length += len(line) + 1
        if length > _DIFF:
            yield "..."
            return
        if number > 1:
            yield line


def _text(file: StoredFile, store: LocalStore) -> str | None:
    """Return the content of a text file; None if it is none, or long."""
    if file.entry.kind != FILE or file.entry.length > _COMPARED_BYTES:
        return None
    data = read_stream(file.stream, store)
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None
