"""Reading of whole packs: which of their chunks match their digests."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ..errors import FormatTooNew, ObjectCorrupt
from . import packs
from .codecs import CodecError, digest_of_stored
from .pack_identity import Identity
from .packs import RECORD_BYTES, Entry

#: About how many bytes are read at a time.
_PIECE_BYTES = 8 << 20
#: How many chunks of a pack without an index are verified at a time.
_AT_ONCE = 100


class PackReading(NamedTuple):
    """The result of reading a pack: the digests of its intact chunks, and the identity of its file."""

    identity: Identity
    intact: set[bytes]


def read_pack(path: Path, between: Callable[[], None]) -> PackReading | None:
    """Read a pack; return None if it is gone, or has changed meanwhile.

    `between` is called between pieces. Raises OSError, and what `between` raises.
    """
    try:
        before = Identity.of(path.stat())
        intact: set[bytes] = set()
        for some in _intact(path):
            intact.update(some)
            between()
        after = Identity.of(path.stat())
    except FileNotFoundError:
        return None
    return PackReading(after, intact) if after == before else None


def forget_cached(path: Path) -> None:
    """Make Linux read a pack from the disk next time, not from memory. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _intact(path: Path) -> Iterator[list[bytes]]:
    """Yield the digests of the intact chunks, in batches."""
    try:
        with _disk_errors_as_damage():
            entries = sorted(packs.read_index(path), key=lambda entry: entry.offset)
    except FormatTooNew:
        return  # a rebuilt catalog would not have its chunks either
    except ObjectCorrupt:
        scanned = packs.scan(path)
        with suppress(ObjectCorrupt), _disk_errors_as_damage():
            while some := [entry.digest for entry in islice(scanned, _AT_ONCE)]:
                yield some
        return
    for group in _groups(entries):
        try:
            yield _intact_of(path, group)
        except ObjectCorrupt:
            for one in group:
                with suppress(ObjectCorrupt):
                    yield _intact_of(path, [one])


def _intact_of(path: Path, group: Sequence[Entry]) -> list[bytes]:
    """Return the digests of the intact ones of these chunks. Raises ObjectCorrupt if the disk cannot read all of them."""
    start, end = group[0].offset - RECORD_BYTES, group[-1].offset + group[-1].stored_length
    records = memoryview(bytearray(end - start))
    with _disk_errors_as_damage():
        records = records[: packs.read_span(path, start, records)]
    return [one.digest for one in group if _is_intact(path, records, start, one)]


@contextmanager
def _disk_errors_as_damage() -> Iterator[None]:
    """Raise ObjectCorrupt in place of the error of a disk that cannot read a block."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise ObjectCorrupt(str(error)) from error


def _groups(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Yield entries that are read together."""
    group: list[Entry] = []
    for entry in entries:
        if group and entry.offset + entry.stored_length - group[0].offset > _PIECE_BYTES:
            yield group
            group = []
        group.append(entry)
    if group:
        yield group


def _is_intact(path: Path, records: memoryview, start: int, entry: Entry) -> bool:
    try:
        payload = packs.payload_in(path, records, entry.offset - RECORD_BYTES - start, entry)
        return digest_of_stored(entry.codec, payload, entry.raw_length) == entry.digest
    except (ObjectCorrupt, CodecError):
        return False
