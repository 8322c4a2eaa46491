"""Distribution of tasks to threads: the first error stops all threads and is raised."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

_Task = TypeVar("_Task")


def share_out(
    tasks: Iterable[_Task], make_worker: Callable[[], Callable[[_Task], None]], threads: int
) -> None:
    """Do all tasks, started in their order, in `threads` threads, each with a worker of its own; return when all have ended.

    If a worker raises or the caller's thread is interrupted, the others end after their present task, and the first error is
    raised here.
    """
    waiting = deque(tasks)
    stop = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work = make_worker()
            while not stop.is_set():
                try:
                    task = waiting.popleft()
                except IndexError:
                    return
                work(task)
        except BaseException as error:  # raised in the caller's thread
            errors.append(error)
            stop.set()

    crew: list[threading.Thread] = []
    try:
        for number in range(max(1, threads)):
            thread = threading.Thread(target=run, name=f"worker-{number}", daemon=True)
            thread.start()
            crew.append(thread)
        for thread in crew:
            thread.join()
    except BaseException:
        stop.set()
        for thread in crew:
            thread.join()
        raise
    if errors:
        raise errors[0]
