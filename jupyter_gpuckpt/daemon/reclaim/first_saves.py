"""The saves of kernels that run on, before this machine goes: what the daemon saves itself, and whether all kernels are safe."""

from __future__ import annotations

import logging
import time

from ...errors import GpuCkptError, KernelBusy
from ...wire.manifest_records import Cause
from ...wire.protocol import OperationKind, OperationState, OwnerKind, SaveRequest
from ...wire.states import KernelState
from ..kernels.kernels import Kernels, ManagedKernel
from ..kernels.operations import Operations, Subject
from ..kernels.verbs import Verbs
from ..remotes.uploads import Uploads

#: How long a server may take to begin saving or suspending its kernels, and between two of them.
GRACE_SECONDS = 3.0
#: The interval at which ended saves are noted during a long one: operations are dropped some minutes after their end.
_NOTE_SECONDS = 5.0
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
        #: The kernels of which a save has succeeded since, and those of which one was refused or ended with an error.
        self._saved: set[Subject] = set()
        self._refused: set[Subject] = set()

    def begin(self) -> None:
        """Note that kernels are saved from now on, unless that has begun before."""
        if self._began is None:
            self._began = time.monotonic()

    def end(self) -> None:
        """Note that this machine stays."""
        self._began = None
        self._saved.clear()
        self._refused.clear()

    def are_complete(self, *, disk_survives: bool) -> bool:
        """Return whether every kernel that runs and can be saved was saved and, unless the disk survives, uploaded."""
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
            if kernel not in self._unsaved():
                continue  # it was saved, or has ended, during the save of another one
            try:
                operation = self._verbs.save(kernel.kernel_id, SaveRequest(cause=Cause.AUTOSAVE))
            except KernelBusy:
                if kernel.in_flight is None:
                    continue  # the next call tries again
                operation = kernel.in_flight
            except GpuCkptError as error:
                _log.info("kernel %s is not saved first: %s", kernel.kernel_id, error)
                self._refused.add(kernel)
                continue
            while not operation.ended:
                await operation.until_ended(_NOTE_SECONDS)
                self._note_ended()

    def _running(self) -> list[ManagedKernel]:
        return [
            kernel
            for kernel in self._kernels
            if kernel.state in _RUN
            and not kernel.record.ends
            and (kernel in self._saved or kernel not in self._refused)
        ]

    def _unsaved(self) -> list[ManagedKernel]:
        """Return the running kernels of which no save has ended, with or without an error, since the first saves began."""
        self._note_ended()
        return [kernel for kernel in self._running() if kernel not in self._saved]

    def _note_ended(self) -> None:
        """Note the kernels of saves that have ended."""
        for operation in self._operations:
            is_save = operation.kind is OperationKind.SAVE and operation.ended
            if not is_save or operation.ended_at <= (self._began or 0.0):
                continue
            if operation.state is OperationState.SUCCEEDED:
                self._saved.add(operation.kernel)
            elif operation.error is None or operation.error.code != KernelBusy.code:
                self._refused.add(operation.kernel)


def is_at_work(operations: Operations, kind: OperationKind, owner_id: str) -> bool:
    """Return whether an operation of this kind on an owner's kernels runs, or has just ended."""
    recently = time.monotonic() - GRACE_SECONDS
    return any(
        operation.kind is kind
        and operation.kernel.owner_id == owner_id
        and (not operation.ended or operation.ended_at > recently)
        for operation in operations
    )
