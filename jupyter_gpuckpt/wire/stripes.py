"""Files that together hold one sequence of bytes, in stripes: stripe i is in file i modulo n.

Writes to one file of a tmpfs exclude each other, and new pages that are mapped are zeroed before they are written. So threads that
write whole stripes to several files are twice as fast as with one file, mapped or not. A single file has all stripes in a row.

The ferry library lays out its files in the same way (engine/gpu/ferry/ferry_copy.c).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

#: The bytes of a stripe: UNIT in ferry_copy.c.
STRIPE_BYTES = 4 << 20
#: The most files: MAX_FILES in ferry.c. They are twice as many as the threads that write, so that two rarely meet at one.
MAX_FILES = 32


class StripePart(NamedTuple):
    """A range of bytes in one stripe: the number of the file, the offset in it, and the length."""

    file: int
    offset: int
    length: int


def parts(offset: int, length: int, files: int) -> Iterator[StripePart]:
    """Yield the places of `length` bytes from `offset`, in order."""
    end = offset + length
    while offset < end:
        stripe, inside = divmod(offset, STRIPE_BYTES)
        count = min(STRIPE_BYTES - inside, end - offset)
        row, file = divmod(stripe, files)
        yield StripePart(file, row * STRIPE_BYTES + inside, count)
        offset += count


def files_for(length: int) -> int:
    """Return how many files so many bytes should be in."""
    return max(1, min(MAX_FILES, length // STRIPE_BYTES))


def file_lengths(length: int, files: int) -> list[int]:
    """Return the length of each file, for so many bytes in all."""
    stripes, rest = divmod(length, STRIPE_BYTES)
    found = [(stripes - file + files - 1) // files * STRIPE_BYTES for file in range(files)]
    found[stripes % files] += rest
    return found
