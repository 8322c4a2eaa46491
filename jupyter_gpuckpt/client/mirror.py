"""A mirror of the daemon's state, built from its ordered stream: kernels, operations and notices as of the last event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec

from ..errors import DaemonUnavailable, ErrorRecord, record_of
from ..wire.protocol import Event, Kernel, Operation, OperationState, Position, State
from ..wire.reclaim_records import Notice

#: The number of ended operations that are kept.
_REMEMBERED = 200


class Mirror:
    """A mirror of one stream's kernels and operations, by id. A record never replaces a newer one, from whatever source it comes."""

    def __init__(self) -> None:
        self.position = Position()
        self.kernels: dict[str, Kernel] = {}
        self.operations: dict[str, Operation] = {}
        self.notices: dict[str, Notice] = {}
        self._changed = asyncio.Event()

    def apply(self, event: Event) -> list[Event]:
        """Apply the next event and return the changes that it makes. A full state is split into single changes."""
        received = [event] if event.state is None else self._changes(event, event.state)
        changes = [self._without_outdated(change) for change in received]
        self.position = event.position
        for change in changes:
            if change.kernel is not None:
                self.kernels[change.kernel.kernel_id] = change.kernel
            if change.operation is not None:
                self._remember(change.operation)
            self.kernels.pop(change.gone, None)
            if change.notice is not None:
                self.notices[change.notice.id] = change.notice
                if change.notice.withdrawn:
                    del self.notices[change.notice.id]
        self._forget_old()
        self._wake()
        return changes

    def expect(self, kernel: Kernel) -> Kernel | None:
        """Apply a kernel's record from a reply; return the newest record, or None if the kernel is gone meanwhile."""
        known = self.kernels.get(kernel.kernel_id)
        if known is None and kernel.position <= self.position:
            return None
        if known is None or known.position < kernel.position:
            self.kernels[kernel.kernel_id] = known = kernel
        return known

    async def follow(self, started: Operation) -> AsyncIterator[Operation]:
        """Yield an operation whenever it has changed; the last record is the ended operation."""
        # The reply may arrive before the stream's event about the operation.
        last = self.operations.setdefault(started.operation_id, started)
        yield last
        while not last.is_over:
            await self._changed.wait()
            if last != (last := self.operations[started.operation_id]):
                yield last

    def lose(self) -> list[Event]:
        """Mark running operations as failed, because the daemon has not come back; return the changes."""
        error = record_of(DaemonUnavailable("gpuckptd ended and was not started again."))
        lost = [
            Event(self.position, operation=_failed(operation, error))
            for operation in self.operations.values()
            if not operation.is_over
        ]
        for change in lost:
            if change.operation is not None:
                self._remember(change.operation)
        self._wake()
        return lost

    def _changes(self, event: Event, state: State) -> Iterator[Event]:
        position = event.position
        for kernel in state.kernels:
            yield Event(position, kernel=kernel)
        for kernel_id in set(self.kernels) - {kernel.kernel_id for kernel in state.kernels}:
            yield Event(position, gone=kernel_id)
        standing = {notice.id: notice for notice in state.notices}
        for notice_id, known in self.notices.items():
            if notice_id not in standing:
                yield Event(position, notice=msgspec.structs.replace(known, withdrawn=True))
        for notice_id, notice in standing.items():
            if self.notices.get(notice_id) != notice:
                yield Event(position, notice=notice)
        listed = {operation.operation_id for operation in state.operations}
        for operation in state.operations:
            yield Event(position, operation=operation)
        for operation in self.operations.values():
            is_new = operation.position > position
            if operation.operation_id not in listed and not (operation.is_over or is_new):
                now = "".join(
                    f"The kernel is {kernel.state} now."
                    for kernel in state.kernels
                    if kernel.kernel_id == operation.kernel_id
                )
                error = DaemonUnavailable("gpuckptd ended during the operation.", hint=now)
                yield Event(position, operation=_failed(operation, record_of(error)))

    def _without_outdated(self, change: Event) -> Event:
        """Return a change without records that are older than those from replies."""
        kernel = self.kernels.get(change.kernel.kernel_id if change.kernel else change.gone)
        if kernel is not None and change.position < kernel.position:
            change = msgspec.structs.replace(change, kernel=None, gone="")
        operation = change.operation and self.operations.get(change.operation.operation_id)
        if operation is not None and change.position < operation.position:
            change = msgspec.structs.replace(change, operation=None)
        return change

    def _remember(self, operation: Operation) -> None:
        """Store an operation as the last one, so that operations are dropped in the order of their end."""
        self.operations.pop(operation.operation_id, None)
        self.operations[operation.operation_id] = operation

    def _forget_old(self) -> None:
        ended = [key for key, operation in self.operations.items() if operation.is_over]
        for key in ended[:-_REMEMBERED]:
            del self.operations[key]

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _failed(operation: Operation, error: ErrorRecord) -> Operation:
    return msgspec.structs.replace(operation, state=OperationState.FAILED, error=error)
