"""Operations as clients of this server see them: each is over only when the server's part is done, too."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager

import msgspec

from ...errors import GpuCkptError, OperationCancelled, record_of
from ...wire.progress import ProgressRecord
from ...wire.protocol import Operation, OperationKind, OperationState, Result

_log = logging.getLogger(__name__)

#: The number of ended operations that can still be requested.
_REMEMBERED = 200


class Steps:
    """The steps of a composed operation: the progress of the one that runs is its progress, and a cancellation goes to that one."""

    def __init__(self, tracked: TrackedOperations, note: Callable[[ProgressRecord], None]) -> None:
        self._tracked, self.note = tracked, note
        self.is_cancelled = False
        #: The id of the step that runs now; empty if none does, or none that can be canceled.
        self.running_id = ""

    def check(self) -> None:
        """Raise OperationCancelled if the composed operation was canceled."""
        if self.is_cancelled:
            raise OperationCancelled("The operation was canceled.")

    async def run(self, started: Operation, *, can_cancel: bool = True) -> Result:
        """Wait for the end of a tracked step; return its result or raise its error.

        `can_cancel`: False for a step that undoes others, as it follows their cancellation.
        """
        if can_cancel:
            self.running_id = started.operation_id
        try:
            with self._tracked.watching(started.operation_id, self.note):
                if can_cancel and self.is_cancelled:
                    await self._tracked.cancel(started.operation_id)
                return await self._tracked.result(started)
        finally:
            self.running_id = ""


class TrackedOperations:
    """A table of the operations that this server started, by id.

    `on_change`: called with the kernel's id at a change of what pages see. `cancel`: cancels an operation of the daemon, by its id.
    """

    def __init__(
        self, on_change: Callable[[str], None], cancel: Callable[[str], Awaitable[None]]
    ) -> None:
        self._on_change, self._cancel = on_change, cancel
        self._latest: dict[str, Operation] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._steps: dict[str, Steps] = {}
        #: Ids of steps and what is called with their progress. Two composed operations may wait for the same step.
        self._watchers: list[tuple[str, Callable[[ProgressRecord], None]]] = []

    def __contains__(self, operation_id: str) -> bool:
        return operation_id in self._tasks

    def track(self, operation: Operation, following: Coroutine[None, None, None]) -> None:
        """Add an operation. It is over when `following` has ended, which calls `note` at each change."""
        self._latest[operation.operation_id] = operation
        task = asyncio.ensure_future(following)
        task.add_done_callback(lambda _: self._on_change(operation.kernel_id))
        self._tasks[operation.operation_id] = task
        self._forget_old()

    def note(self, operation_id: str, operation: Operation) -> None:
        """Store the newest record of an operation."""
        self._latest[operation_id] = operation
        for step_id, watcher in list(self._watchers):
            if step_id == operation_id and operation.progress.stage:
                watcher(operation.progress)

    @contextmanager
    def watching(
        self, operation_id: str, watcher: Callable[[ProgressRecord], None]
    ) -> Iterator[None]:
        """Return a context in which `watcher` is called with the progress of an operation, now and at each change."""
        self._watchers.append((operation_id, watcher))
        try:
            latest = self._latest.get(operation_id)
            if latest is not None and latest.progress.stage:
                watcher(latest.progress)
            yield
        finally:
            self._watchers.remove((operation_id, watcher))

    def latest(self, operation_id: str) -> Operation:
        """Return the newest record of an operation."""
        return self._latest[operation_id]

    def compose(
        self,
        kind: OperationKind,
        kernel_id: str,
        work: Callable[[Steps], Coroutine[None, None, Result]],
    ) -> Operation:
        """Start an operation of this server that consists of several of the daemon's; an exception of `work` is its error."""
        begun = Operation(uuid.uuid4().hex, kind, kernel_id, OperationState.RUNNING)
        operation_id = begun.operation_id

        def note(progress: ProgressRecord) -> None:
            self.note(operation_id, msgspec.structs.replace(begun, progress=progress))
            self._on_change(kernel_id)

        steps = self._steps[operation_id] = Steps(self, note)

        async def follow() -> None:
            changes: dict[str, object] = {}
            try:
                changes = {"state": OperationState.SUCCEEDED, "result": await work(steps)}
            except OperationCancelled as error:
                changes = {"state": OperationState.CANCELLED, "error": record_of(error)}
            except GpuCkptError as error:
                changes = {"state": OperationState.FAILED, "error": record_of(error)}
            except Exception as error:
                # This is a defect. Clients would wait forever for an operation that does not end.
                _log.exception("an operation on kernel %s failed", kernel_id)
                changes = {"state": OperationState.FAILED, "error": record_of(error)}
            finally:
                del self._steps[operation_id]
                latest = self.latest(operation_id)
                self.note(operation_id, msgspec.structs.replace(latest, **changes))

        self.track(begun, follow())
        return begun

    def composed(self, kernel_id: str) -> Operation | None:
        """Return the composed operation that runs on a kernel and tells its progress; None if there is none."""
        found = (self._latest[operation_id] for operation_id in self._steps)
        return next((o for o in found if o.kernel_id == kernel_id and o.progress.stage), None)

    async def cancel(self, operation_id: str) -> None:
        """Cancel an operation: of a composed one the step that runs, and all later ones."""
        steps = self._steps.get(operation_id)
        if steps is None:
            await self._cancel(operation_id)
            return
        steps.is_cancelled = True
        if steps.running_id:
            await self.cancel(steps.running_id)

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
