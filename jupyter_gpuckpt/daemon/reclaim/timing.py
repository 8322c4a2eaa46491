"""When kernels are saved, and when they are suspended, before this machine goes.

If there is time, every kernel is saved and uploaded first, while it runs on. The suspends follow shortly before the deadline and
store and send only what has changed since. They take no longer than those first saves, so they begin when twice the time is left
that the first saves and uploads have taken. This holds while these have not ended either: then a third of the time was theirs.

What is done for a notice goes on until it is withdrawn or put off, although less remains to be done the more kernels are suspended.
"""

from __future__ import annotations

import msgspec

from ...wire.reclaim_records import Notice, now

#: A notice is acted on when less than this time is left, or earlier if the suspends take long.
LEAD_SECONDS = 300.0
#: Kernels are saved first if at least this time is left, and suspended at the latest when that time is left.
FIRST_SECONDS, LAST_SECONDS = 60.0, 30.0
#: How much longer than all suspends the time must be for saving kernels first (see above), and how much longer it is when that begins.
_TIMES, _LEAD_TIMES = 3.0, 4.0


class Timing:
    """The times of one reaction, from the first notice that is acted on until none is."""

    def __init__(self) -> None:
        #: When the first saves began, and how long they took with their uploads.
        self._began: float | None = None
        self._took: float | None = None
        #: The longest expected time of the suspends of all kernels since something is done.
        self._need_seconds = 0.0

    def begin(self) -> None:
        """Note that the first saves begin, unless they have begun before."""
        if self._began is None:
            self._began = now()

    def complete(self) -> None:
        """Note that all first saves are uploaded."""
        if self._began is not None and self._took is None:
            self._took = now() - self._began

    def applied(self, notice: Notice, need_seconds: float) -> Notice:
        """Return a notice with what is done for it now. `need_seconds`: the expected time of the suspends of all kernels."""
        left = notice.seconds_left
        if left is None:
            return msgspec.structs.replace(notice, is_saving=False, is_due=False)
        # It becomes less with every kernel that is suspended.
        need_seconds = max(need_seconds, self._need_seconds)
        saves_first = not notice.ends_early
        lead = max(LEAD_SECONDS, need_seconds * (_LEAD_TIMES if saves_first else 1.0))
        if left > lead and not (notice.is_saving or notice.is_due):
            return notice
        self._need_seconds = need_seconds
        is_due = notice.is_due or not saves_first or self._must_suspend(left, need_seconds)
        return msgspec.structs.replace(notice, is_saving=not is_due, is_due=is_due)

    def put_off(self, notice: Notice, need_seconds: float) -> Notice:
        """Return a notice whose deadline is later than before with what is done for it now; parameters as of `applied`."""
        undecided = msgspec.structs.replace(notice, is_saving=False, is_due=False)
        return self.applied(undecided, need_seconds)

    def _must_suspend(self, left: float, need_seconds: float) -> bool:
        if self._began is None:
            return left < max(FIRST_SECONDS, _TIMES * need_seconds)
        spent = now() - self._began if self._took is None else self._took
        return left <= max(LAST_SECONDS, need_seconds, 2.0 * spent)
