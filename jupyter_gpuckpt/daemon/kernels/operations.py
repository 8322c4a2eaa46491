"""Operations: work on a kernel that has an id, continues when its client disconnects, and can be followed and canceled."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from ...errors import ErrorRecord, GpuCkptError, OperationCancelled, OperationNotFound, record_of
from ...wire.progress import Progress, ProgressRecord
from ...wire.protocol import Operation, OperationKind, OperationState, Result, summary
from .streams import Streams

#: How long an ended operation can be looked up.
KEEP_SECONDS = 600.0

_log = logging.getLogger(__name__)


class Subject(Protocol):
    """The kernel of an operation (`kernels.ManagedKernel`)."""

    @property
    def kernel_id(self) -> str:
        """Return the kernel's id."""

    @property
    def owner_id(self) -> str:
        """Return the id of the kernel's current owner."""

    def on_operation(self, operation: RunningOperation) -> None:
        """Publish that an operation began, advanced or ended."""


class RunningOperation:
    """A running or ended operation. Its methods belong to the event loop's thread; the worker's thread advances `progress`.

    `is_automatic`: no user requested it, so it may be refused where it would cost something, and explicit requests do not join it.
    """

    def __init__(
        self,
        kind: OperationKind,
        kernel: Subject,
        streams: Streams,
        *,
        is_automatic: bool,
    ) -> None:
        self.operation_id = uuid.uuid4().hex
        self.kind, self.kernel, self.is_automatic = kind, kernel, is_automatic
        self._streams = streams
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._last: ProgressRecord | None = None
        self.state = OperationState.RUNNING
        self.result: Result | None = None
        self.error: ErrorRecord | None = None
        self.ended_at = 0.0
        self.progress = Progress(self._listen)

    @property
    def ended(self) -> bool:
        """Return whether the operation is over."""
        return self.state is not OperationState.RUNNING

    def public(self) -> Operation:
        """Return the record that clients see."""
        return Operation(
            operation_id=self.operation_id,
            kind=self.kind,
            kernel_id=self.kernel.kernel_id,
            state=self.state,
            progress=self._last or self.progress.record(),
            result=self.result,
            error=self.error,
            position=self._streams.position,
        )

    def cancel(self) -> None:
        """Request the operation to stop; no effect if it is over or past the point where it can stop."""
        if not self.ended:
            self.progress.cancel()
            self.kernel.on_operation(self)

    def succeed(self, result: Result) -> None:
        """End the operation with its result."""
        self.result = result
        self._end(OperationState.SUCCEEDED)

    def fail(self, error: BaseException) -> None:
        """End the operation with an error. Any error but a GpuCkptError is a defect, whose traceback is logged only here."""
        if not isinstance(error, GpuCkptError):
            _log.error("%s of kernel %s failed", self.kind, self.kernel.kernel_id, exc_info=error)
        self.error = record_of(error)
        cancelled = isinstance(error, OperationCancelled)
        self._end(OperationState.CANCELLED if cancelled else OperationState.FAILED)

    async def until_ended(self, seconds: float | None = None) -> None:
        """Wait until the operation is over, at most `seconds` (None: no limit)."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    def _end(self, state: OperationState) -> None:
        self.state, self.ended_at = state, time.monotonic()
        self._last = self.progress.record()
        _log.info("%s", summary(self.public(), self.progress.seconds_by_stage))
        self._over.set()
        self.kernel.on_operation(self)

    def _listen(self, record: ProgressRecord) -> None:
        self._loop.call_soon_threadsafe(self._advanced)

    def _advanced(self) -> None:
        if not self.ended:
            self.kernel.on_operation(self)


class Operations:
    """A table of the operations that run or ended recently."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._operations: dict[str, RunningOperation] = {}

    def __iter__(self) -> Iterator[RunningOperation]:
        self._drop_old()
        return iter(list(self._operations.values()))

    def add(
        self,
        kind: OperationKind,
        kernel: Subject,
        *,
        is_automatic: bool = False,
    ) -> RunningOperation:
        """Begin an operation."""
        self._drop_old()
        operation = RunningOperation(kind, kernel, self._streams, is_automatic=is_automatic)
        self._operations[operation.operation_id] = operation
        kernel.on_operation(operation)
        return operation

    def get(self, operation_id: str) -> RunningOperation:
        """Return the operation of this id. Raises OperationNotFound."""
        self._drop_old()
        operation = self._operations.get(operation_id)
        if operation is None:
            raise OperationNotFound(
                f"There is no operation {operation_id}.",
                hint="Ended operations are kept for ten minutes, and not when the daemon ends.",
            )
        return operation

    @property
    def any_running(self) -> bool:
        """Return whether an operation is running."""
        return any(not operation.ended for operation in self._operations.values())

    @property
    def any_disturbed(self) -> bool:
        """Return whether an operation is running that uploads would delay; a move itself waits for one."""
        running = (one for one in self._operations.values() if not one.ended)
        return any(one.kind is not OperationKind.MOVE for one in running)

    def _drop_old(self) -> None:
        oldest = time.monotonic() - KEEP_SECONDS
        for operation in list(self._operations.values()):
            if operation.ended and operation.ended_at < oldest:
                del self._operations[operation.operation_id]
