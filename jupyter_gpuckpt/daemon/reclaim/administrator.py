"""Sources of an administrator's notices: a program that prints them, and a URL that lists them."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shlex
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from http import HTTPStatus
from typing import Annotated

import msgspec

from ...host import commands
from ...wire import decoding
from ...wire.reclaim_records import MAX_ID_CHARACTERS, MAX_NOTICES, Notice, NoticeKind, now
from .endpoints import Endpoint, NoAnswerError
from .polling import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, polled

_URL_EVERY_SECONDS = 5.0
_MAX_LINE_BYTES = 1 << 16

_log = logging.getLogger(__name__)


class Given(msgspec.Struct, frozen=True):
    """A notice as an administrator gives it. A URL may give `deadline`, a time as HTTP and mail write it, instead of `within_seconds`."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_CHARACTERS // 2)]
    within_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e8)] = 0.0
    deadline: str = ""
    disk_survives: bool = False
    withdrawn: bool = False


class Listed(msgspec.Struct, frozen=True):
    """The answer of a URL: all notices that stand."""

    notices: list[Given] = []


class UrlNotices:
    """The source that asks a URL for the notices that stand: 204 or 404 for none, else `{"notices": [...]}`."""

    name = "url"

    def __init__(self, endpoint: Endpoint, pace: float = 1.0) -> None:
        self._endpoint, self._pace = endpoint, pace
        #: The deadlines of notices that give a remaining time, counted from when each notice was first read.
        self._deadlines: dict[str, float] = {}

    def notices(self, known: Iterable[Notice] = ()) -> AsyncGenerator[Notice]:
        """Yield notices for ever."""
        every = _URL_EVERY_SECONDS * self._pace
        service = "the URL for notices that this machine goes"
        return polled(self._look, name=self.name, service=service, every_seconds=every, known=known)

    async def acknowledge(self, notice: Notice) -> None:
        """Do nothing: the URL accepts no answer."""

    async def _look(self) -> list[Notice]:
        answer = await self._endpoint.ask("", {"Accept": "application/json"})
        if answer.status in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND}:
            given: list[Given] = []
        elif answer.status != HTTPStatus.OK:
            raise NoAnswerError(f"it answers with the status {answer.status}")
        else:
            given = [one for one in answer.record(Listed).notices if not one.withdrawn]
        found = []
        for one in given[:MAX_NOTICES]:
            notice_id = f"{self.name}:{one.id}"
            deadline = self._deadlines.get(notice_id, now() + one.within_seconds)
            if one.deadline:
                deadline = answer.http_deadline(one.deadline)
            found.append(Notice(notice_id, NoticeKind.REQUESTED, deadline, one.disk_survives))
        self._deadlines = {one.id: one.deadline for one in found if one.deadline is not None}
        return found


class CommandNotices:
    """The source that reads the output of a program, a JSON object per line; it is started again when it ends."""

    name = "command"

    def __init__(self, command: str, pace: float = 1.0) -> None:
        self._command, self._pace = command, pace

    async def notices(self, known: Iterable[Notice] = ()) -> AsyncGenerator[Notice]:
        """Yield notices for ever."""
        failures = 0
        while True:
            try:
                async with aclosing(self._lines()) as lines:
                    async for line in lines:
                        failures = 0
                        if (notice := self._notice(line)) is not None:
                            yield notice
                why = "it has ended"
            except (OSError, ValueError, commands.CommandFailed) as error:
                why = str(error)
            if failures == 0:
                _log.warning(
                    "the program for notices that this machine goes is started again: %s", why
                )
            longest = min(FIRST_PAUSE_SECONDS * 2 ** min(failures, 20), MAX_PAUSE_SECONDS)
            failures += 1
            await asyncio.sleep(longest * self._pace * random.uniform(0.5, 1.0))  # noqa: S311

    async def acknowledge(self, notice: Notice) -> None:
        """Do nothing: the program accepts no answer."""

    async def _lines(self) -> AsyncGenerator[bytes]:
        """Start the program and yield its lines. Raises OSError, CommandFailed, and ValueError for a line that is too long."""
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb", buffering=0) as output:
            try:
                program = commands.spawn(shlex.split(self._command), stdout=writing)
            finally:
                os.close(writing)
            lines = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
            protocol = asyncio.StreamReaderProtocol(lines)
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: protocol, output
            )
            try:
                while line := await lines.readline():
                    yield line
            finally:
                transport.close()
                await asyncio.to_thread(commands.stop, program)

    def _notice(self, line: bytes) -> Notice | None:
        try:
            given = decoding.from_json(line, Given)
        except msgspec.DecodeError as error:
            _log.warning("a line of the program for notices is not understood: %s", error)
            return None
        return Notice(
            f"{self.name}:{given.id}",
            NoticeKind.REQUESTED,
            now() + given.within_seconds,
            given.disk_survives,
            given.withdrawn,
        )
