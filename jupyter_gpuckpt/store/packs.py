"""Pack files: many chunks in one file, append-only while written, immutable after.

    header    magic, version
    record *  magic, codec, stored length, raw length, digest; payload
    index     one entry per record
    trailer   offset of the index, number of entries, digest of the index, magic

A pack describes itself: the catalog can be rebuilt from the indexes alone, and if an index is damaged, from the headers of the
records. All numbers are little-endian. The numbers of codecs are defined in codecs.py.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from ..errors import FormatTooNew, ObjectCorrupt
from ..linux.pwrite import pwrite_all
from ..wire.manifest_records import FORMAT_VERSION
from .codecs import (
    MAX_CHUNK_BYTES,
    CodecError,
    UnknownCodecError,
    decompress,
    digest_of,
    digest_of_stored,
)
from .pack_identity import Identity

SUFFIX = ".pack"
#: The prefix of packs that are being written; a file with it that exists when a store opens is incomplete.
TEMPORARY = "tmp-"

_HEADER = struct.Struct("<8sI4x")
_HEADER_MAGIC = b"GPUCKPK\n"
_RECORD = struct.Struct("<4sB3xII32s")
_RECORD_MAGIC = b"CHNK"
_INDEX = struct.Struct("<32sQIIB7x")
_TRAILER = struct.Struct("<QI4x32s8s")
_TRAILER_MAGIC = b"GPUCKIX\n"

# linux/fs.h
_SYNC_FILE_RANGE_WRITE = 2
#: MADV_POPULATE_READ (asm-generic/mman-common.h, Linux 5.14) fails where an access would raise SIGBUS.
_MADV_POPULATE_READ = 22
# Each record has two pieces, and pwritev takes 1024 (IOV_MAX).
_RECORDS_PER_CALL = 512

#: A row of an index, for numpy.
INDEX_ROW = [
    ("digest", "V32"),
    ("offset", "<u8"),
    ("stored_length", "<u4"),
    ("raw_length", "<u4"),
    ("codec", "u1"),
    ("", "V7"),
]
HEADER_BYTES = _HEADER.size
RECORD_BYTES = _RECORD.size


class Entry(NamedTuple):
    """A chunk in a pack. `offset` is that of its payload; its record begins RECORD_BYTES before it."""

    digest: bytes
    offset: int
    stored_length: int
    raw_length: int
    codec: int


def new_name() -> str:
    """Return a name for a new pack; names sort by age, even in a copy of the store whose files have other times."""
    return f"{time.time_ns():016x}-{token_hex(8)}"


class PackFile:
    """A pack that is being written. The writer's lock guards `reserve` and the counts; `write` is thread-safe.

    Threads write at the same time, each where it reserved room, so an incomplete pack can have holes: the index lists complete
    records only.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self._final = directory / (name + SUFFIX)
        self._path = directory / (TEMPORARY + name + SUFFIX)
        self._end = HEADER_BYTES
        self.entries: list[Entry] = []
        #: The number of threads that are writing.
        self.in_flight = 0
        self._descriptor = os.open(
            self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        try:
            pwrite_all(self._descriptor, file_header(), 0)
        except OSError:
            self.discard()
            raise

    @property
    def length(self) -> int:
        """The number of bytes reserved so far."""
        return self._end

    def reserve(self, digest: bytes, stored_length: int, raw_length: int, codec: int) -> Entry:
        """Reserve room for a record of this payload and return its entry."""
        entry = Entry(digest, self._end + RECORD_BYTES, stored_length, raw_length, codec)
        self._end = entry.offset + stored_length
        return entry

    def write(self, entries: Sequence[Entry], payloads: Sequence[bytes | memoryview]) -> None:
        """Write records that were reserved one after the other. Raises OSError."""
        for first in range(0, len(entries), _RECORDS_PER_CALL):
            group = entries[first : first + _RECORDS_PER_CALL]
            pieces: list[bytes | memoryview] = []
            for entry, payload in zip(group, payloads[first:], strict=False):
                pieces += (record_header(entry), payload)
            start, end = group[0].offset - RECORD_BYTES, group[-1].offset + group[-1].stored_length
            written = os.pwritev(self._descriptor, pieces, start)
            if written < end - start:
                # A nearly full disk accepts only a part of the bytes.
                pwrite_all(self._descriptor, b"".join(pieces)[written:], start + written)
            _write_back(self._descriptor, start, end - start)

    def seal(self) -> Identity:
        """Write the index, sync the file, rename it to its final name; return its identity. Raises OSError."""
        entries = sorted(self.entries, key=lambda entry: entry.offset)
        pwrite_all(self._descriptor, file_end(entries, self._end), self._end)
        os.fsync(self._descriptor)
        self._path = self._path.rename(self._final)
        sync_directory(self._path.parent)
        self.close()
        # Renaming changes the times of a file, and on network file systems so does closing it.
        return Identity.of(self._path.stat())

    def discard(self) -> None:
        """Delete the file, sealed or not."""
        self.close()
        with suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Close the descriptor; may be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_index(path: Path) -> list[Entry]:
    """Return the entries of a sealed pack in the order of their offsets. Raises what `index_of` raises."""
    return [Entry(*fields) for fields in _INDEX.iter_unpack(index_of(path))]


def index_of(path: Path) -> bytes:
    """Return the index of a sealed pack, verified: a row of `INDEX_ROW` for each entry.

    Raises ObjectCorrupt when the pack is truncated or its index altered, FormatTooNew, OSError.
    """
    with path.open("rb") as file:
        check_header(path, file.read(HEADER_BYTES))
        length = os.fstat(file.fileno()).st_size
        if length < HEADER_BYTES + _TRAILER.size:
            raise _damaged(path, "it is truncated")
        file.seek(length - _TRAILER.size)
        start, count, digest, magic = _TRAILER.unpack(file.read(_TRAILER.size))
        if magic != _TRAILER_MAGIC or start + count * _INDEX.size + _TRAILER.size != length:
            raise _damaged(path, "its trailer is missing or altered")
        file.seek(start)
        index = file.read(count * _INDEX.size)
    if digest_of(index) != digest:
        raise _damaged(path, "its index was altered")
    import numpy as np  # noqa: PLC0415 - slow to import, and few users of this module read an index

    rows = np.frombuffer(index, INDEX_ROW)
    offsets, most = rows["offset"], np.uint64(start)
    if len(rows) and not (
        offsets.min() >= HEADER_BYTES + RECORD_BYTES
        and offsets.max() <= most
        and (rows["stored_length"] <= most - offsets).all()
        and rows["raw_length"].max() <= MAX_CHUNK_BYTES
    ):
        raise _damaged(path, "its index points outside its records")
    return index


def scan(path: Path) -> Iterator[Entry]:
    """Yield the entries of a pack whose index cannot be used, from the headers of its records; every payload is verified.

    The scan ends at the first invalid header. Raises FormatTooNew, OSError.
    """
    with path.open("rb") as file:
        with suppress(ObjectCorrupt):  # the file's header may be the damaged part
            check_header(path, file.read(HEADER_BYTES))
        offset = HEADER_BYTES + RECORD_BYTES
        file.seek(HEADER_BYTES)
        while len(header := file.read(RECORD_BYTES)) == RECORD_BYTES:
            entry = parse_record_header(header, offset - RECORD_BYTES)
            if entry is None or entry.stored_length > MAX_CHUNK_BYTES:
                return
            payload = file.read(entry.stored_length)
            with suppress(CodecError):
                if digest_of_stored(entry.codec, payload, entry.raw_length) == entry.digest:
                    yield entry
            offset += entry.stored_length + RECORD_BYTES


def read_payload(path: Path, entry: Entry) -> memoryview:
    """Return the payload of `entry`, after comparing the record's header. Raises ObjectCorrupt, OSError."""
    record = memoryview(bytearray(RECORD_BYTES + entry.stored_length))
    got = read_span(path, entry.offset - RECORD_BYTES, record)
    return payload_in(path, record[:got], 0, entry)


def payload_in(path: Path, records: memoryview, start: int, entry: Entry) -> memoryview:
    """Return the payload of `entry` from bytes of a pack; its record begins at `start` of `records`. Raises ObjectCorrupt."""
    payload = records[start + RECORD_BYTES : start + RECORD_BYTES + entry.stored_length]
    header = records[start : start + RECORD_BYTES]
    if len(payload) != entry.stored_length or header != record_header(entry):
        raise damaged_chunk(path, entry.digest, "its record is missing, truncated or altered")
    return payload


def read_span(path: Path, offset: int, into: memoryview) -> int:
    """Fill `into` from `offset` of a pack; return the number of bytes read, fewer if the pack ends or is gone. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    done = 0
    try:
        while done < len(into) and (got := os.preadv(descriptor, [into[done:]], offset + done)):
            done += got
    finally:
        os.close(descriptor)
    return done


def map_span(path: Path, start: int, end: int) -> memoryview | None:
    """Map the bytes from `start` to `end` of a pack; return None if that fails; `read_span` then finds the reason.

    Writing to the memory does not change the file. If the file is truncated or becomes unreadable later, an access raises SIGBUS, so
    use it only in processes that may die.
    """
    begin = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    try:
        with path.open("rb", buffering=0) as file:
            found = mmap.mmap(file.fileno(), end - begin, access=mmap.ACCESS_COPY, offset=begin)
        # The first call starts reading the whole range, the second waits for it.
        found.madvise(mmap.MADV_WILLNEED)
        found.madvise(_MADV_POPULATE_READ)
    except (OSError, ValueError):
        return None
    return memoryview(found)[start - begin :]


def missing_chunk(root: Path, digest: bytes, *_others: bytes) -> ObjectCorrupt:
    """Return the error for chunks that are not in the store; it names the first."""
    return ObjectCorrupt(
        f"Chunk {digest.hex()[:16]} is not in the store {root}.",
        hint="A pack is missing or damaged; put it back from a backup if there is one.",
        details=digest.hex(),
    )


def damaged_chunk(path: Path, digest: bytes, why: str) -> ObjectCorrupt:
    """Return the error for a chunk that does not match its digest."""
    return ObjectCorrupt(
        f"Chunk {digest.hex()[:16]} in pack {path.name} is damaged: {why}.",
        hint="Check the disk. Snapshots that use this chunk cannot be resumed; the next save stores a new copy of it.",
        details=f"{path}, chunk {digest.hex()}",
    )


def chunk_too_new(digest: bytes, codec: int) -> FormatTooNew:
    """Return the error for a chunk that a newer version compressed."""
    return FormatTooNew(
        f"Chunk {digest.hex()[:16]} was compressed by a newer version of jupyter-gpuckpt (codec {codec}).",
        hint="Upgrade jupyter-gpuckpt.",
    )


def unpacked(
    digest: bytes, codec: int, payload: bytes | memoryview, raw_length: int
) -> tuple[bytes, str]:
    """Return a chunk, decompressed, and why it is damaged; that is empty if it has its digest. Raises FormatTooNew."""
    try:
        data = decompress(codec, payload, raw_length)
    except UnknownCodecError as error:
        raise chunk_too_new(digest, codec) from error
    except CodecError as error:
        return b"", str(error)
    return data, "" if digest_of(data) == digest else "its bytes were altered"


def sync_directory(path: Path) -> None:
    """Sync the names in a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link(path: Path, to: Path) -> None:
    """Give a sealed pack a second name, or copy it if `to` is on another disk or the disk has no hard links. Raises OSError."""
    with suppress(FileExistsError):
        try:
            os.link(path, to)
        except OSError as error:
            if error.errno not in {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK}:
                raise
            temporary = to.with_name(TEMPORARY + to.name)
            shutil.copyfile(path, temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.rename(to)
    sync_directory(to.parent)


def file_header() -> bytes:
    """Return the header of a pack."""
    return _HEADER.pack(_HEADER_MAGIC, FORMAT_VERSION)


def record_header(entry: Entry) -> bytes:
    """Return the header of the record of this entry."""
    return _RECORD.pack(
        _RECORD_MAGIC, entry.codec, entry.stored_length, entry.raw_length, entry.digest
    )


def parse_record_header(header: bytes, offset: int) -> Entry | None:
    """Return the entry of the record that begins with `header` at `offset`; None if no record begins there."""
    magic, codec, stored_length, raw_length, digest = _RECORD.unpack(header)
    if magic != _RECORD_MAGIC:
        return None
    return Entry(digest, offset + RECORD_BYTES, stored_length, raw_length, codec)


def file_end(entries: Sequence[Entry], start: int) -> bytes:
    """Return index and trailer, which follow the records at `start`; `entries` are in the order of their offsets."""
    index = b"".join(
        _INDEX.pack(e.digest, e.offset, e.stored_length, e.raw_length, e.codec) for e in entries
    )
    return index + _TRAILER.pack(start, len(entries), digest_of(index), _TRAILER_MAGIC)


def check_header(path: Path, header: bytes) -> None:
    """Raise ObjectCorrupt if this is not the header of a pack, FormatTooNew if it is a newer version's."""
    if len(header) < HEADER_BYTES:
        raise _damaged(path, "it is truncated")
    magic, version = _HEADER.unpack(header)
    if magic != _HEADER_MAGIC or version < 1:
        raise _damaged(path, "it does not begin as a pack does")
    if version > FORMAT_VERSION:
        raise FormatTooNew(
            f"Pack {path.name} has format version {version}; this version of jupyter-gpuckpt reads up to {FORMAT_VERSION}.",
            hint="Upgrade jupyter-gpuckpt.",
        )


def _damaged(path: Path, why: str) -> ObjectCorrupt:
    return ObjectCorrupt(f"Pack {path.name} is damaged: {why}.", details=str(path))


def _write_back(descriptor: int, offset: int, length: int) -> None:
    """Start writing these bytes to the disk, so that little is left for fsync (man sync_file_range).

    Errors are ignored: fsync reports them.
    """
    _libc().sync_file_range(descriptor, offset, length, _SYNC_FILE_RANGE_WRITE)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return libc
