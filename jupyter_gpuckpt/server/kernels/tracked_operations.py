"""Operations as clients of this server see them: each is over only when the server's part is done, too."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine

import msgspec

from ...errors import GpuCkptError, record_of
from ...protocol import Operation, OperationKind, OperationState, Result

#: The number of ended operations that can still be requested.
_REMEMBERED = 200


class TrackedOperations:
    """A table of the operations that this server started, by id. `on_end` is called with the kernel's id whenever one is over."""

    def __init__(self, on_end: Callable[[str], None]) -> None:
        self._on_end = on_end
        self._latest: dict[str, Operation] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __contains__(self, operation_id: str) -> bool:
        return operation_id in self._tasks

    def track(self, operation: Operation, following: Coroutine[None, None, None]) -> None:
        """Add an operation. It is over when `following` has ended, which calls `note` at each change."""
        self._latest[operation.operation_id] = operation
        task = asyncio.ensure_future(following)
        task.add_done_callback(lambda _: self._on_end(operation.kernel_id))
        self._tasks[operation.operation_id] = task
        self._forget_old()

    def note(self, operation_id: str, operation: Operation) -> None:
        """Store the newest record of an operation."""
        self._latest[operation_id] = operation

    def latest(self, operation_id: str) -> Operation:
        """Return the newest record of an operation."""
        return self._latest[operation_id]

    def compose(
        self, kind: OperationKind, kernel_id: str, work: Coroutine[None, None, Result]
    ) -> Operation:
        """Start an operation of this server that consists of several of the daemon's; an exception of `work` is its error."""
        begun = Operation(uuid.uuid4().hex, kind, kernel_id, OperationState.RUNNING)

        async def follow() -> None:
            ended = begun
            try:
                result = await work
                ended = msgspec.structs.replace(
                    begun, state=OperationState.SUCCEEDED, result=result
                )
            except GpuCkptError as error:
                ended = msgspec.structs.replace(
                    begun, state=OperationState.FAILED, error=record_of(error)
                )
            finally:
                self.note(begun.operation_id, ended)

        self.track(begun, follow())
        return begun

    async def wait(self, operation_id: str, timeout_seconds: float | None) -> Operation | None:
        """Wait for the end of an operation and return it; None if another client started it, or it ended long ago."""
        task = self._tasks.get(operation_id)
        if task is not None:
            await asyncio.wait({task}, timeout=timeout_seconds)
        if operation_id in self._latest:
            return self.as_seen(self._latest[operation_id])
        return None

    async def finish(self, operation: Operation) -> Operation:
        """Wait until an operation is over, however long it takes, and return it."""
        return await self.wait(operation.operation_id, None) or operation

    async def result(self, operation: Operation) -> Result:
        """Wait until an operation is over and return its result, or raise its error."""
        return (await self.finish(operation)).outcome()

    def as_seen(self, operation: Operation) -> Operation:
        """Return an operation as clients see it: it runs until this server is done with it, too."""
        task = self._tasks.get(operation.operation_id)
        if task is None or task.done() or operation.state is OperationState.RUNNING:
            return operation
        return msgspec.structs.replace(
            operation, state=OperationState.RUNNING, result=None, error=None
        )

    def running(self) -> set[asyncio.Task[None]]:
        """Return the tasks that still follow an operation."""
        return {task for task in self._tasks.values() if not task.done()}

    def _forget_old(self) -> None:
        ended = [key for key, task in self._tasks.items() if task.done()]
        for key in ended[:-_REMEMBERED]:
            del self._tasks[key]
            self._latest.pop(key, None)
