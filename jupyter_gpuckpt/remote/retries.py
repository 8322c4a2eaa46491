"""Retries of requests to a remote."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from typing import Self, TypeVar

from ..errors import OperationCancelled, StoreUnavailable

_Answer = TypeVar("_Answer")

_ATTEMPTS = 6
_FIRST_SECONDS = 0.25
_MAX_PAUSE_SECONDS = 20.0
#: No new attempt begins after this time if a user waits for the result.
_WAITED_SECONDS = 30.0


class Retries:
    """A policy for repeating failed requests: the wait doubles each time, minus a random part.

    `stop` ends every wait; then OperationCancelled is raised. `max_seconds`: no attempt begins later, because a user waits.
    `tell`: called with the error before another attempt, and with None when an attempt has succeeded after an error.
    """

    def __init__(
        self,
        *,
        attempts: int = _ATTEMPTS,
        first_seconds: float = _FIRST_SECONDS,
        stop: threading.Event | None = None,
        max_seconds: float = math.inf,
        tell: Callable[[StoreUnavailable | None], None] = lambda error: None,
    ) -> None:
        self._attempts, self._first_seconds = attempts, first_seconds
        self._max_seconds, self._tell = max_seconds, tell
        self.stop = stop or threading.Event()

    @classmethod
    def while_somebody_waits(cls, stop: threading.Event | None = None) -> Self:
        """Return a policy for a user who waits: its total time is limited, even if each attempt is slow."""
        return cls(stop=stop, max_seconds=_WAITED_SECONDS)

    def run(self, attempt: Callable[[], _Answer]) -> _Answer:
        """Call `attempt` and return its result. Repeat it after StoreUnavailable; the last attempt's error is raised."""
        last_begin = time.monotonic() + self._max_seconds
        for number in range(1, self._attempts + 1):
            self.check()
            try:
                found = attempt()
            except StoreUnavailable as error:
                if number == self._attempts:
                    raise
                longest = min(_MAX_PAUSE_SECONDS, self._first_seconds * 2**number)
                seconds = longest * (0.5 + random.random() / 2)  # noqa: S311 - spreads requests, no secret
                if time.monotonic() + seconds > last_begin:
                    raise
                self._tell(error)
                self.wait(seconds)
            else:
                if number > 1:
                    self._tell(None)
                return found
        raise AssertionError("no attempt was made")

    def wait(self, seconds: float) -> None:
        """Wait, or raise OperationCancelled as soon as `stop` is set."""
        self.stop.wait(seconds)
        self.check()

    def check(self) -> None:
        """Raise OperationCancelled if `stop` is set."""
        if self.stop.is_set():
            raise OperationCancelled("The transfer was cancelled.")
