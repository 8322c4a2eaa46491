"""Content-defined boundaries of chunks.

`cut` makes all decisions. Boundaries depend on the content of pages and not on their addresses, so the same data is cut alike at another
address or after an insertion, and is found again in the store. A better rule may replace this one at any time, because readers of
snapshots do not depend on it.

A chunk begins
 * where pages of zeros begin or end (zeros become chunks of their own, and are not stored),
 * at a *mark*: a page whose hash, over a few of its words, has a certain value (one page in 64, or in as many as the caller says),
 unless one of the few pages before it is marked,
 * and at the latest MAX_PAGES after the beginning of the previous chunk.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PAGE = 4096
MAX_PAGES = 512
#: The usual number of pages from one mark to the next.
CHUNK_PAGES = 64
#: A mark does not count if one of the `MIN_PAGES` - 1 pages before it is marked.
MIN_PAGES = 4

_ZEROS = bytes(PAGE)
_WORDS_PER_PAGE = PAGE // 8
# The 64-bit words of a page that are hashed. They have no common stride, so that all of them are constant only in few kinds of data.
_SAMPLED = (3, 74, 133, 202, 271, 330, 405, 506)
_FACTORS = (
    0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93,
    0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3,
)  # fmt: skip


def is_zero(piece: memoryview) -> bool:
    """Return whether `piece` consists of zeros."""
    if len(piece) <= PAGE:
        return bytes(piece) == _ZEROS[: len(piece)]
    whole = len(piece) // 8 * 8
    words = np.frombuffer(piece[:whole], np.uint64)
    return not np.bitwise_or.reduce(words) and not any(piece[whole:])


def cut(buffer: memoryview, chunk_pages: int = CHUNK_PAGES) -> list[int]:
    """Return the ends of the chunks of `buffer`, in order, the last being its length.

    `chunk_pages`: how many pages there are from one mark to the next, a power of two from CHUNK_PAGES on. Boundaries are multiples of
    PAGE, but a page cut short at the end of `buffer` counts as a page. A chunk is either zeros or has no page of zeros, so its first
    page shows which.
    """
    if not len(buffer):
        return []
    zero, begins = _begins(buffer, chunk_pages)
    pages = len(zero)
    ends: list[int] = []
    last = 0
    starts = np.flatnonzero(begins)
    for start in [*starts[starts > 0].tolist(), pages]:
        if not zero[last]:
            # Zeros cost nothing, however long the chunk.
            ends += range(last + MAX_PAGES, start, MAX_PAGES)
        ends.append(start)
        last = start
    return [min(end * PAGE, len(buffer)) for end in ends]


def first_begin(buffer: memoryview, chunk_pages: int = CHUNK_PAGES) -> int | None:
    """Return the offset of the first chunk boundary by content after the beginning of `buffer`; None if there is none.

    It serves to cut a long stream in parallel at places that do not depend on where the parts begin. More bytes at the end of
    `buffer` never change a result other than None. Zeros may be cut anywhere.
    """
    zero, begins = _begins(buffer, chunk_pages)
    if not len(zero) or zero[0]:
        return 0
    # Whether a mark in the first MIN_PAGES counts depends on pages before `buffer`.
    begins[1:MIN_PAGES] = zero[1:MIN_PAGES]
    starts = np.flatnonzero(begins[1:])
    return (int(starts[0]) + 1) * PAGE if len(starts) else None


def _begins(buffer: memoryview, chunk_pages: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return for each page whether it is zeros, and whether a chunk begins there by content."""
    whole = len(buffer) // PAGE
    words = np.frombuffer(buffer, np.uint64, whole * _WORDS_PER_PAGE).reshape(
        whole, _WORDS_PER_PAGE
    )
    zero = np.bitwise_or.reduce(words, axis=1) == 0
    value = words.take(_SAMPLED, axis=1) @ np.array(_FACTORS, np.uint64)
    value ^= value >> np.uint64(32)
    value *= np.uint64(_FACTORS[0])
    # Pages that are marked for long chunks are also marked for shorter ones. The hash of all-zero words is 0, so nearly empty pages are
    # never marked.
    shift, mark = 65 - chunk_pages.bit_length(), chunk_pages // CHUNK_PAGES
    marked = (value >> np.uint64(shift)) == mark
    rest = buffer[whole * PAGE :]
    if len(rest):
        zero, marked = np.append(zero, is_zero(rest)), np.append(marked, False)
    begins = marked.copy()
    for distance in range(1, MIN_PAGES):
        begins[distance:] &= ~marked[:-distance]
    begins[1:] |= zero[1:] != zero[:-1]
    return zero, begins
