"""What the server's kernel manager does differently for kernels under the engine.

Covers: models, interrupts, culling, the end of the server. Does not cover: launch and shutdown of a single kernel (the
provisioner's), save, suspend and resume (`operations.py`).
"""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from jupyter_client.kernelspec import KernelSpec, NoSuchKernel
from jupyter_core.utils import ensure_async
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from tornado import web

from ...errors import GpuCkptError
from ...model import Cause
from ...states import KernelState
from ..policies.suspend_all import suspend_all
from ..requests_in_flight import end_requests

if TYPE_CHECKING:
    from ..messages.served_kernel import ServedKernel
    from ..policies.restart_snapshots import RestartSnapshots
    from ..policies.shut_downs import ShutDowns
    from .daemon_link import DaemonLink
    from .operations import ServerOperations

    _Base = AsyncMappingKernelManager
else:
    _Base = object

#: States that take the place of Jupyter's own in REST models. A kernel that is being saved is idle or busy all the same.
_SHOWN = frozenset(KernelState) - {KernelState.STARTING, KernelState.RUNNING, KernelState.SAVING}
#: jupyter_client says so of a message that is to the letter what was said before: a snapshot is resumed for the second time
#: that was taken while the kernel's words were kept.
_SAID_BEFORE = "Duplicate Signature"
#: The kernel that the culler is just looking at: what it calls for an idle one is `shutdown_kernel`, as a user's click does.
_culled: ContextVar[str] = ContextVar("gpuckpt_culled", default="")


