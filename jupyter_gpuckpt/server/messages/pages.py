"""Pages that receive a kernel's messages, and pages that have just caught up but may soon close again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

#: The seconds after which a page counts as having received what it was sent. JupyterLab 4.2 opens a connection to the kernel before
#: the notebook's own, and closes it again. Messages that were sent only to that connection would be lost.
SETTLED_SECONDS = 10.0


class Client(Protocol):
    """A receiver of the kernel's messages that shows no user anything (`client_relay.ClientRelay`)."""

    def show(self, parts: list[bytes]) -> None:
        """Send a message that the kernel has just published."""


class Page(Client, Protocol):
    """A page that receives the kernel's messages (`gate.GatedConnection`)."""

    @property
    def client_session(self) -> str:
        """Return the page's own session id, the same when it connects again."""

    def show_again(self, parts: list[bytes]) -> None:
        """Send a message that was published while this page was not connected."""

    def show_text(self, text: str) -> None:
        """Send a note of this server in the middle of the kernel's output."""


class SettlingPages:
    """A set of pages. Each is removed `SETTLED_SECONDS` after it was added; then `done` is called."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._timers: dict[Page, asyncio.TimerHandle] = {}

    def __contains__(self, page: Page) -> bool:
        return page in self._timers

    def add(self, page: Page) -> None:
        """Add a page that has caught up."""
        loop = asyncio.get_running_loop()
        self._timers[page] = loop.call_later(SETTLED_SECONDS, self._end, page)

    def remove(self, page: Page) -> None:
        """Remove a page that disconnects, if it is there."""
        if timer := self._timers.pop(page, None):
            timer.cancel()

    def clear(self) -> None:
        """Remove all pages."""
        for page in list(self._timers):
            self.remove(page)

    def _end(self, page: Page) -> None:
        del self._timers[page]
        self._done()
