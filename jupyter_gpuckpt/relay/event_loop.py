"""The relay's event loop: sockets of ZMQ and descriptors, timers, and work in threads whose results come back to the loop."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import zmq

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class EventLoop:
    """A loop in one thread. Only `from_thread` may be called elsewhere."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._handlers: dict[Any, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._calls: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._threads = ThreadPoolExecutor(16, thread_name_prefix="relay")
        self._is_running = True
        self.watch(self._wake, self._run_calls)

    def watch(self, source: Any, handler: Callable[[], None]) -> None:  # noqa: ANN401 - a socket of ZMQ or a descriptor
        """Call `handler` whenever something can be read from a socket of ZMQ, or a descriptor."""
        self._handlers[source] = handler
        self._poller.register(source, zmq.POLLIN)

    def forget(self, source: Any) -> None:  # noqa: ANN401 - as above
        """Watch it no longer."""
        if self._handlers.pop(source, None) is not None:
            self._poller.unregister(source)

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function after some time."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), function))

    def every(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function again and again."""

        def call() -> None:
            self.later(seconds, call)
            function()

        self.later(seconds, call)

    def from_thread(self, function: Callable[[], None]) -> None:
        """Call a function in the loop's thread."""
        self._calls.append(function)
        os.eventfd_write(self._wake, 1)

    def in_thread(self, work: Callable[[], _T], then: Callable[[_T | Exception], None]) -> None:
        """Do blocking work in a thread; call `then` in the loop with its result or exception."""

        def run() -> None:
            try:
                result: _T | Exception = work()
            except Exception as error:
                result = error
            self.from_thread(lambda: then(result))

        self._threads.submit(run)

    def stop(self) -> None:
        """Let `run` return."""
        self._is_running = False

    def run(self) -> None:
        """Run until `stop`. An exception of a handler is logged; it must not end the other kernels' messages."""
        while self._is_running:
            for source, _ in self._poller.poll(self._milliseconds()):
                # An earlier handler may have forgotten it.
                if (handler := self._handlers.get(source)) is not None:
                    _guarded(handler)
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                _guarded(heapq.heappop(self._timers)[2])

    def _milliseconds(self) -> int | None:
        if not self._timers:
            return None
        return max(0, int((self._timers[0][0] - time.monotonic()) * 1000) + 1)

    def _run_calls(self) -> None:
        os.eventfd_read(self._wake)
        while self._calls:
            _guarded(self._calls.popleft())


def _guarded(function: Callable[[], None]) -> None:
    try:
        function()
    except Exception:
        _log.exception("a handler failed")
