"""The saves of kernels that run on, before this machine goes: what the daemon saves itself, and whether all kernels are safe."""

from __future__ import annotations

import logging
import time

from ...errors import GpuCkptError
from ...model import Cause
from ...protocol import OperationKind, OwnerKind, SaveRequest
from ...states import KernelState
from ..kernels import Kernels, ManagedKernel
from ..operations import Operations
from ..uploads import Uploads
from ..verbs import Verbs

#: How long a server may take to begin saving or suspending its kernels, and between two of them.
GRACE_SECONDS = 3.0
_RUN = frozenset({KernelState.RUNNING, KernelState.SAVING})

_log = logging.getLogger(__name__)


class FirstSaves:
    """The first saves of one reaction. On the event loop's thread."""

    def __init__(
        self, kernels: Kernels, operations: Operations, verbs: Verbs, uploads: Uploads
    ) -> None:
        self._kernels, self._operations = kernels, operations
        self._verbs, self._uploads = verbs, uploads
        #: When they began, on the monotonic clock; None: none have begun.
        self._began: float | None = None
        #: The kernels that could not be saved.
        self._refused: set[str] = set()

    def begin(self) -> None:
        """Note that kernels are saved from now on, unless that has begun before."""
        if self._began is None:
            self._began = time.monotonic()

    def end(self) -> None:
        """Note that this machine stays."""
        self._began = None
        self._refused.clear()

    def are_complete(self, *, disk_survives: bool) -> bool:
        """Return whether every kernel that runs was saved and, unless the disk survives, uploaded."""
        if self._unsaved():
            return False
        if disk_survives or not self._uploads.is_anywhere:
            return True
        return all(self._uploads.has(kernel.record.snapshot_id) for kernel in self._running())

    async def save_left_over(self) -> None:
        """Save the kernels of scripts, and of servers that do not begin, one after another."""
        is_over = self._began is not None and time.monotonic() >= self._began + GRACE_SECONDS
        for kernel in self._unsaved():
            owner_id, is_servers = kernel.owner_id, kernel.record.owner.kind is OwnerKind.SERVER
            if is_servers and (
                not is_over or is_at_work(self._operations, OperationKind.SAVE, owner_id)
            ):
                continue
            try:
                request = SaveRequest(cause=Cause.AUTOSAVE)
                await self._verbs.save(kernel.kernel_id, request).until_ended()
            except GpuCkptError as error:
                _log.info("kernel %s is not saved first: %s", kernel.kernel_id, error)
                self._refused.add(kernel.kernel_id)

    def _running(self) -> list[ManagedKernel]:
        return [
            kernel
            for kernel in self._kernels
            if kernel.state in _RUN
            and not kernel.record.ends_at
            and kernel.kernel_id not in self._refused
        ]

    def _unsaved(self) -> list[ManagedKernel]:
        """List the kernels that run and of which no save has ended, even with an error, since the beginning."""
        began = self._began or 0.0
        ended = {
            operation.kernel.kernel_id
            for operation in self._operations
            if operation.kind is OperationKind.SAVE and operation.ended_at > began
        }
        return [kernel for kernel in self._running() if kernel.kernel_id not in ended]


def is_at_work(operations: Operations, kind: OperationKind, owner_id: str) -> bool:
    """Return whether an operation of this kind on an owner's kernels runs, or has just ended."""
    recently = time.monotonic() - GRACE_SECONDS
    return any(
        operation.kind is kind
        and operation.kernel.owner_id == owner_id
        and (not operation.ended or operation.ended_at > recently)
        for operation in operations
    )
