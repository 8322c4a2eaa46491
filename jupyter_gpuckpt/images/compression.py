"""Compression of chunks: directly, or after grouping the bytes of their numbers by place."""

from __future__ import annotations

import numpy as np
import zstandard

from ..linux.fresh_memory import Scratch
from ..store import grouping
from ..store.codecs import GROUPED, RAW, ZSTD

# Higher levels gain nothing on memory images and cost half of the speed; negative ones do not compress floats at all.
_LEVEL = 1
# Parameters for bytes that are unevenly distributed but do not repeat, such as exponents. The result is smaller and takes half the time,
# because zstd does not search for short matches.
_WITHOUT_MATCHES = zstandard.ZstdCompressionParameters.from_level(
    _LEVEL, min_match=7, hash_log=8, write_content_size=True
)
# The largest ratio of compressed to raw size that is worth a decompression at resume.
_WORTH = 0.97

#: Smaller chunks are not grouped: a frame for every place in a number costs too much.
_MIN_GROUPED_BYTES = 16 << 10
# The largest ratio of expected sizes, grouped to plain, at which grouping is tried. Programs and texts reach 0.95.
_PROMISING = 0.94
# The difference in expected size within which widths count as equal; of those the smallest is chosen, because it is faster.
_SAME = 0.02
# Below this expected size, data such as Python objects is often compressible because it repeats, which a count of bytes does not
# show. Then a part of the chunk is compressed ungrouped, for comparison.
_EASY = 0.75
_TRIAL_BYTES = 4 << 10


class Compressor:
    """Compressor of chunks, for one thread at a time."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=_LEVEL)
        self._without_matches = zstandard.ZstdCompressor(compression_params=_WITHOUT_MATCHES)
        self._groups = Scratch()

    def compress(self, chunk: memoryview) -> tuple[int, bytes | memoryview]:
        """Return codec and payload for `chunk`; the payload is `chunk` itself if compression does not pay.

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
        """Return the width in bytes of the numbers that `chunk` seems to consist of; 0 if grouping their bytes does not pay."""
        if len(chunk) < _MIN_GROUPED_BYTES:
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
            # This group is noise; then nothing in the other groups repeats.
            zstd = self._without_matches
        parts: list[bytes | memoryview] = [bytes((mask,)), *kept, groups[width * count :], *frames]
        # numpy releases the GIL while it copies.
        whole = np.concatenate([np.frombuffer(part, np.uint8) for part in parts])
        return memoryview(whole.data)
