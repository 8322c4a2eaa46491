"""Python's clocks of CPU time, which go on after a resume; Linux counts from zero then, because the processes are new ones.

Covers: process_time, thread_time, clock_gettime and their _ns forms in `time`, `resource.getrusage` (IPython's %time and %%time use
it), `os.times`. Does not cover: code that asks Linux itself, such as psutil and C libraries.
"""

from __future__ import annotations

import functools
import operator
import os
import threading
import time
from collections.abc import Callable
from typing import Any

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

_MILLION, _BILLION = 1_000_000, 1_000_000_000


class _Counts:
    """Numbers that Linux only ever raises, of which the first one shows a resume: it is smaller than before.

    There is no lock, because a signal's handler may ask in the middle of a call. So a smaller number is read once more: the first
    one may have been read before another thread's.
    """

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = read
        self._before = self._last = tuple(0 for _ in read())

    def now(self) -> tuple[Any, ...]:
        """Return the numbers, counted over all resumes."""
        now = self._read()
        if now[0] < self._last[0]:
            now = self._read()
            last = self._last
            if now[0] < last[0]:
                self._last = now
                self._before = tuple(map(operator.add, self._before, last))
        self._last = now
        return tuple(map(operator.add, self._before, now))


class ProcessorClocks:
    """The replacements of Python's functions in this process. A forked child begins with clocks of its own, as in Linux."""

    def __init__(self) -> None:
        self._threads = threading.local()
        self._read_ns = time.clock_gettime_ns
        self._usage = resource.getrusage if resource else None
        self._begin()
        os.register_at_fork(after_in_child=self._begin)
        self._replace()

    def note(self) -> None:
        """Read all clocks: before a freeze, so that they go on from there, and after a resume, while they are still low."""
        self._process.now()
        for counts in self._usages.values():
            counts.now()

    def _begin(self) -> None:
        clock = time.CLOCK_PROCESS_CPUTIME_ID
        self._process = _Counts(lambda: (self._read_ns(clock),))
        self._threads.__dict__.clear()
        self._usages = {}
        if resource:
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
                self._usages[who] = self._counted(who)

    def _counted(self, who: int) -> _Counts:
        def read() -> tuple[int, int, int]:
            found = self._usage(who)  # type: ignore[misc]
            # Whole microseconds: sums of fractions of a second may be smaller by rounding alone.
            user, system = (round(x * _MILLION) for x in (found.ru_utime, found.ru_stime))
            return user + system, user, system

        return _Counts(read)

    def _of_clock(self, clock: int) -> int | None:
        """Return the time of a clock in nanoseconds; None if it counts no CPU time of this process."""
        if clock == time.CLOCK_PROCESS_CPUTIME_ID:
            return int(self._process.now()[0])
        if clock == time.CLOCK_THREAD_CPUTIME_ID:
            if not hasattr(self._threads, "counts"):
                self._threads.counts = _Counts(lambda: (self._read_ns(clock),))
            return int(self._threads.counts.now()[0])
        return None

    def _replace(self) -> None:
        of_clock, before = self._of_clock, time.clock_gettime
        before_ns, times, usage = time.clock_gettime_ns, os.times, self._usage

        @functools.wraps(time.process_time_ns)
        def process_time_ns() -> int:
            return of_clock(time.CLOCK_PROCESS_CPUTIME_ID) or 0

        @functools.wraps(time.process_time)
        def process_time() -> float:
            return process_time_ns() / _BILLION

        @functools.wraps(time.thread_time_ns)
        def thread_time_ns() -> int:
            return of_clock(time.CLOCK_THREAD_CPUTIME_ID) or 0

        @functools.wraps(time.thread_time)
        def thread_time() -> float:
            return thread_time_ns() / _BILLION

        @functools.wraps(before)
        def clock_gettime(clock: int) -> float:
            found = of_clock(clock)
            return before(clock) if found is None else found / _BILLION

        @functools.wraps(before_ns)
        def clock_gettime_ns(clock: int) -> int:
            found = of_clock(clock)
            return before_ns(clock) if found is None else found

        for function in (
            process_time,
            process_time_ns,
            thread_time,
            thread_time_ns,
            clock_gettime,
            clock_gettime_ns,
        ):
            setattr(time, function.__name__, function)
        if resource is None or usage is None:
            return

        @functools.wraps(usage)
        def getrusage(who: int) -> Any:
            found = usage(who)
            counts = self._usages.get(who)
            if counts is None:
                return found
            user, system = (x / _MILLION for x in counts.now()[1:])
            return resource.struct_rusage((user, system, *found[2:]))

        resource.getrusage = getrusage

        @functools.wraps(times)
        def all_times() -> Any:
            found, mine = times(), getrusage(resource.RUSAGE_SELF)
            children = getrusage(resource.RUSAGE_CHILDREN)
            return os.times_result((mine[0], mine[1], children[0], children[1], found.elapsed))

        os.times = all_times
