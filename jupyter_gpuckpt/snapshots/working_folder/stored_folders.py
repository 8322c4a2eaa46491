"""The files of a working folder as a snapshot has them: the table of entries, and each file's chunks in the stream of all content.

Snapshots from archives and remotes may be hostile, so a table is checked as a whole before anything is done with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ...errors import ManifestInvalid
from ...images.unpack import read_stream
from ...store.local import LocalStore
from ...wire import decoding
from ...wire.folder_records import CONTENT, TABLE, FolderEntry, FolderTable
from ...wire.manifest_records import Chunk, Manifest, Stream
from .folder_walks import DIRECTORY, FILE, SYMLINK, is_never_saved

#: The most bytes of a table, of a name and of a symlink's target.
_MAX_TABLE, _MAX_NAME, _MAX_TARGET = 64 << 20, 255, 4095
_MAX_TIME_NS = (1 << 63) - 1


class StoredFile(NamedTuple):
    """An entry, and of a file the chunks of its content."""

    entry: FolderEntry
    chunks: Sequence[Chunk]

    @property
    def stream(self) -> Stream:
        """The content by itself."""
        return Stream(name_of(self.entry.path), self.entry.length, list(self.chunks))

    def has_chunks_of(self, other: StoredFile) -> bool:
        """Return whether the content is cut into the same chunks. Otherwise it may be equal all the same."""
        return _digests(self) == _digests(other)


class StoredFolder(NamedTuple):
    """The files of a snapshot, by path, parents first. `boot_id`: of the machine's start in which `FolderEntry.seen` means something."""

    files: Mapping[str, StoredFile]
    left_out: Sequence[str]
    boot_id: str = ""


def _digests(file: StoredFile) -> list[tuple[bytes, int]]:
    return [(chunk.digest, chunk.length) for chunk in file.chunks]


def name_of(path: str) -> str:
    """Return the name of the stream of one file's content, as sources have it."""
    return f"{CONTENT}/{path}"


def joined(files: Mapping[str, StoredFile], left_out: Sequence[str]) -> tuple[Stream, bytes]:
    """Return the stream of the content of all files, and the encoded table."""
    ordered = [files[path] for path in sorted(files, key=_order)]
    chunks = [chunk for one in ordered for chunk in one.chunks]
    stream = Stream(CONTENT, sum(chunk.length for chunk in chunks), chunks)
    table = FolderTable([one.entry for one in ordered], list(left_out))
    return stream, msgspec.msgpack.encode(table)


def stored_folder(manifest: Manifest, store: LocalStore, *, with_git: bool = True) -> StoredFolder:
    """Return the files of a snapshot that has some. Raises ManifestInvalid for a table that a save cannot have made, ObjectCorrupt."""
    table, content = manifest.stream(TABLE), manifest.stream(CONTENT)
    if table.length > _MAX_TABLE:
        raise _invalid(manifest, "its table is too long")
    try:
        found = decoding.from_msgpack(read_stream(table, store), FolderTable)
    except msgspec.DecodeError as error:
        raise _invalid(manifest, str(error)) from error
    if problem := next(_problems(found, with_git=with_git), ""):
        raise _invalid(manifest, problem)
    chunks, files = iter(content.chunks), {}
    for entry in found.entries:
        mine, left = [], entry.length
        while left > 0:
            chunk = next(chunks, None)
            if chunk is None or chunk.length > left:
                raise _invalid(manifest, f"the content of {entry.path!r} is not in it")
            mine.append(chunk)
            left -= chunk.length
        files[entry.path] = StoredFile(entry, mine)
    if next(chunks, None) is not None:
        raise _invalid(manifest, "it has content of no file")
    return StoredFolder(files, found.left_out, manifest.host.boot_id)


def _order(path: str) -> list[str]:
    """Return a key by which directories come before what is in them."""
    return path.split("/")


def _problems(table: FolderTable, *, with_git: bool) -> Iterator[str]:
    kinds: dict[str, str] = {"": DIRECTORY}
    for entry in table.entries:
        path = entry.path
        names = path.split("/")
        if not all(map(_is_name, names)):
            yield f"{path!r} is not a path in a folder"
        elif any(is_never_saved(name, with_git=with_git) for name in names):
            yield f"{path!r} is not saved with folders"
        elif path in kinds:
            yield f"{path!r} is in it twice"
        elif kinds.get("/".join(names[:-1])) != DIRECTORY:
            yield f"{path!r} does not lie in a directory"
        elif not _may_be(entry):
            yield f"{path!r} is not a file, directory or link that can be saved"
        kinds[path] = entry.kind
    if not all(all(map(_is_name, path.split("/"))) for path in table.left_out):
        yield "what it leaves out is not in the folder"


def _is_name(name: str) -> bool:
    return name not in {"", ".", ".."} and "\0" not in name and len(name.encode()) <= _MAX_NAME


def _may_be(entry: FolderEntry) -> bool:
    return (
        entry.kind in {FILE, DIRECTORY, SYMLINK}
        and not entry.mode & ~0o777
        and abs(entry.mtime_ns) <= _MAX_TIME_NS
        and entry.length >= 0
        and (entry.kind == FILE or not entry.length)
        and bool(entry.target) == (entry.kind == SYMLINK)
        and "\0" not in entry.target
        and len(entry.target.encode()) <= _MAX_TARGET
    )


def _invalid(manifest: Manifest, problem: str) -> ManifestInvalid:
    return ManifestInvalid(
        f"The files of the working folder in snapshot {manifest.info.snapshot_id} are not valid: {problem}.",
        hint="Nothing was changed. Resume the snapshot without its files.",
    )
