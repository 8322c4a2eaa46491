"""The steps from the files that are in a working folder to those that are wanted: only what differs is written."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

from ...images.chunking import is_zero
from ...linux.beneath import Beneath
from ...store.codecs import digest_of
from ...wire.folder_records import FolderEntry, FolderStep
from .folder_walks import DIRECTORY, FILE
from .stored_folders import StoredFile, StoredFolder

#: How many zeros are compared at a time.
_PIECE_BYTES = 1 << 20


class FolderPlan(NamedTuple):
    """The steps, in their order, the files that they put there, by number, and sentences for users."""

    steps: list[FolderStep]
    files: dict[int, StoredFile]
    warnings: list[str]


def plan(beneath: Beneath, now: StoredFolder, wanted: StoredFolder) -> FolderPlan:
    """Return the steps from `now` to `wanted`. What a version leaves out stays as it is."""
    return _Planning(beneath, now, wanted).run()


class _Planning:
    """One plan in the making."""

    def __init__(self, beneath: Beneath, now: StoredFolder, wanted: StoredFolder) -> None:
        self._beneath, self._now, self._wanted = beneath, now.files, wanted.files
        self._left_out = {*now.left_out, *wanted.left_out}
        self._numbers = 0
        self._steps: dict[str, list[FolderStep]] = {
            kind: [] for kind in ("take", "remove", "make", "put", "set")
        }
        self._files: dict[int, StoredFile] = {}
        self._warnings: list[str] = []

    def run(self) -> FolderPlan:
        blocked = self._blocked()
        for path in sorted(self._now.keys() | self._wanted.keys()):
            if not _is_below(path, blocked):
                self._compare(path, self._now.get(path), self._wanted.get(path))
        self._steps["remove"].reverse()  # what is in a directory comes before it
        steps = [step for kind in self._steps.values() for step in kind]
        return FolderPlan(steps, self._files, self._warnings)

    def _blocked(self) -> set[str]:
        """Return wanted paths at which something is that is left out now, so that it must stay, and tell of them."""
        found = set()
        for path in self._wanted.keys() - self._now.keys():
            if _is_below(path, self._left_out) and self._beneath.status(path) is not None:
                found.add(path)
                self._warnings.append(
                    f"{path} stays as it is, because the rules of now leave it out of the folder."
                )
        return found

    def _compare(self, path: str, now: StoredFile | None, wanted: StoredFile | None) -> None:
        if now is not None and wanted is not None and now.entry.kind == wanted.entry.kind:
            if now.entry.kind == DIRECTORY or self._has_content(now, wanted):
                self._set(now.entry, wanted.entry)
                return
        elif wanted is None and _is_below(path, self._left_out):
            return
        if now is not None:
            self._add("remove" if now.entry.kind == DIRECTORY else "take", now.entry)
        if wanted is not None:
            self._add("make" if wanted.entry.kind == DIRECTORY else "put", wanted.entry)
            if wanted.entry.kind != DIRECTORY:
                self._files[self._numbers] = wanted

    def _add(self, kind: str, entry: FolderEntry) -> None:
        self._numbers += 1
        step = FolderStep(kind, entry.path, self._numbers, mode=entry.mode, mtime_ns=entry.mtime_ns)
        self._steps[kind].append(step)

    def _set(self, now: FolderEntry, wanted: FolderEntry) -> None:
        if (now.mode, now.mtime_ns) != (wanted.mode, wanted.mtime_ns) and not now.target:
            self._steps["set"].append(
                FolderStep("set", now.path, 0, now.mode, now.mtime_ns, wanted.mode, wanted.mtime_ns)
            )

    def _has_content(self, now: StoredFile, wanted: StoredFile) -> bool:
        mine, other = now.entry, wanted.entry
        if mine.kind != FILE:
            return mine.target == other.target
        if mine.length != other.length:
            return False
        # Equal content may be cut at other places.
        return now.has_chunks_of(wanted) or _file_has(self._beneath, wanted)


def _is_below(path: str, folders: Collection[str] | Mapping[str, object]) -> bool:
    """Return whether a path is one of these or lies below one."""
    names = path.split("/")
    return any("/".join(names[:count]) in folders for count in range(1, len(names) + 1))


def _file_has(beneath: Beneath, wanted: StoredFile) -> bool:
    """Return whether the file at a path has this content. One that cannot be read has another."""
    with suppress(OSError):
        descriptor = beneath.open(wanted.entry.path)
        try:
            return all(
                _has_chunk(descriptor, chunk.digest, chunk.length) for chunk in wanted.chunks
            )
        finally:
            os.close(descriptor)
    return False


def _has_chunk(descriptor: int, digest: bytes, length: int) -> bool:
    """Return whether the next bytes of a file are those of a chunk."""
    if digest:
        return digest_of(memoryview(os.read(descriptor, length))) == digest
    while length:
        piece = os.read(descriptor, min(length, _PIECE_BYTES))
        if not piece or not is_zero(memoryview(piece)):
            return False
        length -= len(piece)
    return True
