"""Shutdowns that can be undone: the kernel is gone from every list, but kept for a while.

The daemon stops its processes; its manager is kept here. When the time is over it is shut down as Jupyter does it, so that its
exit handlers run. If this server dies before, the daemon ends the kernel a little later. File -> Shut Down of JupyterLab and
Notebook deletes all sessions first and stops the server right after: kernels that are kept then count as stopped with the server.
"""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jupyter_server.prometheus.metrics import KERNEL_CURRENTLY_RUNNING_TOTAL
from jupyter_server.services.kernels.kernelmanager import ServerKernelManager

from ...errors import GpuCkptError, KernelNotFound
from ...wire import calls
from ...wire.states import KernelState
from .. import jupyter_internals
from ..kernels import agent_calls
from ..kernels.kernel_listener import KernelListener
from ..kernels.notebook_sessions import list_sessions, manager_of, sessions_of

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from jupyter_server.services.sessions.sessionmanager import SessionManager

    from ..kernels.daemon_link import DaemonLink
    from ..kernels.kernel_manager import GpuCkptKernels
    from ..messages.served_kernel import ServedKernel

#: The delay of the daemon's own end of the kernel after this server's, which lets the kernel's exit handlers run.
_DAEMON_LATER_SECONDS = 20.0
_ACTIONS = "https://events.jupyter.org/jupyter_server/kernel_actions/v1"
#: The limit for kernels with GPU memory: a user may shut one down to get the memory. File -> Shut Down takes less.
_GPU_SECONDS = 5.0
_KEPT_STATES = frozenset(
    {KernelState.RUNNING, KernelState.SAVING, KernelState.PARKED, KernelState.SUSPENDED}
)


@dataclass
class ShutDown:
    """A kernel that was shut down and is kept. `sessions`: its rows; `ends_at`: seconds since the epoch."""

    manager: ServerKernelManager
    served: ServedKernel
    sessions: list[dict[str, Any]]
    ends_at: float
    open_gate: Callable[[], None]
    timer: asyncio.Task[None] | None = field(default=None)


