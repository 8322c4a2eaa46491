"""The Python interface of byte_groups.c, which groups the bytes of numbers by their place, so that similar bytes are neighbors.

All functions are thread-safe and release the GIL. Widths are 2, 4 and 8 bytes.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np

#: The widths in bytes of the numbers that are considered.
WIDTHS = (2, 4, 8)

_LIBRARY = Path(__file__).with_name("byte-groups.so")


def group(width: int, data: memoryview, into: memoryview) -> None:
    """Fill the beginning of `into` with the bytes of `data`: group by group, then the bytes after the last whole number."""
    _library().group_bytes(width, _address(data), _address(into), len(data))


def ungroup(width: int, mask: int, these: memoryview, those: memoryview, into: memoryview) -> None:
    """Fill `into` with numbers assembled from their groups. Raises ValueError if there are too few bytes.

    Groups whose bit is set in `mask` come from `these`, which ends with the bytes after the last whole number, the others from
    `those`.
    """
    count, rest = divmod(len(into), width)
    own = (mask & ((1 << width) - 1)).bit_count()
    if len(these) < own * count + rest or len(those) < (width - own) * count:
        raise ValueError("fewer bytes than numbers")
    _library().ungroup_bytes(
        width, mask, _address(these), _address(those), _address(into), len(into)
    )


def expected_sizes(data: memoryview, enough: float) -> tuple[float, dict[int, float]] | None:
    """Estimate the ratio to which an entropy coder shrinks a sample of `data`: ungrouped, and grouped by each width.

    Return None if the best grouped ratio is above `enough` times the ungrouped one.
    """
    sizes = (ctypes.c_float * 4)()
    if not _library().grouped_sizes(_address(data), len(data), enough, sizes):
        return None
    plain, *grouped = sizes
    return plain, dict(zip(WIDTHS, grouped, strict=True))


def _address(data: memoryview) -> int:
    if data.readonly or not len(data):
        return int(np.frombuffer(data, np.uint8).ctypes.data)
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_LIBRARY))
    number, pointer, length = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
    library.group_bytes.argtypes = [number, pointer, pointer, length]
    library.ungroup_bytes.argtypes = [number, number, pointer, pointer, pointer, length]
    library.grouped_sizes.argtypes = [pointer, length, ctypes.c_float, pointer]
    library.group_bytes.restype = library.ungroup_bytes.restype = None
    return library
