"""A record of the bytes that an unpacking has written, for threads that use them before all are written.

A chunk may go to any place of a stream, so a run counts as covering all between its first and its last target: what is reported may
be less than what is written, but never more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .spans import RunTable


class WrittenBytes:
    """A record of how far the streams are written; thread-safe.

    `lengths`: the bytes of the streams, in the order of the table's sinks.
    """

    def __init__(self, table: RunTable, lengths: Sequence[int]) -> None:
        self._table = table
        self._bounds = bounds_of(lengths)
        self._left = np.ones(len(table.runs), np.bool_)
        self._changed = threading.Condition()
        # The runs for which threads wait, once for each thread.
        self._awaited = list[int]()
        self._error: BaseException | None = None

    def finish_run(self, number: int) -> None:
        """Record that a run of the table is written."""
        with self._changed:
            self._left[number] = False
            if number in self._awaited:
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Let all calls of `wait_for` raise this error: nothing more is written."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def wait_for(self, stream: int, begin: int, end: int) -> int:
        """Wait until a stream is written from `begin` to `end`; return the end of what is written from `begin` on.

        Raises the error of `fail`.
        """
        base, limit = self._bounds[stream : stream + 2].tolist()
        first, last = self._places
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                runs = np.flatnonzero(self._left & (last > base + begin) & (first < limit))
                if not len(runs):
                    return int(limit - base)
                run = int(runs[np.argmin(first[runs])])
                if (written := int(first[run]) - base) >= end:
                    return int(written)
                self._await(run)

    def _await(self, run: int) -> None:
        self._awaited.append(run)
        try:
            while self._left[run] and self._error is None:
                self._changed.wait()
        finally:
            self._awaited.remove(run)

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return places_of(self._table, self._bounds)


def bounds_of(lengths: Iterable[int]) -> NDArray[np.int64]:
    """Return where each of several streams begins if they follow each other, and where the last one ends."""
    return np.cumsum([0, *lengths], dtype=np.int64)


def places_of(
    table: RunTable, bounds: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each run's first target begins and its last one ends. `bounds`: those of the sinks' streams (`bounds_of`).

    Each run must have targets.
    """
    targets: NDArray[Any] = table.targets
    if not len(table.runs):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first = bounds[targets["sink"]] + targets["offset"].astype(np.int64)
    at = table.runs["target"].astype(np.int64)
    if not table.runs["targets"].all():
        raise ValueError("a run has no targets")
    # The runs' targets are one after the other, though the runs may be in another order.
    order = np.argsort(at)
    lowest, highest = np.empty(len(at), np.int64), np.empty(len(at), np.int64)
    lowest[order] = np.minimum.reduceat(first, at[order])
    highest[order] = np.maximum.reduceat(first + targets["length"].astype(np.int64), at[order])
    return lowest, highest
