"""The pages that have just caught up with a kernel's output, and may not be the ones that show it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: The seconds after which a page counts as having received what it was sent. JupyterLab 4.2 opens a connection to the kernel before
#: the notebook's own, and closes it again; what only that one was sent would be lost.
SETTLED_SECONDS = 10.0


class SettlingPages:
    """A set of pages, each of which is removed after some seconds, and then `done` is called."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._timers: dict[object, asyncio.TimerHandle] = {}

    def __contains__(self, page: object) -> bool:
        return page in self._timers

    def add(self, page: object) -> None:
        """Add a page that has caught up."""
        loop = asyncio.get_running_loop()
        self._timers[page] = loop.call_later(SETTLED_SECONDS, self._end, page)

    def remove(self, page: object) -> None:
        """Remove a page that disconnects, if it is there."""
        if timer := self._timers.pop(page, None):
            timer.cancel()

    def clear(self) -> None:
        """Remove all pages."""
        for page in list(self._timers):
            self.remove(page)

    def _end(self, page: object) -> None:
        del self._timers[page]
        self._done()
