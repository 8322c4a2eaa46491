"""The client for callers on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Self, TypeVar

from ..errors import DaemonUnavailable, GpuCkptError
from ..wire import calls
from ..wire.calls import Call
from ..wire.daemon_settings import Settings
from ..wire.protocol import Event, Operation, Owner, Result
from . import starting, transport
from .holding import Backoff, OnLoss
from .mirror import Mirror
from .quick_httpx import httpx
from .starting import Target

_Reply = TypeVar("_Reply")


class AsyncClient:
    """A client of this place's daemon, like `Client`; it belongs to the event loop that first uses it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        over_socket = httpx.AsyncHTTPTransport(uds=str(target.socket), verify=False)
        self._http = httpx.AsyncClient(transport=over_socket, **transport.ANYWHERE)

    @classmethod
    async def connect(
        cls,
        settings: Settings | None = None,
        *,
        start: bool = True,
        patience_seconds: float = calls.ANSWER_SECONDS,
    ) -> Self:
        """Return a client whose daemon runs. `settings` (default: the environment's) apply only to a daemon that is started.

        `patience_seconds`: as for `starting.ensure`.
        """
        target = await asyncio.to_thread(starting.target, settings, start=start)
        await asyncio.to_thread(starting.ensure, target, patience_seconds)
        return cls(target)

    async def require_answer(self, patience_seconds: float = calls.ANSWER_SECONDS) -> None:
        """Raise DaemonSilent if the daemon runs, but does not answer."""
        await asyncio.to_thread(starting.require_answer, self._target, patience_seconds)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def send(self, call: Call[_Reply]) -> _Reply:
        """Send a call and return its reply. Raises DaemonUnavailable, also after `close`."""
        with transport.transport_errors(self._target.socket), self._while_open():
            try:
                response = await self._http.request(**transport.arguments(call))
            except httpx.TransportError as error:
                if not transport.may_repeat(call, error):
                    raise
                await asyncio.to_thread(starting.ensure, self._target)
                response = await self._http.request(**transport.arguments(call))
        return call.parse(response.status_code, response.content)

    @contextmanager
    def _while_open(self) -> Iterator[None]:
        """Raise DaemonUnavailable for a request after, or during, `close`: a stopping server still gets requests."""
        try:
            yield
        except RuntimeError as error:
            if not self._http.is_closed:
                raise
            raise DaemonUnavailable(
                "The connection to gpuckptd is closed.",
                hint="This server is stopping; the next one connects again.",
            ) from error

    async def stream(self, call: Call[_Reply]) -> AsyncGenerator[_Reply]:
        """Send a call and yield every line of its reply."""
        async with self._answering(call) as response:
            async for line in response.aiter_lines():
                yield call.parse(response.status_code, line.encode())

    @asynccontextmanager
    async def export(self, snapshot_id: str) -> AsyncGenerator[tuple[int, AsyncIterator[bytes]]]:
        """Yield the length and the bytes of a snapshot's archive. Raises ObjectCorrupt if the transfer is cut off."""
        async with self._answering(calls.export(snapshot_id)) as response:
            with transport.export_errors(snapshot_id):
                yield int(response.headers["Content-Length"]), response.aiter_bytes()

    async def wait(self, operation_id: str) -> Result:
        """Wait until an operation is over; return its result, or raise its error as its own class."""
        return (await self.finish(operation_id)).outcome()

    async def finish(self, operation_id: str) -> Operation:
        """Wait until an operation is over and return it."""
        async with aclosing(self.follow(operation_id)) as changes:
            return [operation async for operation in changes][-1]

    async def follow(self, operation_id: str) -> AsyncGenerator[Operation]:
        """Yield an operation at every change; the last record is the ended operation."""
        mirror = Mirror()
        async with aclosing(self.stream(calls.operation_events(operation_id))) as events:
            async for event in events:
                for change in mirror.apply(event):
                    if change.operation is not None:
                        yield change.operation
                        if change.operation.is_over:
                            return
        raise DaemonUnavailable("gpuckptd ended the connection.")

    async def events(
        self, owner: Owner, mirror: Mirror, on_loss: OnLoss = lambda error: None
    ) -> AsyncGenerator[list[Event]]:
        """Keep an owner's connection open while this is iterated, and yield the changes that each event makes.

        A lost connection is reopened after `on_loss`. Only a failure of the first connection raises.
        """
        backoff, connected = Backoff(), False
        while True:
            try:
                # It is asked again after a pause, anyway.
                await asyncio.to_thread(starting.ensure, self._target, calls.ALIVE_SECONDS)
                async with aclosing(self.stream(calls.owner_events(owner))) as events:
                    async for event in events:
                        connected = True
                        backoff.succeeded()
                        yield mirror.apply(event)
                loss: GpuCkptError = DaemonUnavailable("gpuckptd ended the connection.")
            except GpuCkptError as error:
                loss = error
            if not connected:
                raise loss
            on_loss(loss)
            await asyncio.sleep(backoff.seconds())

    @asynccontextmanager
    async def _answering(self, call: Call[_Reply]) -> AsyncGenerator[httpx.Response]:
        with transport.transport_errors(self._target.socket):
            async with self._http.stream(**transport.arguments(call)) as response:
                if response.is_error:
                    call.parse(response.status_code, await response.aread())
                yield response
