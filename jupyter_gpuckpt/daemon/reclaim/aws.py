"""Sources for Amazon EC2, which read the instance metadata service, version 2.

The interruption of a spot instance is announced two minutes before it (best effort), a rebalance recommendation may come earlier,
and scheduled events are known for days. `hibernate` keeps the memory: kernels are left alone.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from http import HTTPStatus

import msgspec

from ...wire.reclaim_records import Notice, NoticeKind
from .endpoints import Answer, Endpoint, NoAnswerError
from .polling import PolledSource, Source

_HINT = (
    "In a container the service may be one hop too far: allow two by `aws ec2 modify-instance-metadata-options"
    " --http-put-response-hop-limit 2`."
)
_TOKEN_SECONDS = 21_600
_LATEST = "/latest/meta-data"
_ACTIONS = {"terminate": NoticeKind.RECLAIM, "stop": NoticeKind.STOP}
#: Codes of scheduled events, and whether the disk can be read afterwards. The disk of a retired instance with an instance store is lost.
_SURVIVES = {
    "instance-reboot": True,
    "system-reboot": True,
    "system-maintenance": True,
    "instance-stop": True,
    "instance-retirement": False,
}


class _Spot(msgspec.Struct, frozen=True):
    action: str
    time: str


class _Rebalance(msgspec.Struct, frozen=True, rename="camel"):
    notice_time: str


class _Event(msgspec.Struct, frozen=True, rename="pascal"):
    code: str
    not_before: str
    event_id: str = ""
    state: str = "active"


class Imds:
    """The metadata service with a session token, which all sources of this module share."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._token, self._renew_at = "", 0.0
        self._one_at_a_time = asyncio.Lock()

    async def ask(self, path: str) -> Answer | None:
        """Return an answer, or None if there is nothing (404). Raises NoAnswerError."""
        answer = await self._get(path)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            self._renew_at = 0.0
            answer = await self._get(path)
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if answer.status != HTTPStatus.OK:
            raise NoAnswerError(f"it answers with the status {answer.status}")
        return answer

    async def _get(self, path: str) -> Answer:
        async with self._one_at_a_time:
            if time.monotonic() >= self._renew_at:
                await self._renew()
        return await self._endpoint.ask(path, {"X-aws-ec2-metadata-token": self._token})

    async def _renew(self) -> None:
        header = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS)}
        answer = await self._endpoint.ask("/latest/api/token", header, method="PUT", body=b"")
        token = answer.text()
        if answer.status != HTTPStatus.OK or not token.isprintable():
            raise NoAnswerError(f"it gives no token (status {answer.status})")
        self._token, self._renew_at = token, time.monotonic() + _TOKEN_SECONDS / 2


class _AwsSource(PolledSource):
    """The common base of this module's sources."""

    service, hint = "Amazon's instance metadata service", _HINT
    every_seconds, is_quiet = 30.0, True

    def __init__(self, imds: Imds, pace: float) -> None:
        super().__init__(pace)
        self._imds = imds


class AwsSpot(_AwsSource):
    """The source of spot interruptions."""

    name = "aws-spot"
    every_seconds, is_quiet = 5.0, False

    async def _look(self) -> list[Notice]:
        answer = await self._imds.ask(f"{_LATEST}/spot/instance-action")
        if answer is None:
            return []
        found = answer.record(_Spot)
        kind = _ACTIONS.get(found.action)
        if kind is None:
            return []  # hibernate: the memory is kept
        deadline = answer.deadline(_time(found.time))
        notice_id = f"{self.name}:{found.action}:{found.time}"
        return [Notice(notice_id, kind, deadline, disk_survives=kind is NoticeKind.STOP)]


class AwsRebalance(_AwsSource):
    """A source of rebalance recommendations, which predict the loss of a spot instance without certainty or deadline."""

    name = "aws-rebalance"

    async def _look(self) -> list[Notice]:
        answer = await self._imds.ask(f"{_LATEST}/events/recommendations/rebalance")
        if answer is None:
            return []
        when = answer.record(_Rebalance).notice_time
        _time(when)
        return [Notice(f"{self.name}:{when}", NoticeKind.REBALANCE)]


class AwsMaintenance(_AwsSource):
    """The source of scheduled events: reboots, stops and retirements."""

    name = "aws-maintenance"

    async def _look(self) -> list[Notice]:
        answer = await self._imds.ask(f"{_LATEST}/events/maintenance/scheduled")
        if answer is None:
            return []
        return [
            Notice(
                f"{self.name}:{event.event_id[:100] or event.code}",
                NoticeKind.MAINTENANCE,
                answer.http_deadline(event.not_before),
                _SURVIVES[event.code],
            )
            for event in answer.record(list[_Event])
            if event.state == "active" and event.code in _SURVIVES
        ]


def sources(endpoint: Endpoint, pace: float = 1.0) -> list[Source]:
    """Return all sources; `pace` multiplies their pauses."""
    imds = Imds(endpoint)
    return [AwsSpot(imds, pace), AwsRebalance(imds, pace), AwsMaintenance(imds, pace)]


def _time(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise NoAnswerError("its answer has no time") from error
    return found.timestamp() if found.tzinfo else found.replace(tzinfo=UTC).timestamp()
