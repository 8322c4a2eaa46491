"""How often and after how long a request to a remote is made again."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TypeVar

from ...errors import OperationCancelled, StoreUnavailable

_Answer = TypeVar("_Answer")

_ATTEMPTS = 6
_FIRST_SECONDS = 0.25
_MOST_SECONDS = 20.0


class Retries:
    """Makes what fails for a while again: the wait doubles each time, and a random part of it is left out.

    `stop` ends every wait; then OperationCancelled is raised.
    """

    def __init__(
        self,
        *,
        attempts: int = _ATTEMPTS,
        first_seconds: float = _FIRST_SECONDS,
        stop: threading.Event | None = None,
    ) -> None:
        self._attempts, self._first_seconds = attempts, first_seconds
        self.stop = stop or threading.Event()

    def run(self, attempt: Callable[[], _Answer]) -> _Answer:
        """Return what `attempt` returns; it is made again after StoreUnavailable, which the last one raises."""
        for number in range(1, self._attempts + 1):
            self.check()
            try:
                return attempt()
            except StoreUnavailable:
                if number == self._attempts:
                    raise
                longest = min(_MOST_SECONDS, self._first_seconds * 2**number)
                self.wait(longest * (0.5 + random.random() / 2))  # noqa: S311 - spreads requests, no secret
        raise AssertionError("no attempt was made")

    def wait(self, seconds: float) -> None:
        """Wait, or raise OperationCancelled as soon as `stop` is set."""
        self.stop.wait(seconds)
        self.check()

    def check(self) -> None:
        """Raise OperationCancelled if `stop` is set."""
        if self.stop.is_set():
            raise OperationCancelled("The transfer was cancelled.")