class GpuCkptKernels(_Base):
    """Mixed over the configured multi kernel manager, an `AsyncMappingKernelManager`, when its instance exists."""

    #: Asked by provisioners (`daemon_link.py`) and websockets; set when the mixin is applied.
    gpuckpt_owner: DaemonLink
    gpuckpt_operations: ServerOperations
    gpuckpt_shut_downs: ShutDowns
    gpuckpt_restart_snapshots: RestartSnapshots
    #: How long the server's stop waits for suspends, in seconds; None: as long as they take.
    gpuckpt_stop_seconds: float | None
    #: Kernelspecs of kernels to adopt, by kernel id: they may have been removed since.
    gpuckpt_kernelspecs: dict[str, dict[str, Any]]
    #: Whether idle kernels may be suspended: only where a cell brings them back.
    gpuckpt_suspends_idle: bool
    _gpuckpt_stop: asyncio.Task[None] | None

    def __len__(self) -> int:
        """How many kernels run: a server with suspended ones only may stop for lack of activity."""
        return sum(not self._is_suspended(kernel_id) for kernel_id in self.list_kernel_ids())

    def __bool__(self) -> bool:
        """Always: jupyter_server asks `if kernel_manager` before it cleans up."""
        return True

    def kernel_model(self, kernel_id: str) -> dict[str, Any]:
        """Jupyter's model; `execution_state` tells what keeps the kernel from answering."""
        model: dict[str, Any] = super().kernel_model(kernel_id)
        served = self._served(kernel_id)
        if served is not None and served.state in _SHOWN:
            model["execution_state"] = str(served.state)
        return model

    def pre_start_kernel(
        self, kernel_name: str | None, kwargs: dict[str, Any]
    ) -> tuple[Any, str, str]:
        """As usual; a kernel that is adopted keeps its kernelspec if that is not installed any more."""
        manager, name, kernel_id = super().pre_start_kernel(kernel_name, kwargs)
        saved = self.gpuckpt_kernelspecs.pop(kernel_id, None)
        if saved is not None:
            try:
                manager.kernel_spec_manager.get_kernel_spec(name)
            except NoSuchKernel:
                manager._kernel_spec = KernelSpec(**saved)
        return manager, name, kernel_id

    def start_watching_activity(self, kernel_id: str) -> None:
        """As usual; what Jupyter looks at to know whether a kernel is busy, pages get."""
        super().start_watching_activity(kernel_id)
        served = self.gpuckpt_owner.served.get(kernel_id)
        if served is None:
            return
        stream = cast("Any", self.get_kernel(kernel_id))._activity_stream
        record = stream._recv_callback

        def received(parts: list[bytes]) -> None:
            try:
                record(parts)
            except Exception as error:
                self.log.debug("kernel %s: a message cannot be read: %s", kernel_id, error)
                if _SAID_BEFORE in str(error):
                    return
            try:
                served.output.feed(parts)
            except Exception:  # or the stream would wait for ever
                self.log.exception("kernel %s: a message was lost", kernel_id)

        stream.on_recv(received)

    def start_buffering(self, kernel_id: str, session_key: str, channels: dict[str, Any]) -> None:
        """As usual, for replies; what the kernel says to everybody is kept already (`kernel_output.py`).

        Without channels: the connection keeps them, for it has still something to send (`websocket.py`).
        """
        if not channels:
            return
        super().start_buffering(kernel_id, session_key, channels)
        if self.gpuckpt_owner.served.get(kernel_id) and not channels["iopub"].closed():
            channels["iopub"].on_recv(lambda parts: None)

    def get_buffer(self, kernel_id: str, session_key: str) -> dict[str, Any] | None:
        """As usual, but another page that comes does not cost the one that asked its reply."""
        served = self._served(kernel_id)
        left = served.left.pop(session_key, None) if served is not None else None
        if left is not None:
            return {
                "session_key": session_key,
                "buffer": left.unheard,
                "channels": left.channels,
            }
        buffered = self._kernel_buffers.get(kernel_id) if self._served(kernel_id) else None
        if buffered is not None and buffered["session_key"] != session_key:
            return None
        found: dict[str, Any] | None = super().get_buffer(kernel_id, session_key)
        return found

    async def interrupt_kernel(self, kernel_id: str) -> None:  # type: ignore[override] # as the async base
        """As usual, after an operation in flight; one that was suspended in the middle of a cell comes back for it.

        Nothing for a suspended kernel that was idle: a message would wait for its next cell.
        """
        served = self._served(kernel_id)
        if served is not None:
            # The daemon delivers it after the save, which may take minutes that nobody has asked for.
            await self.gpuckpt_operations.give_way(kernel_id)
        if served is not None and served.state is KernelState.SUSPENDED and served.output.awaited:
            operation = await self.gpuckpt_operations.resume(kernel_id)
            ended = await self.gpuckpt_operations.finish(operation)
            if ended.error is not None:
                raise web.HTTPError(409, f"{ended.error.message} {ended.error.hint}".strip())
        while served is not None and not served.gate_is_open:
            if served.state in {KernelState.SUSPENDED, KernelState.LOST}:
                return
            await served.change()
        await ensure_async(super().interrupt_kernel(kernel_id))

    async def restart_kernel(self, kernel_id: str, now: bool = False) -> None:  # type: ignore[override] # as the async base
        """As usual; what the kernel held can be gone back to."""
        if self._served(kernel_id) is not None:
            await self.gpuckpt_restart_snapshots.keep(kernel_id)
        await ensure_async(super().restart_kernel(kernel_id, now=now))

    async def cull_kernel_if_idle(self, kernel_id: str) -> None:
        """As usual, by Jupyter's own settings, but what would be shut down is suspended."""
        served = self._served(kernel_id)
        if served is not None and not self.gpuckpt_suspends_idle:
            return  # once suspended, no cell would bring it back
        parked = served is not None and served.state is KernelState.PARKED
        if served is not None and not (served.gate_is_open or parked):
            return  # it uses nothing, or something is being done with it
        if served is not None and served.kernel is not None and served.kernel.gpu_utilization:
            return  # a thread of the user's computes on the GPU
        culled = _culled.set(kernel_id)
        try:
            await super().cull_kernel_if_idle(kernel_id)
        finally:
            _culled.reset(culled)

    async def shutdown_kernel(  # type: ignore[override] # as the async base
        self, kernel_id: str, now: bool = False, restart: bool = False
    ) -> None:
        """As usual, unless the culler asks for it; what a user shuts down is kept for a while (`shut_downs.py`)."""
        idle = _culled.get() == kernel_id and self._served(kernel_id) is not None
        dead = idle and getattr(self.get_kernel(kernel_id), "execution_state", "") == "dead"
        if idle and not dead:
            await self._suspend_idle(kernel_id)
        elif now or restart or dead or not await self.gpuckpt_shut_downs.keep(kernel_id):
            await ensure_async(super().shutdown_kernel(kernel_id, now=now, restart=restart))

    async def _suspend_idle(self, kernel_id: str) -> None:
        """Suspend a kernel that nobody uses; if that fails it runs on, and the next round tries again."""
        try:
            operation = await self.gpuckpt_operations.suspend(kernel_id, cause=Cause.IDLE)
            ended = await self.gpuckpt_operations.finish(operation)
            if ended.error is not None:
                self.log.warning("Idle kernel %s runs on: %s", kernel_id, ended.error.message)
        except GpuCkptError as error:
            self.log.warning("Idle kernel %s runs on: %s", kernel_id, error)

    async def shutdown_all(self, now: bool = False) -> None:  # type: ignore[override] # as the async base
        """The server stops: suspend what the next server can bring back, shut down the rest. Never raises.

        Called by nobody but the server's cleanup, and once more for each further signal: all share one run, since an
        exception here, or a second run, would leave the server hanging.
        """
        self.gpuckpt_operations.stopping = True
        if self._gpuckpt_stop is None:
            self._gpuckpt_stop = asyncio.ensure_future(self._stop(now=now))
        await asyncio.shield(self._gpuckpt_stop)

    async def _stop(self, *, now: bool) -> None:
        if self._pending_kernels:  # what is just starting cannot be suspended yet
            await asyncio.wait(list(self._pending_kernels.values()))
        await self.gpuckpt_shut_downs.end_all()
        managed = [kernel_id for kernel_id in self.list_kernel_ids() if self._served(kernel_id)]
        if managed:
            self.log.info(
                "Suspending %d kernels: the next server has them again. Terminals end with this one.",
                len(managed),
            )
        operations, seconds = self.gpuckpt_operations, self.gpuckpt_stop_seconds
        await suspend_all(operations, managed, seconds, Cause.SHUTDOWN)
        for kernel_id in managed:
            try:
                self._detach(kernel_id)
            except Exception:
                self.log.exception("Kernel %s was not detached.", kernel_id)
        try:
            await self.gpuckpt_operations.close()
            # From here on nothing of this server may keep the kernels from the next one.
            await self.gpuckpt_owner.leave()
            await ensure_async(super().shutdown_all(now=now))
            await self.gpuckpt_owner.close()
        except Exception:
            self.log.exception("Shutting down the other kernels failed.")
        await end_requests()

    def _detach(self, kernel_id: str) -> None:
        """Forget a kernel without touching it or its connection file, which the kernel still names."""
        manager = self.get_kernel(kernel_id)
        manager.stop_restarter()
        self.stop_watching_activity(kernel_id)
        self.stop_buffering(kernel_id)
        manager._connection_file_written = False
        self.gpuckpt_owner.served[kernel_id].output.close()
        self.gpuckpt_owner.served[kernel_id].provisioner.release()
        self.remove_kernel(kernel_id)

    def _served(self, kernel_id: str) -> ServedKernel | None:
        served = self.gpuckpt_owner.served.get(kernel_id)
        return served if served is not None and served.kernel is not None else None

    def _is_suspended(self, kernel_id: str) -> bool:
        served = self._served(kernel_id)
        return served is not None and served.state is KernelState.SUSPENDED
