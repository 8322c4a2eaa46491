"""Codecs of chunks in packs: their numbers, which are part of the format, and their decompression.

Numbers are only ever added. A change that writes a new one must raise `manifest_records.FORMAT_VERSION`, so that older releases refuse such
snapshots with a clear error; a reader that still finds an unknown number reports a newer format, not a damaged chunk.
"""

from __future__ import annotations

import threading

import zstandard
from blake3 import blake3

from ..linux.fresh_memory import Scratch

#: The uncompressed chunk.
RAW = 0
#: One zstd frame that contains the whole chunk and states its length.
ZSTD = 1
#: Codecs by the width in bytes of the numbers that the chunk seems to consist of: their bytes are grouped by place in the number,
#: lowest address first. Layout: one byte whose bits mark the groups that are stored raw; these groups; the bytes after the last
#: whole number; for each of the other groups a zstd frame, which states its length.
GROUPED = {2: 2, 4: 3, 8: 4}

_WIDTHS = {codec: width for width, codec in GROUPED.items()}

#: The length of a digest in bytes.
DIGEST_BYTES = 32

#: The limit of a chunk's length, larger than any writer's; it bounds what a damaged record can make a reader allocate.
MAX_CHUNK_BYTES = 64 << 20

# A decompression context serves one thread at a time and is costly to make.
_of_thread = threading.local()


class CodecError(Exception):
    """The error of a payload that contradicts its codec or length; the caller knows the chunk."""


def digest_of(data: bytes | memoryview) -> bytes:
    """Return the digest of a chunk: BLAKE3 of its bytes before compression."""
    return blake3(data).digest()


class UnknownCodecError(CodecError):
    """The error of a codec of a newer version; the payload need not be damaged."""


class Decompressor:
    """A decompressor of chunks, for one thread at a time."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor()
        self._groups = Scratch()

    def unpack(
        self, codec: int, payload: memoryview, raw_length: int, target: memoryview
    ) -> memoryview:
        """Return the chunk whose `payload` was stored with `codec`: the beginning of `target`, or `payload` if it is stored raw.

        `target` has at least `raw_length` bytes and is written to directly. Raises CodecError when the payload does not give
        exactly `raw_length` bytes. The caller checks the digest.
        """
        _check(codec, payload, raw_length)
        if codec == RAW:
            return payload
        found = target[:raw_length]
        if codec == ZSTD:
            self._unzstd(payload, found)
        else:
            self._ungroup(_WIDTHS[codec], payload, found)
        return found

    def _unzstd(self, frames: memoryview, target: memoryview) -> None:
        if not len(target):
            return
        try:
            # It avoids `with` and close(), because this way of filling the buffer holds the GIL for the shortest time.
            reader = self._zstd.stream_reader(frames, read_across_frames=True)
            got = reader.readinto(target)
        except zstandard.ZstdError as error:
            raise CodecError(str(error)) from error
        if got != len(target):
            raise CodecError(f"the frames end after {got} of {len(target)} bytes")

    def _ungroup(self, width: int, payload: memoryview, target: memoryview) -> None:
        count, rest = divmod(len(target), width)
        mask = payload[0]
        frames = 1 + mask.bit_count() * count + rest
        others = self._groups.get((width - mask.bit_count()) * count)
        self._unzstd(payload[frames:], others)
        from . import grouping  # noqa: PLC0415 - needs NumPy, as few users of this module do

        grouping.ungroup(width, mask, payload[1:frames], others, target)


def decompress(codec: int, payload: bytes | memoryview, raw_length: int) -> bytes:
    """Return the chunk whose `payload` was stored with `codec`; thread-safe. Raises CodecError as `Decompressor.unpack` does."""
    _check(codec, payload, raw_length)
    if codec == RAW:
        return bytes(payload)
    if not hasattr(_of_thread, "decompressor"):
        _of_thread.decompressor = Decompressor()
    decompressor: Decompressor = _of_thread.decompressor
    target = memoryview(bytearray(raw_length))
    return bytes(decompressor.unpack(codec, memoryview(payload), raw_length, target))


def digest_of_stored(codec: int, payload: bytes | memoryview, raw_length: int) -> bytes:
    """Return the digest of the chunk whose `payload` was stored with `codec`; thread-safe. Raises CodecError.

    This allocates no memory: fresh memory would take longer than the digest.
    """
    _check(codec, payload, raw_length)
    if codec == RAW:
        return digest_of(payload)
    if not hasattr(_of_thread, "verifier"):
        _of_thread.verifier = Decompressor(), Scratch()
    decompressor, memory = _of_thread.verifier
    target = memory.get(raw_length)
    return digest_of(decompressor.unpack(codec, memoryview(payload), raw_length, target))


def _check(codec: int, payload: bytes | memoryview, raw_length: int) -> None:
    """Raise CodecError unless the payload states this length.

    The stated length decides how much zstd allocates, and whether it writes directly to the target.
    """
    if raw_length > MAX_CHUNK_BYTES:
        raise CodecError(f"{raw_length} bytes are more than a chunk has")
    try:
        if codec == RAW:
            promised = len(payload)
        elif codec == ZSTD:
            promised = zstandard.frame_content_size(payload)
        elif codec in _WIDTHS:
            promised = _grouped_length(_WIDTHS[codec], memoryview(payload), raw_length)
        else:
            raise UnknownCodecError(f"codec {codec} is unknown")
    except zstandard.ZstdError as error:
        raise CodecError(str(error)) from error
    if promised != raw_length:
        raise CodecError(f"the payload has {promised} bytes, {raw_length} are expected")


def _grouped_length(width: int, payload: memoryview, raw_length: int) -> int:
    """Return `raw_length` if the groups in `payload` have matching lengths. Raises CodecError."""
    count, rest = divmod(raw_length, width)
    mask = payload[0] if len(payload) else 0
    frames = 1 + mask.bit_count() * count + rest
    if not len(payload) or mask >> width or len(payload) < frames:
        raise CodecError("the groups are truncated or altered")
    if mask.bit_count() < width and zstandard.frame_content_size(payload[frames:]) != count:
        raise CodecError("a group has another length")
    return raw_length
