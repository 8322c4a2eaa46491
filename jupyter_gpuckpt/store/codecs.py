"""The codecs of chunks in packs: their numbers, which are part of the format, and how to undo them."""

from __future__ import annotations

import threading

import zstandard
from blake3 import blake3

#: The chunk as it is.
RAW = 0
#: One zstd frame that holds the whole chunk and says its length.
ZSTD = 1

#: Bytes in a digest.
DIGEST_BYTES = 32

# A decompression context serves one thread at a time and is costly to make.
_of_thread = threading.local()


class CodecError(Exception):
    """A payload is not what its codec and length say; the caller knows which chunk that is."""


def digest_of(data: bytes | memoryview) -> bytes:
    """The name of a chunk: blake3 of its bytes before compression."""
    return blake3(data).digest()


class Decompressor:
    """Undoes compression, for one thread at a time."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor()

    def unpack(
        self, codec: int, payload: memoryview, raw_length: int, target: memoryview
    ) -> memoryview:
        """The chunk whose `payload` was stored with `codec`: the beginning of `target`, or `payload` itself where it is stored as
        it is.

        `target` has at least `raw_length` bytes and is written to directly. Raises CodecError when the payload does not give
        exactly `raw_length` bytes. The digest is for the caller to check.
        """
        _check(codec, payload, raw_length)
        if codec == RAW:
            return payload
        found = target[:raw_length]
        try:
            # Without `with` and close(): of all ways to write to memory of ours this holds Python's lock for the shortest time.
            got = self._zstd.stream_reader(payload).readinto(found) if raw_length else 0
        except zstandard.ZstdError as error:
            raise CodecError(str(error)) from error
        if got != raw_length:
            raise CodecError(f"the frame ends after {got} of {raw_length} bytes")
        return found


def decompress(codec: int, payload: bytes | memoryview, raw_length: int) -> bytes:
    """The chunk whose `payload` was stored with `codec`; thread-safe. Raises CodecError as `Decompressor.unpack` does."""
    _check(codec, payload, raw_length)
    if codec == RAW:
        return bytes(payload)
    if not hasattr(_of_thread, "decompressor"):
        _of_thread.decompressor = Decompressor()
    decompressor: Decompressor = _of_thread.decompressor
    return bytes(
        decompressor.unpack(
            codec, memoryview(payload), raw_length, memoryview(bytearray(raw_length))
        )
    )


def _check(codec: int, payload: bytes | memoryview, raw_length: int) -> None:
    """Whether the payload promises the length; it decides how much is allocated, and whether zstd writes straight to the target."""
    promised = len(payload)
    if codec == ZSTD:
        try:
            promised = zstandard.frame_content_size(payload)
        except zstandard.ZstdError as error:
            raise CodecError(str(error)) from error
    elif codec != RAW:
        raise CodecError(f"codec {codec} is unknown")
    if promised != raw_length:
        raise CodecError(f"the payload has {promised} bytes, {raw_length} are expected")
