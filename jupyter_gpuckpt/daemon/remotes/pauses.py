"""The pauses between the attempts of one kind of work with a remote that fails."""

from __future__ import annotations

import random
import time

from ...errors import ErrorRecord

_FIRST_SECONDS, _MAX_SECONDS = 2.0, 600.0
#: How long an otherwise unneeded daemon waits for an unreachable remote; the next daemon continues.
PATIENCE_SECONDS = 3600.0


class Pauses:
    """The pauses of one kind of work: each failure doubles the next one, a success ends them."""

    def __init__(self) -> None:
        #: The error of the last attempt; None if it succeeded.
        self.trouble: ErrorRecord | None = None
        #: Whether no further attempt is made, because it would fail in the same way.
        self.is_refused = False
        self._failures = 0
        self._not_before = self._since = 0.0

    def failed(self, error: ErrorRecord, *, refused: bool = False) -> None:
        """Record a failed attempt."""
        now = time.monotonic()
        if self.trouble is None:
            self._since = now
        self.trouble, self.is_refused = error, refused
        longest = min(_MAX_SECONDS, _FIRST_SECONDS * 2**self._failures)
        self._failures = min(self._failures + 1, 20)
        # Jitter keeps daemons from retrying at the same moment.
        self._not_before = now + longest * (0.5 + random.random() / 2)  # noqa: S311 - no secret

    def end(self) -> None:
        """Record that an attempt succeeded, or that the next one is to be made at once."""
        self.trouble, self.is_refused = None, False
        self._failures, self._not_before = 0, 0.0

    @property
    def is_over(self) -> bool:
        """Return whether an attempt may be made now."""
        return not self.is_refused and time.monotonic() >= self._not_before

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds until the next attempt; None if none will be made."""
        return None if self.is_refused else max(0.0, self._not_before - time.monotonic())

    @property
    def is_worth_waiting(self) -> bool:
        """Return whether an attempt may succeed soon."""
        lasts = time.monotonic() - self._since
        return not self.is_refused and (self.trouble is None or lasts < PATIENCE_SECONDS)
