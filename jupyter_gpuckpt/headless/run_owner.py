"""The owner of a batch run's kernel: the same for every runner of the run."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from gpuckpt_provisioner.owner import ScriptOwner

from ..client import this_owner
from ..client.reviving import bring_back, revive, steady
from ..client.save_costs import SaveCost
from ..wire import calls
from ..wire.daemon_settings import Settings
from ..wire.manifest_records import Cause
from ..wire.protocol import Kernel, OwnerKind, SaveRequest, SuspendedKernel
from ..wire.snapshot_records import RetentionPolicy
from ..wire.states import ABSENT, KernelState
from .runs import RunRecord

if TYPE_CHECKING:
    from jupyter_client.connect import KernelConnectionInfo
    from jupyter_client.manager import KernelManager

#: How long a kernel of another machine is waited for, and how often it is asked for: after a minute without a heartbeat it is released.
_OTHER_MACHINE_SECONDS, _OTHER_MACHINE_PAUSE = 90, 1.0
_AUTOMATIC = frozenset({Cause.AUTOSAVE, Cause.RECLAIM, Cause.SHUTDOWN})
#: An automatic save replaces the one before it.
_KEEP_ONE = RetentionPolicy(keep_last=1)
#: The key of the run in Jupyter's description of a kernel.
BATCH = "batch"

_log = logging.getLogger(__name__)


class BatchOwner(ScriptOwner):
    """This process as the owner of a batch run's kernel, which outlives it. The methods below block."""

    def __init__(self, settings: Settings, record: RunRecord, name: str) -> None:
        owner = msgspec.structs.replace(this_owner(OwnerKind.BATCH), owner_id=record.owner_id)
        super().__init__(settings, owner)
        self._record, self._kernel_id, self._name = record, record.kernel_id, name
        self._found: SuspendedKernel | None = None

    def jupyter(self, manager: KernelManager) -> dict[str, Any]:
        """Return the run's id and digest, with which a runner on another machine continues from a snapshot."""
        return {BATCH: {"run_id": self._record.run_id, "digest": self._record.digest}}

    def launched(self, kernel_id: str, connection: KernelConnectionInfo) -> None:
        """Do nothing: the run's client installs the agent before the first cell."""

    def adoption(self, kernel_id: str) -> SuspendedKernel | None:
        """Return the kernel that `find` has found, once."""
        found, self._found = self._found, None
        return found

    def find(self) -> bool:
        """Find the run's kernel, or its last snapshot, and bring it back; return False if there is neither.

        A kernel of another machine is waited for, until it is released there or that machine counts as ended.
        """
        found = self._claimed_or_awaited() or (self._claimed() if self._revived() else None)
        if found is None:
            return False
        kernel = self.bring_back()
        if kernel is None:
            return False
        self._found = msgspec.structs.replace(found, kernel=kernel)
        return True

    def bring_back(self) -> Kernel | None:
        """Resume the kernel if it is not running, and return its record; forget one that is lost without a snapshot, and return None."""
        return bring_back(self.client(), self._kernel_id, partial(_log.warning, "%s"))

    def name_kernel(self) -> None:
        """Give the kernel the notebook's name, for lists."""
        self.client().send(calls.set_jupyter(self._kernel_id, self._name, None))

    def save(self, *, peer_access_off: bool) -> SaveCost:
        """Save the kernel, which runs on, and return what that cost; the automatic save before it is removed."""
        request = SaveRequest(
            cause=Cause.AUTOSAVE, retention=_KEEP_ONE, peer_access_off=peer_access_off
        )
        client, began = self.client(), time.monotonic()
        done = client.wait(client.send(calls.save(self._kernel_id, request)).operation_id)
        seconds = time.monotonic() - began
        return SaveCost(seconds, done.frozen_seconds, done.processor_seconds)

    def suspend(self, *, peer_access_off: bool) -> str:
        """Suspend the kernel; return its snapshot's id."""
        client = self.client()
        request = SaveRequest(cause=Cause.SHUTDOWN, peer_access_off=peer_access_off)
        operation = client.send(calls.suspend(self._kernel_id, request))
        return client.wait(operation.operation_id).snapshot_id

    def set_aside(self) -> str:
        """Suspend the kernel of an earlier run; return its last snapshot's id, empty if it has none."""
        found = self._claimed()
        if found is None:
            return ""
        kernel = steady(self.client(), self._kernel_id)
        if kernel.state is KernelState.LOST:
            self.client().send(calls.kill(self._kernel_id))
            return kernel.snapshot_id
        return kernel.snapshot_id if kernel.state in ABSENT else self.suspend(peer_access_off=False)

    def kill(self) -> None:
        """End the kernel if there is one."""
        if self._claimed() is not None:
            self.client().send(calls.kill(self._kernel_id))

    def remove_saves(self) -> None:
        """Delete the automatic saves of a run that is over."""
        client = self.client()
        for snapshot in client.send(calls.snapshots(self._kernel_id)):
            if snapshot.cause in _AUTOMATIC and not snapshot.pinned:
                client.send(calls.delete_snapshot(snapshot.snapshot_id, here_only=True))

    def _claimed(self) -> SuspendedKernel | None:
        client = self.client()
        claimed = client.send(calls.claim(self.owner_id))
        return next((one for one in claimed if one.kernel.kernel_id == self._kernel_id), None)

    def _claimed_or_awaited(self) -> SuspendedKernel | None:
        client, deadline = self.client(), time.monotonic() + _OTHER_MACHINE_SECONDS
        is_said = False
        while (found := self._claimed()) is None and time.monotonic() < deadline:
            elsewhere = client.send(calls.claimable(self.owner_id))
            if all(kernel.kernel_id != self._kernel_id for kernel in elsewhere):
                break
            if not is_said:
                _log.warning(
                    "The kernel was on another machine, which may have ended. It is continued here as soon as that is certain,"
                    " after %d seconds at most.",
                    _OTHER_MACHINE_SECONDS,
                )
                is_said = True
            time.sleep(_OTHER_MACHINE_PAUSE)
        return found

    def _revived(self) -> bool:
        """Create a kernel again that ended or was on another machine; return False if it has no snapshot here."""
        client = self.client()
        snapshots = client.send(calls.snapshots(self._kernel_id))
        if not snapshots:
            return False
        launch = client.send(calls.launch_spec(snapshots[0].snapshot_id))
        revive(client, self.owner_id, snapshots[0].snapshot_id, self._name, launch)
        return True
