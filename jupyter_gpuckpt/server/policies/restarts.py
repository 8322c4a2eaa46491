"""Restarts that can be undone: the kernel's process is set aside, and the daemon saves it while the new one starts.

An undo lets the process run on in place of the new one. When it is saved, and has ended, the kernel can be rolled back to the
snapshot (`served_kernel.ServedKernel.before_restart`). Exit handlers of the process do not run.
"""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import GpuCkptError, KernelNotFound, KernelStateConflict
from ...wire import calls
from ...wire.manifest_records import Cause, Variables
from ...wire.protocol import SaveRequest
from ...wire.restart_records import SetAsideRequest
from ...wire.snapshot_records import SnapshotChangeKind
from ...wire.states import KernelState
from ..kernels import agent_calls
from ..kernels.kernel_listener import KernelListener
from ..kernels.notebook_sessions import manager_of
from ..messages.comms import SavedComms

if TYPE_CHECKING:
    import logging

    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

    from ...wire.snapshot_records import SnapshotChange
    from ..kernels.daemon_link import DaemonLink
    from ..kernels.kernel_operations import ServerOperations
    from ..messages.served_kernel import ServedKernel

_KEPT_STATES = frozenset({KernelState.RUNNING, KernelState.SAVING, KernelState.PARKED})
#: How long a restart waits for the agent, and for the GPU memory to be moved to RAM.
_AGENT_SECONDS, _PARK_SECONDS = 1.0, 20.0
_FINGERPRINT_SECONDS = 0.1
#: How long an undo waits for the news that the process was just saved.
_NEWS_SECONDS, _PAUSE_SECONDS = 5.0, 0.05


class _Former(NamedTuple):
    """What this server knows of a kernel's process that was set aside."""

    has_agent: bool
    comms: SavedComms
    peer_access_is_off: bool
    #: `KernelOutput.description`.
    output: dict[str, Any]


