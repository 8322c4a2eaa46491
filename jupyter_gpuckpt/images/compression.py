"""Compression of chunks: as they are, or with the bytes of their numbers grouped."""

from __future__ import annotations

import numpy as np
import zstandard

from ..store import grouping
from ..store.codecs import GROUPED, RAW, ZSTD
from ..store.scratch import Scratch

# Higher levels gain nothing on memory images and cost half of the speed; negative ones do not compress floats at all.
_LEVEL = 1
# For bytes that are unevenly distributed but do not repeat, as exponents: twice as fast, and smaller, because short matches are not
# looked for.
_WITHOUT_MATCHES = zstandard.ZstdCompressionParameters.from_level(
    _LEVEL, min_match=7, hash_log=8, write_content_size=True
)
# A gain below this is not worth a decompression at resume.
_WORTH = 0.97

#: Smaller chunks are not grouped: a frame for every place in a number costs too much.
_LEAST_GROUPED = 16 << 10
# By how much a sample's bytes must be the easier to code when they are grouped. Programs and texts reach 0.95.
_PROMISING = 0.94
# Of two widths that promise the same, the smaller is faster.
_SAME = 0.02
# What is easy to code by itself is often so because it repeats, which a count of bytes does not see: objects of Python are like
# that. There a part of the chunk is compressed as it is, to compare.
_EASY = 0.75
_TRIAL_BYTES = 4 << 10


class Compressor:
    """Compressor of chunks, for one thread at a time."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=_LEVEL)
        self._without_matches = zstandard.ZstdCompressor(compression_params=_WITHOUT_MATCHES)
        self._groups = Scratch()

    def compress(self, chunk: memoryview) -> tuple[int, bytes | memoryview]:
        """Return codec and payload for `chunk`; the payload is `chunk` itself where compression does not pay.

        Incompressible data needs no test of its own: zstd gives up on it at several GB/s.
        """
        width = self._width(chunk)
        payload: bytes | memoryview
        if width:
            codec, payload = GROUPED[width], self._grouped(width, chunk)
        else:
            codec, payload = ZSTD, self._zstd.compress(chunk)
        return (codec, payload) if len(payload) <= len(chunk) * _WORTH else (RAW, chunk)

    def _width(self, chunk: memoryview) -> int:
        """Return the width of the numbers that `chunk` seems to consist of if grouping their bytes pays, else 0."""
        if len(chunk) < _LEAST_GROUPED:
            return 0
        sizes = grouping.expected_sizes(chunk, _PROMISING)
        if sizes is None:
            return 0
        plain, grouped = sizes
        least = min(grouped.values())
        width = next(width for width in grouping.WIDTHS if grouped[width] <= least + _SAME)
        if plain <= _EASY:
            start = (len(chunk) - _TRIAL_BYTES) // 2
            trial = self._zstd.compress(chunk[start : start + _TRIAL_BYTES])
            if len(trial) <= least * _TRIAL_BYTES:
                return 0
        return width

    def _grouped(self, width: int, chunk: memoryview) -> memoryview:
        """Return the payload in the format of `codecs.GROUPED`."""
        groups = self._groups.get(len(chunk))
        grouping.group(width, chunk, groups)
        count = len(chunk) // width
        mask = 0
        kept: list[memoryview] = []
        frames: list[bytes] = []
        zstd = self._zstd
        for place in range(width):
            part = groups[place * count :][:count]
            frame = zstd.compress(part)
            if len(frame) <= count * _WORTH:
                frames.append(frame)
                continue
            mask |= 1 << place
            kept.append(part)
            # Noise that does not repeat: then nothing in the numbers does.
            zstd = self._without_matches
        parts: list[bytes | memoryview] = [bytes((mask,)), *kept, groups[width * count :], *frames]
        # Put together by numpy, which does not hold Python's lock for it.
        whole = np.concatenate([np.frombuffer(part, np.uint8) for part in parts])
        return memoryview(whole.data)
