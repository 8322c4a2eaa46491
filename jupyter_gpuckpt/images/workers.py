"""Sharing out tasks to threads: the first error stops all and is raised."""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

_Task = TypeVar("_Task")

# Tasks per thread that are found before they are needed.
_AHEAD = 2


class Scratch:
    """Reusable memory of one worker. What `get` gave is overwritten by what is done with the next one."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def get(self, length: int) -> memoryview:
        """Writable memory, page-aligned; its content is undefined."""
        if len(self._memory) < length:
            fresh = mmap.mmap(-1, length)
            # Fewer page faults; where the system has no huge pages, small ones do.
            with suppress(OSError):
                fresh.madvise(mmap.MADV_HUGEPAGE)
            self._memory = memoryview(fresh)
        return self._memory[:length]


def share_out(
    tasks: Iterable[_Task], make_worker: Callable[[], Callable[[_Task], None]], threads: int
) -> None:
    """Do every task, in order of their begin, in `threads` threads; each has a worker of its own.

    `tasks` is gone through in the caller's thread while the others work, so it may be a generator that thinks. When a worker
    or `tasks` raises, the others end after the task that they are at, and the first error is raised here; the same when the
    caller's thread is interrupted. Returns when no thread is left.
    """
    threads = max(1, threads)
    tray: _Tray[_Task] = _Tray(threads * _AHEAD)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work = make_worker()
            for task in tray:
                work(task)
        except BaseException as error:  # raised in the caller's thread
            errors.append(error)
            tray.close()

    crew: list[threading.Thread] = []
    try:
        for number in range(threads):
            thread = threading.Thread(target=run, name=f"worker-{number}", daemon=True)
            thread.start()
            crew.append(thread)
        for task in tasks:
            if not tray.put(task):
                break
        tray.finish()
        for thread in crew:
            thread.join()
    except BaseException:
        tray.close()
        for thread in crew:
            thread.join()
        raise
    if errors:
        raise errors[0]


class _Tray(Generic[_Task]):
    """A short queue between the one who finds tasks and those who do them."""

    def __init__(self, places: int) -> None:
        self._tasks: deque[_Task] = deque()
        self._places = places
        self._ended = self._closed = False
        lock = threading.Lock()
        self._room, self._filled = threading.Condition(lock), threading.Condition(lock)

    def put(self, task: _Task) -> bool:
        """Wait for a place; False when nobody takes tasks any more."""
        with self._room:
            while len(self._tasks) >= self._places and not self._closed:
                self._room.wait()
            self._tasks.append(task)
            self._filled.notify()
            return not self._closed

    def finish(self) -> None:
        """No task will follow."""
        with self._filled:
            self._ended = True
            self._filled.notify_all()

    def close(self) -> None:
        """Nobody takes a task from now on."""
        with self._filled:
            self._closed = True
            self._filled.notify_all()
            self._room.notify_all()

    def __iter__(self) -> Iterator[_Task]:
        while True:
            with self._filled:
                while not (self._tasks or self._ended or self._closed):
                    self._filled.wait()
                if self._closed or not self._tasks:
                    return
                task = self._tasks.popleft()
                self._room.notify()
            yield task
