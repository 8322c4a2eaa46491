"""The loop that polls a source and yields new notices, their changes and their withdrawals."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Protocol

import msgspec

from ...wire.reclaim_records import MAX_NOTICES, Notice
from .endpoints import NoAnswerError

#: Deadlines of one notice that differ by less count as equal, because services give their time in whole seconds.
_SAME_SECONDS = 2.5
#: The pauses after a failure, which double from the first to the longest.
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 60.0
#: Each throttled request doubles the interval of a poll, at most to this many times; each answer shortens it by a part.
#: The daemons of a machine do not know of each other, and share in this way what its service allows.
_MAX_SLOWER, _SLOWER, _FASTER = 16.0, 2.0, 0.95
#: The pause before a source that failed by a defect is used again.
_AFTER_DEFECT_SECONDS = 30.0

_log = logging.getLogger(__name__)


class Source(Protocol):
    """A source of notices, polled or waited for until it is closed."""

    #: The prefix of the ids of its notices, before a colon.
    name: str

    def notices(self, known: Iterable[Notice] = ()) -> AsyncGenerator[Notice]:
        """Yield each notice, its changes and its withdrawal, for ever.

        `known`: the notices that stood when the source failed; of these only changes are yielded.
        """


class Standing:
    """The set of standing notices. It finds the differences to a later list of them."""

    def __init__(self, known: Iterable[Notice] = ()) -> None:
        self._notices = {notice.id: notice for notice in known}

    def changes(self, found: Iterable[Notice]) -> list[Notice]:
        """Replace all notices; return those that are new or changed, and the withdrawn ones."""
        before, self._notices = self._notices, {}
        changed = []
        for notice in found:
            known = before.pop(notice.id, None)
            if len(self._notices) >= MAX_NOTICES:
                continue
            if known is not None and _is_same(known, notice):
                self._notices[notice.id] = known
                continue
            self._notices[notice.id] = notice
            changed.append(notice)
        return [
            *(msgspec.structs.replace(one, withdrawn=True) for one in before.values()),
            *changed,
        ]


def _is_same(known: Notice, notice: Notice) -> bool:
    if known.deadline is None or notice.deadline is None:
        return known == notice
    near = abs(known.deadline - notice.deadline) < _SAME_SECONDS
    return near and msgspec.structs.replace(notice, deadline=known.deadline) == known


class PolledSource:
    """A source of notices that is asked for the present ones, at most every `every_seconds`; `pace` multiplies that.

    `service`: its name in the log; `hint`: what may cause a time-out. `is_quiet`: another source of the same service logs failures.
    """

    name = service = hint = ""
    every_seconds = 1.0
    is_quiet = False

    def __init__(self, pace: float) -> None:
        self._pace = pace

    async def _look(self) -> list[Notice]:
        """Return the notices that stand. Raises NoAnswerError."""
        raise NotImplementedError

    async def notices(self, known: Iterable[Notice] = ()) -> AsyncGenerator[Notice]:
        """Yield notices that are new or changed, for ever.

        A failure leaves all notices standing. It is logged once until the next answer comes, and a pause follows. A service that
        throttles requests gets fewer of them.
        """
        standing = Standing(notice for notice in known if notice.id.startswith(f"{self.name}:"))
        level = logging.DEBUG if self.is_quiet else logging.WARNING
        loop, failures, slower = asyncio.get_running_loop(), 0, 1.0
        while True:
            began = loop.time()
            try:
                found = await self._look()
            except NoAnswerError as error:
                if failures == 0:
                    why = f" {self.hint}" if self.hint and error.timed_out else ""
                    text = (
                        "%s: %s. Notices that this machine goes cannot be seen until it answers.%s"
                    )
                    _log.log(level, text, self.service, error, why)
                pause = _pause(failures, error.wait_seconds)
                failures += 1
                if error.throttled:
                    slower = min(slower * _SLOWER, _MAX_SLOWER)
            else:
                if failures:
                    _log.log(level, "%s answers again", self.service)
                failures, slower = 0, max(slower * _FASTER, 1.0)
                for notice in standing.changes(found):
                    yield notice
                # A random part keeps the daemons of a machine, and of many machines, from polling at the same moment.
                random_part = random.uniform(0.9, 1.1)  # noqa: S311
                interval = self.every_seconds * self._pace * slower * random_part
                pause = began + interval - loop.time()
            await asyncio.sleep(max(0.0, pause))


def _pause(failures: int, wait_seconds: float) -> float:
    longest: float = min(FIRST_PAUSE_SECONDS * 2 ** min(failures, 20), MAX_PAUSE_SECONDS)
    # Added to the wait that the service asks for, so that those whom it asks at one moment do not return at one.
    return wait_seconds + longest * random.uniform(0.5, 1.0)  # noqa: S311


async def merged(sources: Iterable[Source]) -> AsyncGenerator[Notice]:
    """Yield the notices of several sources, for ever. A source that raises is logged and used again after a while."""
    found: asyncio.Queue[Notice] = asyncio.Queue()

    async def forward(source: Source) -> None:
        stands: dict[str, Notice] = {}
        while True:
            try:
                async with aclosing(source.notices(list(stands.values()))) as notices:
                    async for notice in notices:
                        stands[notice.id] = notice
                        if notice.withdrawn:
                            del stands[notice.id]
                        found.put_nowait(notice)
            except Exception:
                _log.exception("notices of %s cannot be read", source.name)
            await asyncio.sleep(_AFTER_DEFECT_SECONDS)

    tasks = [asyncio.ensure_future(forward(source)) for source in sources]
    try:
        while True:
            yield await found.get()
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
