"""Reading and writing of manifest files: magic, format version, digest of the body, body (the manifest as msgpack, compressed).

The header is the same in every later version, so that any reader can report the version of a file that it cannot read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterable
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

import msgspec
import zstandard

from ..errors import FormatTooNew, ManifestInvalid, SnapshotNotFound
from ..linux.disk_reserve import with_room
from ..wire import decoding, ids
from ..wire.chunk_parts import part_digests
from ..wire.manifest_records import (
    FORMAT_VERSION,
    Chunk,
    Manifest,
    SnapshotInfo,
    Stream,
)
from ..wire.snapshot_order import MAX_ARRIVING_NUMBER
from . import manifest_bounds, manifest_checks
from .codecs import DIGEST_BYTES, digest_of
from .packs import sync_directory

SUFFIX = ".manifest"
#: The suffix of a file that is being written; one that exists when a store opens is incomplete.
TEMPORARY = ".tmp"

_HEADER = struct.Struct(f"<8sI{DIGEST_BYTES}s")
_MAGIC = b"GPUCKPT\n"
_digest, _parts = attrgetter("digest"), attrgetter("parts")
_LEVEL = 3


class Listed(msgspec.Struct):
    """The part of a manifest that lists show; decoding it skips the rest."""

    info: SnapshotInfo


class References(msgspec.Struct):
    """The part of a manifest with the chunks that the snapshot needs."""

    info: SnapshotInfo
    streams: list[Stream]

    def digests(self, names: Collection[str] | None = None) -> set[bytes]:
        """Return the digests of all stored chunks, sources of parts included, that the snapshot or its streams `names` need."""
        return digests_of(
            [stream for stream in self.streams if names is None or stream.name in names]
        )


def digests_of(streams: Iterable[Stream]) -> set[bytes]:
    """Return the digests of the stored chunks of which streams consist, sources of parts included."""
    return set().union(*(stored_digests(stream.chunks) for stream in streams))


def stored_digests(chunks: Collection[Chunk]) -> set[bytes]:
    """Return the digests of the stored chunks of which these consist, sources of parts included."""
    if not any(map(_parts, chunks)):
        found = set(map(_digest, chunks))
    else:
        found = {chunk.digest for chunk in chunks if not chunk.parts}
        found.update(*(part_digests(chunk.parts) for chunk in chunks if chunk.parts))
    found.discard(b"")
    return found


_Part = TypeVar("_Part", Manifest, Listed, References)


def path_of(directory: Path, snapshot_id: str) -> Path:
    """Return the path of this snapshot's manifest. Raises SnapshotNotFound for an invalid id, which may come from a URL."""
    ids.require({"snapshot_id": snapshot_id})
    return directory / (snapshot_id + SUFFIX)


def stage(directory: Path, manifest: Manifest) -> tuple[Path, Manifest]:
    """Write the manifest under a temporary name; return that file and the manifest as it was read back from it.

    The file is durable on return; `commit` renames it. The caller checks whether the snapshot is sound (`snapshots.rehearsal`).
    Raises OSError, ManifestInvalid; then nothing is left.
    """
    path = path_of(directory, manifest.info.snapshot_id)
    temporary = write_temporary(path, encoded(manifest))
    try:
        return temporary, _decoded(path, temporary.read_bytes(), Manifest)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def encoded(manifest: Manifest) -> bytes:
    """Return the content of a manifest's file."""
    body = zstandard.ZstdCompressor(level=_LEVEL).compress(msgspec.msgpack.encode(manifest))
    return _HEADER.pack(_MAGIC, FORMAT_VERSION, digest_of(body)) + body


def replace_file(path: Path, content: bytes) -> None:
    """Replace a small file, for which a full disk has room; a power cut leaves its old content or the new one. Raises OSError."""
    commit(with_room(path, lambda: write_temporary(path, content)))


def write_temporary(path: Path, content: bytes) -> Path:
    """Write a temporary file beside `path`, which `commit` renames to `path`. Raises OSError; then nothing is left."""
    temporary = path.with_name(path.name + TEMPORARY)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def commit(temporary: Path) -> None:
    """Rename a file of `write_temporary` to its final name, durably. Raises OSError."""
    try:
        temporary.rename(temporary.with_name(temporary.name.removesuffix(TEMPORARY)))
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(temporary.parent)


def read(path: Path, kind: type[_Part]) -> _Part:
    """Return the manifest in `path`, or the part of it that `kind` names; the whole file is verified either way.

    Raises SnapshotNotFound, ManifestInvalid (naming file and snapshot), FormatTooNew, OSError.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise not_found(path.name.removesuffix(SUFFIX)) from error
    return _parsed(path, data, kind)


def not_found(snapshot_id: str) -> SnapshotNotFound:
    """Return the error for a snapshot that does not exist."""
    return SnapshotNotFound(
        f"There is no snapshot {snapshot_id}.",
        hint="It may have been deleted; list the snapshots again.",
    )


def parse(path: Path, data: bytes, kind: type[_Part]) -> _Part:
    """Parse and verify `data`, which comes from outside, as the content of `path`; return and raise as `read` does."""
    part = _parsed(path, data, kind)
    if part.info.number > MAX_ARRIVING_NUMBER:
        raise _invalid(path, "it contains an invalid number")
    return part


def _parsed(path: Path, data: bytes, kind: type[_Part]) -> _Part:
    part = _decoded(path, data, kind)
    problem = manifest_checks.problem_of_info(part.info)
    if not problem and isinstance(part, Manifest):
        problem = manifest_checks.problem_of(part)
    if problem:
        raise _invalid(path, problem)
    return part


def references(manifest: Manifest) -> set[bytes]:
    """Return the digests of all stored chunks that `manifest` needs."""
    return digests_of(manifest.streams)


def _decoded(path: Path, data: bytes, kind: type[_Part]) -> _Part:
    """Return the decoded content of `path`, without validating it."""
    snapshot_id = path.name.removesuffix(SUFFIX)
    if len(data) < _HEADER.size:
        raise _invalid(path, "it is truncated")
    magic, version, digest = _HEADER.unpack_from(data)
    if magic != _MAGIC or version < 1:
        raise _invalid(path, "it does not begin as a manifest does")
    if version > FORMAT_VERSION:
        raise FormatTooNew(
            f"Snapshot {snapshot_id} has format version {version}; this version of jupyter-gpuckpt reads up to {FORMAT_VERSION}.",
            hint="Upgrade jupyter-gpuckpt.",
        )
    body = memoryview(data)[_HEADER.size :]
    if digest_of(body) != digest:
        raise _invalid(path, "it is truncated or was altered")
    try:
        length = zstandard.frame_content_size(body)
        if length > manifest_bounds.max_bytes(len(body)):
            raise _invalid(path, f"it would be {length:,} bytes long")
        unpacked = zstandard.ZstdDecompressor().decompress(body)
        manifest_bounds.require_bounded(unpacked)
        part = decoding.from_msgpack(unpacked, kind)
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise _invalid(path, f"it cannot be decoded ({error})") from error
    if part.info.snapshot_id != snapshot_id:
        raise _invalid(path, f"it is that of snapshot {part.info.snapshot_id}")
    return part


def _invalid(path: Path, why: str) -> ManifestInvalid:
    return ManifestInvalid(
        f"The manifest of snapshot {path.name.removesuffix(SUFFIX)} is damaged: {why}.",
        hint="Check the disk. The snapshot cannot be resumed; delete it, or put the file back from a backup.",
        details=str(path),
    )