class Restarts(KernelListener):
    """A policy that keeps a kernel's process when the kernel is restarted, and the last of the snapshots that are made of them.

    `keep_seconds`: how long a process is kept that cannot be saved; 0: none is kept at all.
    """

    def __init__(
        self,
        link: DaemonLink,
        kernels: AsyncMappingKernelManager,
        operations: ServerOperations,
        listener: KernelListener,
        *,
        keep_seconds: float,
        log: logging.Logger,
    ) -> None:
        self._link, self._kernels = link, kernels
        self._operations, self._listener = operations, listener
        self._keep_seconds, self._log = keep_seconds, log
        self._former: dict[str, _Former] = {}

    async def before_restart(self, kernel_id: str) -> bool:
        """Set a kernel's process aside; return whether that was done. Never raises: the user wants a fresh kernel in any case."""
        served = self._link.served.get(kernel_id)
        if served is None or served.kernel is None or not self._keep_seconds:
            return False
        before, served.before_restart, served.restart_lost = served.before_restart, "", ""
        if not served.changed and served.state in {KernelState.RUNNING, KernelState.SUSPENDED}:
            # The last snapshot suffices. A kernel without one has run nothing since the restart before this one.
            served.before_restart = served.kernel.snapshot_id or before
            return False
        served.is_former_kept = False
        self._former.pop(kernel_id, None)
        if served.state not in _KEPT_STATES:
            return False
        manager = manager_of(self._kernels, kernel_id)
        open_gate = served.hold()
        manager.stop_restarter()
        try:
            former = await self._set_aside(served)
        except (GpuCkptError, TimeoutError) as error:
            why = (
                f"{error} {error.hint}".strip()
                if isinstance(error, GpuCkptError)
                else "It took too long to stop it."
            )
            self._log.warning("kernel %s is restarted for good: %s", kernel_id, why)
            served.restart_lost = why
            manager.start_restarter()
            return False
        finally:
            open_gate()
        self._former[kernel_id] = former
        served.is_former_kept = True
        served.provisioner.set_aside()
        return True

    async def undo(self, kernel_id: str) -> None:
        """Let the process run on that was set aside. Raises KernelNotFound if there is none, and what prevents it from running on.

        If it was saved meanwhile, `before_restart` names the snapshot when the error comes.
        """
        served, former = self._operations.served(kernel_id), self._former.get(kernel_id)
        if former is None:
            raise KernelNotFound(
                f"There is no restart of kernel {kernel_id} that can be undone with its former process.",
                hint="Restore the snapshot that was taken at the restart, if there is one.",
            )
        if served.output.runs_cell:
            raise KernelStateConflict(
                "A cell is running.",
                hint="Wait until it ends or interrupt it, then undo the restart.",
            )
        manager = manager_of(self._kernels, kernel_id)
        open_gate = served.hold()
        manager.stop_restarter()
        try:
            kernel = await self._link.daemon.send(calls.undo_restart(kernel_id))
            self._former.pop(kernel_id, None)
            served.is_former_kept = False
            served.peer_access_is_off = former.peer_access_is_off
            served.come_back(kernel, former.output, has_agent=former.has_agent, comms=former.comms)
            while served.is_reconnecting:
                await served.change()
        except KernelNotFound:
            await self._news(served)
            raise
        finally:
            manager.start_restarter()
            open_gate()
        self._log.info("the restart of kernel %s is undone", kernel_id)

    def snapshot_changed(self, change: SnapshotChange) -> None:
        """Note that a process that was set aside may be saved."""
        if change.kernel_id in self._former and change.change is SnapshotChangeKind.ADDED:
            self._operations.spawn(self._note_saved(change.kernel_id, change.snapshot_id))

    async def _set_aside(self, served: ServedKernel) -> _Former:
        kernel_id, daemon = served.kernel_id, self._link.daemon
        if (await daemon.send(calls.kernel(kernel_id))).gpu_bytes:
            # The new process needs room on the GPU. If it is parked, its context may still be there, and the driver could not take
            # that from processes that are stopped.
            async with asyncio.timeout(_PARK_SECONDS):
                parking = await self._operations.park(kernel_id)
                await self._operations.tracked.result(parking)
        found, variables = None, None
        manager = manager_of(self._kernels, kernel_id)
        comms = served.comms.without_states()
        if served.has_agent:
            found, variables = await self._asked(served)
            if found is not None:
                await agent_calls.call_on_save(manager, found)
            comms = await agent_calls.prepare(manager, answers=found is not None) or comms
        name, jupyter = await self._operations.described(kernel_id)
        request = SaveRequest(
            name,
            jupyter,
            Cause.RESTART,
            variables=variables,
            cell=found.cell if found else 0,
            in_cell=served.output.is_in_cell,
        )
        await daemon.send(calls.set_aside(kernel_id, SetAsideRequest(request, self._keep_seconds)))
        return _Former(
            served.has_agent, comms, served.peer_access_is_off, served.output.description()
        )

    async def _asked(
        self, served: ServedKernel
    ) -> tuple[agent_calls.AgentState | None, Variables | None]:
        """Return what the agent says of the kernel, and its variables; nothing if it does not answer soon."""
        manager, found = manager_of(self._kernels, served.kernel_id), None
        with suppress(TimeoutError):
            async with asyncio.timeout(_AGENT_SECONDS):
                found = await agent_calls.state(manager, answers=served.answers)
                if found is not None:
                    return found, await agent_calls.variables(manager, _FINGERPRINT_SECONDS)
        return found, None

    async def _note_saved(self, kernel_id: str, snapshot_id: str) -> None:
        with suppress(GpuCkptError):
            listed = await self._link.daemon.send(calls.snapshots(kernel_id))
            served = self._link.served.get(kernel_id)
            made = next((one for one in listed if one.snapshot_id == snapshot_id), None)
            if served is None or made is None or made.cause is not Cause.RESTART:
                return
            self._former.pop(kernel_id, None)
            served.before_restart, served.is_former_kept = snapshot_id, False
            self._listener.kernel_changed(kernel_id)
            # Snapshots of earlier restarts may be many, and no user requested them.
            for one in listed:
                if one.cause is Cause.RESTART and not one.pinned and one is not made:
                    await self._link.daemon.send(
                        calls.delete_snapshot(one.snapshot_id, here_only=True)
                    )

    async def _news(self, served: ServedKernel) -> None:
        """Wait for the news of the snapshot of a process that has just been saved."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _NEWS_SECONDS
        while served.is_former_kept and loop.time() < deadline:  # noqa: ASYNC110 - it comes in a moment
            await asyncio.sleep(_PAUSE_SECONDS)
        served.is_former_kept = False
        self._former.pop(served.kernel_id, None)
