"""Sources for Google Compute Engine: two values of the metadata server, which answers a request when the value changes.

`MIGRATE_ON_HOST_MAINTENANCE` moves the machine with its memory: kernels are left alone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from http import HTTPStatus
from urllib.parse import quote

from ...wire.reclaim_records import Notice, NoticeKind, now
from .endpoints import Answer, Endpoint, NoAnswerError
from .polling import PolledSource, Source

_HEADERS = {"Metadata-Flavor": "Google"}
#: How long the server waits for a change, and how much longer the answer may take.
_WAIT_SECONDS, _MORE_SECONDS = 60, 15.0
#: The time until the machine goes after each announcement. Preemption may be configured to leave two minutes; that is not announced.
PREEMPTED_SECONDS, MAINTENANCE_SECONDS = 30.0, 60.0


class _GcpValue(PolledSource):
    """The source that watches one value of the metadata server."""

    service = "Google's metadata server"
    #: The shortest interval between two requests, in case a server or proxy does not wait for a change.
    every_seconds = 1.0
    _path = ""

    def __init__(self, endpoint: Endpoint, pace: float) -> None:
        super().__init__(pace)
        self._endpoint = endpoint
        self._etag = ""
        self._deadline: float | None = None

    def notices(self, known: Iterable[Notice] = ()) -> AsyncGenerator[Notice]:
        """Yield notices for ever."""
        known = list(known)
        # The server gives no time of the announcement, so its first reading counts, also by another process.
        deadlines = [one.deadline for one in known if one.id.startswith(f"{self.name}:")]
        self._deadline, self._etag = next(iter(deadlines), None), ""
        return super().notices(known)

    async def _look(self) -> list[Notice]:
        value = await self._value()
        found = self._notice_of(value)
        if found is None:
            self._deadline = None
            return []
        kind, seconds, survives = found
        if self._deadline is None:
            self._deadline = now() + seconds
        return [Notice(f"{self.name}:{value}", kind, self._deadline, survives)]

    async def _value(self) -> str:
        query = ""
        if self._etag:
            seconds = f"{_WAIT_SECONDS}"
            query = f"?wait_for_change=true&timeout_sec={seconds}&last_etag={quote(self._etag)}"
        self._etag, etag = "", self._etag  # after a failure the value is asked for without waiting
        answer = await self._ask(query)
        self._etag = answer.headers.get("ETag", "")[:100] or etag
        return answer.text()[:100]

    async def _ask(self, query: str) -> Answer:
        seconds = _WAIT_SECONDS + _MORE_SECONDS if query else None
        answer = await self._endpoint.ask(
            f"/computeMetadata/v1/instance/{self._path}{query}", _HEADERS, seconds=seconds
        )
        if answer.status != HTTPStatus.OK:
            raise NoAnswerError(f"it answers with the status {answer.status}")
        if answer.headers.get("Metadata-Flavor") != "Google":
            raise NoAnswerError("something else answers in its place")
        return answer

    def _notice_of(self, value: str) -> tuple[NoticeKind, float, bool] | None:
        raise NotImplementedError


class GcpPreempted(_GcpValue):
    """The source of preemptions: a spot or preemptible machine will be stopped or deleted."""

    name, _path = "gcp-preempted", "preempted"

    def _notice_of(self, value: str) -> tuple[NoticeKind, float, bool] | None:
        return (NoticeKind.RECLAIM, PREEMPTED_SECONDS, False) if value == "TRUE" else None


class GcpMaintenance(_GcpValue):
    """The source of host maintenance for which the machine will be stopped."""

    name, _path, is_quiet = "gcp-maintenance", "maintenance-event", True

    def _notice_of(self, value: str) -> tuple[NoticeKind, float, bool] | None:
        if value != "TERMINATE_ON_HOST_MAINTENANCE":
            return None
        return NoticeKind.MAINTENANCE, MAINTENANCE_SECONDS, True


def sources(endpoint: Endpoint, pace: float = 1.0) -> list[Source]:
    """Return all sources; `pace` multiplies their pauses."""
    return [GcpPreempted(endpoint, pace), GcpMaintenance(endpoint, pace)]
