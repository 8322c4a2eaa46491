"""Packs as streams: assembled from chunks of the store for an export, and read from an archive.

In either direction only some chunks are in memory at a time, and each is compared with its digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..errors import ArchiveInvalid, ObjectCorrupt
from . import packs
from .codecs import MAX_CHUNK_BYTES, CodecError, UnknownCodecError, digest_of_stored
from .packs import HEADER_BYTES, RECORD_BYTES, Entry
from .writer import Record

#: A function that returns the next bytes of a stream, exactly as many as requested.
Take = Callable[[int], bytes]


class PackPlan:
    """A plan of a pack to be assembled from chunks of known digests and lengths. `length`: the pack's."""

    def __init__(self, chunks: Sequence[Entry]) -> None:
        end = HEADER_BYTES
        self._entries: list[Entry] = []
        for chunk in chunks:
            self._entries.append(chunk._replace(offset=end + RECORD_BYTES))
            end += RECORD_BYTES + chunk.stored_length
        self._end = packs.file_end(self._entries, end)
        self.length = end + len(self._end)

    def pieces(
        self, read: Callable[[bytes], tuple[int, bytes | memoryview, int]]
    ) -> Iterator[bytes]:
        """Yield the pack in pieces; `read` returns codec, payload and raw length of a chunk. Raises ObjectCorrupt."""
        yield packs.file_header()
        for entry in self._entries:
            codec, payload, raw_length = read(entry.digest)
            if (codec, len(payload), raw_length) != (
                entry.codec,
                entry.stored_length,
                entry.raw_length,
            ):
                raise ObjectCorrupt(
                    f"Chunk {entry.digest.hex()[:16]} was stored again while it was exported.",
                    hint="Try again.",
                )
            yield packs.record_header(entry)
            yield bytes(payload)
        yield self._end


def records(name: str, length: int, take: Take) -> Iterator[Record]:
    """Yield the chunks of the pack `name`, verified; all of its `length` bytes are taken from `take`.

    Raises ArchiveInvalid naming the pack, FormatTooNew, and what `take` raises.
    """
    if length < HEADER_BYTES:
        raise _invalid(name, "it is truncated")
    try:
        packs.check_header(Path(name), take(HEADER_BYTES))
    except ObjectCorrupt as error:
        raise _invalid(name, "it does not begin as a pack does") from error
    offset = HEADER_BYTES
    while length - offset >= RECORD_BYTES:
        entry = packs.parse_record_header(take(RECORD_BYTES), offset)
        offset += RECORD_BYTES
        if entry is None:
            break  # the index follows, which repeats the records' headers
        most = min(MAX_CHUNK_BYTES, length - offset)
        if entry.stored_length > most or entry.raw_length > MAX_CHUNK_BYTES:
            raise _invalid(name, "a chunk in it is longer than can be")
        payload = take(entry.stored_length)
        offset += entry.stored_length
        try:
            intact = digest_of_stored(entry.codec, payload, entry.raw_length) == entry.digest
        except UnknownCodecError as error:
            raise packs.chunk_too_new(entry.digest, entry.codec) from error
        except CodecError as error:
            raise _invalid(
                name, f"chunk {entry.digest.hex()[:16]} cannot be read: {error}"
            ) from error
        if not intact:
            raise _invalid(name, f"chunk {entry.digest.hex()[:16]} does not match its digest")
        yield Record(entry.digest, payload, entry.raw_length, entry.codec)
    while offset < length:
        offset += len(take(min(MAX_CHUNK_BYTES, length - offset)))


def _invalid(name: str, why: str) -> ArchiveInvalid:
    return ArchiveInvalid(
        f"Pack {name} in the archive is damaged: {why}.",
        hint="Export the snapshot again. The store is as it was.",
    )
