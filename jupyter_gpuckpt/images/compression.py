"""How a chunk is made smaller before it is stored, if it can be."""

from __future__ import annotations

import threading

import zstandard

from ..store.codecs import RAW, ZSTD

__all__ = ["RAW", "ZSTD", "compress"]

# Higher levels gain nothing on memory images and cost half of the speed; negative ones do not compress floats at all.
_LEVEL = 1
# A gain below this is not worth a decompression at resume.
_WORTH = 0.97

# A compression context serves one thread at a time and is costly to make.
_of_thread = threading.local()


def compress(chunk: bytes | memoryview) -> tuple[int, bytes | memoryview]:
    """Codec and payload for `chunk`; thread-safe. The payload is `chunk` itself where compression does not pay.

    Incompressible data needs no test of its own: zstd gives up on it at several GB/s.
    """
    if not hasattr(_of_thread, "compressor"):
        _of_thread.compressor = zstandard.ZstdCompressor(level=_LEVEL)
    compressor: zstandard.ZstdCompressor = _of_thread.compressor
    payload = compressor.compress(chunk)
    return (ZSTD, payload) if len(payload) <= len(chunk) * _WORTH else (RAW, chunk)