class ShutDowns(KernelListener):
    """A table of the kernels that users shut down, each kept while that can be undone. `undo_seconds` 0: none is kept."""

    def __init__(
        self,
        link: DaemonLink,
        kernels: GpuCkptKernels,
        sessions: SessionManager,
        listener: KernelListener,
        *,
        undo_seconds: float,
        log: logging.Logger,
    ) -> None:
        self._link, self._kernels, self._sessions = link, kernels, sessions
        self._listener, self._undo_seconds, self._log = listener, undo_seconds, log
        self._kept: dict[str, ShutDown] = {}
        self._removals: set[asyncio.Task[None]] = set()
        #: True once the server stops: no shutdown can be undone then.
        self._stopped = False

    def kernel_ended(self, kernel_id: str) -> None:
        """Remove a kernel that is gone, before Jupyter starts it again."""
        if kernel_id in self._kernels:
            task = asyncio.ensure_future(self._remove(kernel_id))
            self._removals.add(task)
            task.add_done_callback(self._removals.discard)

    async def _remove(self, kernel_id: str) -> None:
        try:
            await self._kernels.shutdown_kernel(kernel_id, now=True)
        except Exception:
            self._log.exception("Kernel %s, which a user ended, is still listed.", kernel_id)

    def __iter__(self) -> Any:
        return iter(self._kept.items())

    async def keep_shut_down(self, kernel_id: str) -> bool:
        """Remove a kernel from the list and keep it; return False if it must be shut down at once."""
        served = self._link.served.get(kernel_id)
        keeps = self._undo_seconds > 0 and not self._stopped
        if not keeps or served is None or served.state not in _KEPT_STATES:
            return False
        rows = sessions_of(self._sessions, kernel_id)
        open_gate = served.hold()
        try:
            daemon = self._link.daemon
            uses_gpu = (await daemon.send(calls.kernel(kernel_id))).gpu_bytes > 0
            seconds = min(self._undo_seconds, _GPU_SECONDS) if uses_gpu else self._undo_seconds
            await daemon.send(calls.end(kernel_id, seconds + _DAEMON_LATER_SECONDS))
            if self._stopped:  # meanwhile
                await daemon.send(calls.undo_end(kernel_id))
                open_gate()
                return False
            if kernel_id in self._kept:  # by another request meanwhile
                open_gate()
                return True
        except GpuCkptError as error:
            open_gate()
            self._log.warning("kernel %s is shut down for good: %s", kernel_id, error)
            return False
        manager = self._unlist(kernel_id)
        kept = ShutDown(manager, served, rows, time.time() + seconds, open_gate)
        kept.timer = asyncio.ensure_future(self._end_later(kernel_id, seconds))
        self._kept[kernel_id] = kept
        self._log.info("Kernel %s is shut down; that can be undone for %.0f s", kernel_id, seconds)
        # Jupyter emits this event only when the process ends, but other pages need it now.
        action = {
            "action": "shutdown",
            "status": "success",
            "msg": f"Kernel {kernel_id} was shut down.",
            "kernel_id": kernel_id,
            "kernel_name": manager.kernel_name,
        }
        # A configured manager class that is not jupyter_server's own emits no such events.
        if isinstance(manager, ServerKernelManager):
            manager.emit(_ACTIONS, action)
        return True

    async def undo(self, kernel_id: str) -> None:
        """List a kernel again, with its sessions, and let it run on. Raises KernelNotFound if it is too late."""
        kept = self._take(kernel_id)
        if kept is None:
            raise KernelNotFound(
                f"There is no shutdown of kernel {kernel_id} that can still be undone.",
                hint="Resume it from its last snapshot, if there is one.",
            )
        try:
            await self._link.daemon.send(calls.undo_end(kernel_id))
        except BaseException:
            self._kept[kernel_id] = kept
            kept.timer = asyncio.ensure_future(
                self._end_later(kernel_id, _DAEMON_LATER_SECONDS / 2)
            )
            raise
        self._list(kernel_id, kept)
        if kept.served.has_agent and not kept.served.absent:
            await agent_calls.flush(kept.manager)  # a save may have been cut off for the shutdown
        kept.open_gate()
        self._log.info("Kernel %s is back: its shutdown was undone", kernel_id)

    async def end_all(self) -> None:
        """At the server's stop, list again the kernels that had a notebook or console, and end the others. Never raises."""
        self._stopped = True
        for kernel_id, kept in list(self._kept.items()):
            try:
                if kept.sessions:
                    await self.undo(kernel_id)
                else:
                    await self._end(kernel_id)
            except Exception:
                self._log.exception(
                    "Kernel %s, which was shut down, is left to the daemon.", kernel_id
                )
            if kept.timer is not None:
                kept.timer.cancel()

    def leave_all(self) -> None:
        """At the server's stop, leave the kernels to the daemon, which does not answer: it ends them a little later."""
        self._stopped = True
        for kept in self._kept.values():
            if kept.timer is not None:
                kept.timer.cancel()

    async def _end_later(self, kernel_id: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        try:
            await self._end(kernel_id)
        except Exception:
            self._log.exception("Kernel %s, which was shut down, is left to the daemon.", kernel_id)

    async def _end(self, kernel_id: str) -> None:
        """Shut a kernel down as Jupyter would have done."""
        kept = self._kept.pop(kernel_id, None)
        if kept is None:
            return
        kept.served.drop_held()
        try:
            await self._link.daemon.send(calls.undo_end(kernel_id))
        except GpuCkptError as error:
            self._log.debug("kernel %s is gone already: %s", kernel_id, error)
        await kept.manager.shutdown_kernel()
        kept.open_gate()
        try:
            await self._link.daemon.send(calls.delete_periodic(kernel_id))
        except GpuCkptError as error:
            self._log.warning("The periodic saves of kernel %s are kept: %s", kernel_id, error)
        activity = jupyter_internals.activity_stream(kept.manager)
        for stream in [activity, *jupyter_internals.drop_buffered(self._kernels, kernel_id)]:
            if stream is not None and not stream.closed():
                stream.close()

    def _take(self, kernel_id: str) -> ShutDown | None:
        kept = self._kept.pop(kernel_id, None)
        if kept is not None and kept.timer is not None:
            kept.timer.cancel()
        return kept

    def _unlist(self, kernel_id: str) -> ServerKernelManager:
        manager = manager_of(self._kernels, kernel_id)
        manager.stop_restarter()
        # Its streams stay open: messages in transit must not be lost if the shutdown is undone.
        self._kernels.remove_kernel(kernel_id)
        jupyter_internals.forget_pages(self._kernels, kernel_id)
        KERNEL_CURRENTLY_RUNNING_TOTAL.labels(type=manager.kernel_name).dec()
        self._listener.kernel_changed(kernel_id)
        return manager

    def _list(self, kernel_id: str, kept: ShutDown) -> None:
        kernels = self._kernels
        pages = len(kept.served.connections)
        jupyter_internals.list_kernel(kernels, kernel_id, kept.manager, pages)
        kept.manager.start_restarter()
        KERNEL_CURRENTLY_RUNNING_TOTAL.labels(type=kept.manager.kernel_name).inc()
        list_sessions(self._sessions, kept.sessions)
        self._listener.kernel_changed(kernel_id)
