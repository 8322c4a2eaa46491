"""A record of the bytes that an unpacking has written, for threads that use them before all are written.

A chunk may go to any place of a stream, so a span counts as covering all between its first and its last target: what is reported may
be less than what is written, but never more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .spans import SpanTable


class WrittenBytes:
    """A record of how far the streams are written; thread-safe.

    `lengths`: the bytes of the streams, in the order of the table's sinks.
    """

    def __init__(self, table: SpanTable, lengths: Sequence[int]) -> None:
        self._table = table
        self._bounds = bounds_of(lengths)
        self._left = np.ones(len(table.spans), np.bool_)
        self._changed = threading.Condition()
        # The spans for which threads wait, once for each thread.
        self._awaited = list[int]()
        self._error: BaseException | None = None

    def finish_span(self, number: int) -> None:
        """Record that a span of the table is written."""
        with self._changed:
            self._left[number] = False
            if number in self._awaited:
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Let all calls of `wait_for` raise this error: nothing more is written."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def wait_for(self, stream: int, begin: int, end: int, *, seconds: float | None = None) -> int:
        """Wait until a stream is written from `begin` to `end`; return the end of what is written from `begin` on.

        After `seconds` (None: never) it returns where less is written. Raises the error of `fail`.
        """
        base, limit = self._bounds[stream : stream + 2].tolist()
        first, last = self._places
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                spans = np.flatnonzero(self._left & (last > base + begin) & (first < limit))
                if not len(spans):
                    return int(limit - base)
                span = int(spans[np.argmin(first[spans])])
                written = int(first[span]) - base
                if written >= end or not self._await(span, seconds):
                    return max(int(written), begin)

    def _await(self, span: int, seconds: float | None) -> bool:
        """Wait until a span is written or there is an error; return False after `seconds` without one of them."""
        self._awaited.append(span)
        try:
            return self._changed.wait_for(
                lambda: not self._left[span] or self._error is not None, seconds
            )
        finally:
            self._awaited.remove(span)

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return places_of(self._table, self._bounds)


def bounds_of(lengths: Iterable[int]) -> NDArray[np.int64]:
    """Return where each of several streams begins if they follow each other, and where the last one ends."""
    return np.cumsum([0, *lengths], dtype=np.int64)


def places_of(
    table: SpanTable, bounds: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each span's first target begins and its last one ends. `bounds`: those of the sinks' streams (`bounds_of`).

    Each span must have targets.
    """
    targets: NDArray[Any] = table.targets
    if not len(table.spans):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first = bounds[targets["sink"]] + targets["offset"].astype(np.int64)
    at = table.spans["target"].astype(np.int64)
    if not table.spans["targets"].all():
        raise ValueError("a span has no targets")
    # The spans' targets are one after the other, though the spans may be in another order.
    order = np.argsort(at)
    lowest, highest = np.empty(len(at), np.int64), np.empty(len(at), np.int64)
    lowest[order] = np.minimum.reduceat(first, at[order])
    highest[order] = np.maximum.reduceat(first + targets["length"].astype(np.int64), at[order])
    return lowest, highest
