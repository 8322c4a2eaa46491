"""Operations: work on a kernel that has an id, goes on when its caller goes away, and can be followed and cancelled."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable

from ..errors import ErrorRecord, GpuCkptError, OperationCancelled, OperationNotFound, record_of
from ..progress import Progress, ProgressRecord
from ..protocol import Operation, OperationKind, OperationState, Result, summary

#: Ended operations can be asked for this long.
KEEP_SECONDS = 600.0

_log = logging.getLogger(__name__)


class RunningOperation:
    """One operation. Its methods belong to the event loop's thread; `progress` is counted by the worker's."""

    def __init__(
        self, kind: OperationKind, kernel_id: str, on_change: Callable[[RunningOperation], None]
    ) -> None:
        self.operation_id = uuid.uuid4().hex
        self.kind, self.kernel_id = kind, kernel_id
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._last: ProgressRecord | None = None
        self.state = OperationState.RUNNING
        self.result: Result | None = None
        self.error: ErrorRecord | None = None
        self.ended_at = 0.0
        #: See `Job`: nobody else may count on what becomes of it.
        self.hesitant = False
        self.progress = Progress(self._listen)

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.state is not OperationState.RUNNING

    def public(self) -> Operation:
        """What clients see."""
        return Operation(
            operation_id=self.operation_id,
            kind=self.kind,
            kernel_id=self.kernel_id,
            state=self.state,
            progress=self._last or self.progress.record(),
            result=self.result,
            error=self.error,
        )

    def cancel(self) -> None:
        """Ask it to stop; nothing happens when it is over or past the point where it can."""
        if not self.ended:
            self.progress.cancel()
            self._tell()

    def succeed(self, result: Result) -> None:
        """It did what it should."""
        self.result = result
        self._end(OperationState.SUCCEEDED)

    def fail(self, error: BaseException) -> None:
        """It ended with an error. One that is not ours is a defect: its traceback goes to the log, here and only here."""
        if not isinstance(error, GpuCkptError):
            _log.error("%s of kernel %s failed", self.kind, self.kernel_id, exc_info=error)
        self.error = record_of(error)
        cancelled = isinstance(error, OperationCancelled)
        self._end(OperationState.CANCELLED if cancelled else OperationState.FAILED)

    async def changes(self) -> AsyncIterator[RunningOperation]:
        """Itself now, and whenever it changed; the last time when it is over."""
        while True:
            changed, over = self._changed, self.ended
            yield self
            if over:
                return
            await changed.wait()

    async def until_ended(self, seconds: float | None = None) -> bool:
        """Wait; whether it is over."""
        try:
            async with asyncio.timeout(seconds):
                async for _ in self.changes():
                    pass
        except TimeoutError:
            return self.ended
        return True

    def _end(self, state: OperationState) -> None:
        self.state, self.ended_at = state, time.monotonic()
        self._last = self.progress.record()
        _log.info("%s", summary(self.public(), self.progress.seconds_by_stage))
        self._tell()

    def _listen(self, record: ProgressRecord) -> None:
        self._loop.call_soon_threadsafe(self._advanced)

    def _advanced(self) -> None:
        if not self.ended:
            self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._on_change(self)


class Operations:
    """All that run or ended a short while ago."""

    def __init__(self) -> None:
        self._operations: dict[str, RunningOperation] = {}

    def add(
        self, kind: OperationKind, kernel_id: str, on_change: Callable[[RunningOperation], None]
    ) -> RunningOperation:
        """A new one."""
        self._drop_old()
        operation = RunningOperation(kind, kernel_id, on_change)
        self._operations[operation.operation_id] = operation
        return operation

    def get(self, operation_id: str) -> RunningOperation:
        """The operation of this id; raises OperationNotFound."""
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
        """Whether one is not over."""
        return any(not operation.ended for operation in self._operations.values())

    def _drop_old(self) -> None:
        oldest = time.monotonic() - KEEP_SECONDS
        for operation in list(self._operations.values()):
            if operation.ended and operation.ended_at < oldest:
                del self._operations[operation.operation_id]
