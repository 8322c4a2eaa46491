"""The suspends that the daemon begins itself before this machine goes."""

from __future__ import annotations

from ...wire.manifest_records import Cause
from ...wire.protocol import Operation, SaveRequest
from ..kernels.operations import Operations
from ..kernels.verbs import Verbs


class AsDaemon:
    """A `Suspender` that suspends without a server. `begun`: the ids of these suspends are added to it."""

    def __init__(self, verbs: Verbs, operations: Operations, begun: set[str]) -> None:
        self._verbs, self._operations, self._begun = verbs, operations, begun

    async def begin(self, kernel_id: str) -> Operation:
        """Start the suspend of a kernel; raise GpuCkptError if it is refused."""
        operation = self._verbs.suspend(kernel_id, SaveRequest(cause=Cause.RECLAIM))
        self._begun.add(operation.operation_id)
        return operation.public()

    async def finish(self, operation: Operation) -> Operation:
        """Wait for the end of the operation and return it."""
        running = self._operations.get(operation.operation_id)
        await running.until_ended()
        return running.public()

    async def cancel(self, operation: Operation) -> None:
        """Ask the operation to stop and undo its work."""
        self._operations.get(operation.operation_id).cancel()
