"""Source for Azure, which reads the scheduled events of the instance metadata service.

The service sends an event to all machines of a group, so the event's resources are compared with this machine's name. `Freeze`
pauses the machine for some seconds and keeps its memory: kernels are left alone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from http import HTTPStatus

import msgspec

from ...wire.reclaim_records import Notice, NoticeKind, now
from .endpoints import Answer, Endpoint, NoAnswerError
from .polling import PolledSource, Source

_HEADERS = {"Metadata": "true"}
_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
#: The first request switches the service on for the machine, which may take two minutes.
_FIRST_SECONDS, _NEXT_SECONDS = 130.0, 10.0
#: The time until the machine goes if the service does not say it: that of a spot machine, which is the shortest.
SHORTEST_SECONDS = 30.0
#: The kinds of events, and whether the disk can be read afterwards. A spot machine may be deleted with its disks.
_KINDS = {
    "Preempt": (NoticeKind.RECLAIM, False),
    "Terminate": (NoticeKind.RECLAIM, False),
    "Reboot": (NoticeKind.MAINTENANCE, True),
    "Redeploy": (NoticeKind.MAINTENANCE, True),
}


class _Event(msgspec.Struct, frozen=True, rename="pascal"):
    event_id: str
    event_type: str
    resources: list[str] = []
    not_before: str = ""


class _Events(msgspec.Struct, frozen=True, rename="pascal"):
    events: list[_Event] = []


class AzureEvents(PolledSource):
    """The source of scheduled events."""

    name, service = "azure", "Azure's instance metadata service"

    def __init__(self, endpoint: Endpoint, pace: float) -> None:
        super().__init__(pace)
        self._endpoint = endpoint
        self._own_name = ""
        self._is_on = False
        #: The deadlines of events that have begun, for which the service no longer gives the time.
        self._deadlines: dict[str, float] = {}

    def notices(self, known: Iterable[Notice] = ()) -> AsyncGenerator[Notice]:
        """Yield notices for ever."""
        known = list(known)
        self._deadlines = {one.id: one.deadline for one in known if one.deadline is not None}
        return super().notices(known)

    async def _look(self) -> list[Notice]:
        own_name = await self._name()
        answer = await self._ask(_EVENTS, _NEXT_SECONDS if self._is_on else _FIRST_SECONDS)
        self._is_on = True
        # The body may be empty when there are no events.
        events = answer.record(_Events).events if answer.body else []
        found = [
            self._notice(event, answer)
            for event in events
            if event.event_type in _KINDS and own_name in map(str.lower, event.resources)
        ]
        self._deadlines = {one.id: one.deadline for one in found if one.deadline is not None}
        return found

    async def _name(self) -> str:
        if not self._own_name:
            name = (await self._ask(_NAME, _NEXT_SECONDS)).text().lower()
            if not name:
                raise NoAnswerError("it does not tell the name of this machine")
            self._own_name = name
        return self._own_name

    async def _ask(self, path: str, seconds: float) -> Answer:
        answer = await self._endpoint.ask(path, _HEADERS, seconds=seconds)
        if answer.status != HTTPStatus.OK:
            raise NoAnswerError(f"it answers with the status {answer.status}")
        return answer

    def _notice(self, event: _Event, answer: Answer) -> Notice:
        kind, survives = _KINDS[event.event_type]
        notice_id = f"{self.name}:{event.event_id[:100]}"
        deadline = self._deadlines.get(notice_id, now() + SHORTEST_SECONDS)
        if event.not_before:
            deadline = answer.http_deadline(event.not_before)
        return Notice(notice_id, kind, deadline, survives)


def sources(endpoint: Endpoint, pace: float = 1.0) -> list[Source]:
    """Return the source; `pace` multiplies its pauses."""
    return [AzureEvents(endpoint, pace)]
