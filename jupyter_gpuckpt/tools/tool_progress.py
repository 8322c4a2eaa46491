"""Where a tool tells how far it is: the door that the caller came through sets it for the time of the call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

#: Called with a sentence, or the name of a stage.
Tell = Callable[[str], Awaitable[None]]

TELL: ContextVar[Tell | None] = ContextVar("TELL", default=None)


async def tell(text: str) -> None:
    """Tell the caller of the running tool how far it is, if it listens."""
    if (told := TELL.get()) is not None:
        await told(text)
