"""The filling of a resumed ferry's memory from the store: as its file is written, or window by window where RAM is short for that.

All parts of the ferry are handed over, and whole parts are filled. Does not cover: the orders (`ferry_orders.py`), memory that init holds
or that was copied out earlier (`ferry.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from . import ferry_windows
from .ferry_orders import Allocation, Library, Order, opened

#: The least bytes to wait for before an order fills them, because each order takes an additional 20 ms.
_LEAST_BYTES = 2 << 30

#: Makes a file of the bytes of a stream between two offsets: (stream, begin, end, path of the file).
ReadStream = Callable[[str, int, int, Path], None]
#: Returns a descriptor of the file of a stream, which is only read.
FileOfStream = Callable[[str], int]


class WaitForStream(Protocol):
    """A function that waits until the file of a stream is written from `begin` to `end`."""

    def __call__(self, stream: str, begin: int, end: int) -> int:
        """Return the end of what is written from there."""


def as_written(
    wait_for: WaitForStream, file_of: FileOfStream, stream: str, library: Library, target: Path
) -> None:
    """Fill the parts from the stream's file while it is written, each as soon as its bytes are there.

    `target`, the ferry's own file, is not used. Raises what `wait_for` and `file_of` raise.
    """
    listed = library.listed()
    written = offset = first = 0
    while first < len(listed):
        count, length = _leading(listed[first:], _LEAST_BYTES, more=0)
        written = max(written, wait_for(stream, offset, offset + length))
        count, length = _leading(listed[first:], _LEAST_BYTES, more=written - offset)
        descriptors = [file_of(stream)]
        library.order(Order.FILL, first, count, offset=offset, descriptors=descriptors)
        first, offset = first + count, offset + length


def by_windows(read: ReadStream, stream: str, library: Library, target: Path) -> None:
    """Fill the parts from a file that `read` makes of one window after the other. Raises what `read` raises."""
    offset = 0
    for first, count, length in groups(library.listed()):
        read(stream, offset, offset + length, target)
        with opened([target]) as descriptors:
            library.order(Order.FILL, first, count, descriptors=descriptors)
        offset += length
    target.unlink(missing_ok=True)


def _leading(listed: Sequence[Allocation], least: int, *, more: int) -> tuple[int, int]:
    """Return the number and bytes of the first parts that together have `least` bytes (or of all), with those that end by byte `more`."""
    count = length = 0
    for one in listed:
        if length >= least and length + one.bytes > more:
            break
        count, length = count + 1, length + one.bytes
    return count, length


def groups(listed: Sequence[Allocation]) -> Iterator[tuple[int, int, int]]:
    """Yield the windows into which parts are divided: the number of the first part, how many there are, and their bytes."""
    first = count = length = 0
    for number, one in enumerate(listed):
        if count and length + one.bytes > ferry_windows.WINDOW_BYTES:
            yield first, count, length
            first, count, length = number, 0, 0
        count += 1
        length += one.bytes
    if count:
        yield first, count, length
