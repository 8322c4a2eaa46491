"""The codecs of chunks in packs: their numbers, which are part of the format, and how to undo them."""

from __future__ import annotations

import threading
from typing import overload

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


@overload
def decompress(codec: int, payload: bytes | memoryview, raw_length: int) -> bytes: ...
@overload
def decompress(
    codec: int, payload: bytes | memoryview, raw_length: int, into: memoryview
) -> memoryview: ...
def decompress(
    codec: int, payload: bytes | memoryview, raw_length: int, into: memoryview | None = None
) -> bytes | memoryview:
    """The chunk whose `payload` was stored with `codec`; thread-safe.

    With `into` (writable, at least `raw_length` bytes) the result is its beginning and nothing is copied twice. Raises
    CodecError when the payload does not give exactly `raw_length` bytes. The digest is for the caller to check.
    """
    if codec == RAW:
        if len(payload) != raw_length:
            raise CodecError(f"{len(payload)} bytes are stored, {raw_length} are expected")
        if into is None:
            return bytes(payload)
        into[:raw_length] = payload
        return into[:raw_length]
    if codec != ZSTD:
        raise CodecError(f"codec {codec} is unknown")
    return _unzstd(payload, raw_length, into)


def _unzstd(
    payload: bytes | memoryview, raw_length: int, into: memoryview | None
) -> bytes | memoryview:
    if not hasattr(_of_thread, "decompressor"):
        _of_thread.decompressor = zstandard.ZstdDecompressor()
    decompressor: zstandard.ZstdDecompressor = _of_thread.decompressor
    try:
        # Checked first: it decides how much is allocated, and whether zstd writes straight into `into`.
        promised = zstandard.frame_content_size(payload)
        if promised != raw_length:
            raise CodecError(f"the frame says {promised} bytes, {raw_length} are expected")
        if into is None or not raw_length:
            return decompressor.decompress(payload)
        target = into[:raw_length]
        with decompressor.stream_reader(payload) as reader:
            got = reader.readinto(target)
    except zstandard.ZstdError as error:
        raise CodecError(str(error)) from error
    if got != raw_length:
        raise CodecError(f"the frame ends after {got} of {raw_length} bytes")
    return target
