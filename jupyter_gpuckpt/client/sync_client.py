"""The client for callers without an event loop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self, TypeVar

from ..errors import DaemonUnavailable
from ..wire import calls
from ..wire.calls import Call
from ..wire.daemon_settings import Settings
from ..wire.protocol import Operation, Owner, Result
from . import starting, transport
from .holding import Hold, OnEvent, OnLoss
from .mirror import Mirror
from .quick_httpx import httpx
from .starting import OnSilence, Target

_Reply = TypeVar("_Reply")


class Client:
    """A client of this place's daemon. Thread-safe; usable in a child after a fork.

    Every method raises the daemon's errors as their own classes, and DaemonUnavailable if it cannot be reached. With `start`, a
    daemon that does not run is started, even if it exited after the last call.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._pid, self._opened = 0, self._open()

    @classmethod
    def connect(
        cls,
        settings: Settings | None = None,
        *,
        start: bool = True,
        patience_seconds: float = calls.ANSWER_SECONDS,
        on_silence: OnSilence = starting.log_silence,
    ) -> Self:
        """Return a client whose daemon runs. `settings` (default: the environment's) apply only to a daemon that is started.

        `starting.ensure` explains the last two arguments.
        """
        target = starting.target(settings, start=start)
        starting.ensure(target, patience_seconds, on_silence)
        return cls(target)

    def require_answer(self, patience_seconds: float = calls.ANSWER_SECONDS) -> None:
        """Raise DaemonSilent if the daemon runs, but does not answer."""
        starting.require_answer(self._target, patience_seconds)

    def close(self) -> None:
        """Close the connections."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def send(self, call: Call[_Reply]) -> _Reply:
        """Send a call and return its reply."""
        with transport.transport_errors(self._target.socket):
            try:
                response = self._http.request(**transport.arguments(call))
            except httpx.TransportError as error:
                if not transport.may_repeat(call, error):
                    raise
                starting.ensure(self._target)
                response = self._http.request(**transport.arguments(call))
        return call.parse(response.status_code, response.content)

    def stream(self, call: Call[_Reply]) -> Iterator[_Reply]:
        """Send a call and yield every line of its reply."""
        with self._answering(call) as response:
            for line in response.iter_lines():
                yield call.parse(response.status_code, line.encode())

    @contextmanager
    def export(self, snapshot_id: str) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield the length and the bytes of a snapshot's archive. Raises ObjectCorrupt if the transfer is cut off."""
        with (
            self._answering(calls.export(snapshot_id)) as response,
            transport.export_errors(snapshot_id),
        ):
            yield int(response.headers["Content-Length"]), response.iter_bytes()

    def wait(self, operation_id: str) -> Result:
        """Wait until an operation is over; return its result, or raise its error as its own class."""
        *_, ended = self.follow(operation_id)
        return ended.outcome()

    def follow(self, operation_id: str) -> Iterator[Operation]:
        """Yield an operation at every change; the last record is the ended operation."""
        mirror = Mirror()
        for event in self.stream(calls.operation_events(operation_id)):
            for change in mirror.apply(event):
                if change.operation is not None:
                    yield change.operation
                    if change.operation.is_over:
                        return
        raise DaemonUnavailable("gpuckptd ended the connection.")

    def hold(self, owner: Owner, on_event: OnEvent, on_loss: OnLoss = lambda error: None) -> Hold:
        """Keep an owner's connection open in a thread until the returned `Hold` is closed; return when the daemon knows the owner."""
        return Hold(self._target, owner, on_event, on_loss).open()

    @contextmanager
    def _answering(self, call: Call[_Reply]) -> Iterator[httpx.Response]:
        with (
            transport.transport_errors(self._target.socket),
            self._http.stream(**transport.arguments(call)) as response,
        ):
            if response.is_error:
                call.parse(response.status_code, response.read())
            yield response

    @property
    def _http(self) -> httpx.Client:
        if self._pid != os.getpid():  # a fork must not share connections with its parent
            self._opened = self._open()
        return self._opened

    def _open(self) -> httpx.Client:
        self._pid = os.getpid()
        return httpx.Client(
            transport=transport.UnixTransport(self._target.socket), **transport.ANYWHERE
        )
