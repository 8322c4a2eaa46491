"""A mixin for the server's kernel manager, for kernels under the engine.

Covers: models, interrupts, restarts, culling, the end of the server, the iopub messages that Jupyter receives. Policies are
notified of each (`KernelListener`). Does not cover: launch and shutdown of a single kernel (the provisioner), save, suspend
and resume (`kernel_operations.py`).
"""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from jupyter_client.kernelspec import KernelSpec, NoSuchKernel
from jupyter_core.utils import ensure_async
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from tornado import web
from traitlets import TraitError

from ...errors import DaemonSilent, GpuCkptError
from ...wire.states import KernelState
from .. import jupyter_internals
from ..messages.client_relay import RelayedClient
from ..messages.kernel_messages import fields, is_about_ours, is_user_request, read
from ..messages.probe import AGENT_MESSAGES
from .notebook_sessions import manager_of, mixed

if TYPE_CHECKING:
    from ..messages.served_kernel import ServedKernel
    from .daemon_link import DaemonLink
    from .kernel_listener import KernelListener

    _Base = AsyncMappingKernelManager
else:
    _Base = object

#: States that replace Jupyter's own in REST models. A kernel that is being saved is still idle or busy.
_SHOWN = frozenset(KernelState) - {KernelState.STARTING, KernelState.RUNNING, KernelState.SAVING}
#: jupyter_client's error for a message that it received before: a snapshot with buffered output is resumed for the second time.
_RECEIVED_BEFORE = "Duplicate Signature"
#: How long a shutdown waits for a restart of the same kernel, and a restart for a shutdown.
_OTHER_SECONDS = 10.0
#: The kernel that the culler is examining: for an idle one it calls `shutdown_kernel`, as a user's click does.
_culled: ContextVar[str] = ContextVar("gpuckpt_culled", default="")


def install_kernel_manager(
    kernels: AsyncMappingKernelManager,
    owner: DaemonLink,
    listener: KernelListener,
    *,
    suspends_idle: bool,
) -> GpuCkptKernels:
    """Extend the configured kernel manager, whose instance exists already, and return it.

    `owner`: used by provisioners. `suspends_idle`: whether idle kernels may be suspended, because a cell resumes them.
    """
    ours = cast("GpuCkptKernels", kernels)
    ours.gpuckpt_owner, ours.gpuckpt_listener = owner, listener
    ours.gpuckpt_suspends_idle = suspends_idle
    ours.gpuckpt_kernelspecs, ours.gpuckpt_stop = {}, None
    ours.gpuckpt_restarts, ours.gpuckpt_shutdowns, ours.gpuckpt_left = {}, {}, set()
    # The agent's requests and replies are no activity of a user.
    if jupyter_internals.has_untracked_types(kernels):
        ours.untracked_message_types = [*kernels.untracked_message_types, *AGENT_MESSAGES]
    ours.__class__ = mixed(GpuCkptKernels, type(kernels))
    return ours


class GpuCkptKernels(_Base):
    """A mixin of the configured multi kernel manager; `install_kernel_manager` installs it."""

    #: The owner of the kernels, used under this name by provisioners (`gpuckpt_provisioner.owner`) and by websockets.
    gpuckpt_owner: DaemonLink
    gpuckpt_listener: KernelListener
    gpuckpt_suspends_idle: bool
    #: Kernelspecs of kernels to adopt, by kernel id: they may have been uninstalled since.
    gpuckpt_kernelspecs: dict[str, dict[str, Any]]
    #: Restarts that run, by kernel id.
    gpuckpt_restarts: dict[str, asyncio.Task[None]]
    #: Shutdowns that run, by kernel id.
    gpuckpt_shutdowns: dict[str, asyncio.Future[None]]
    gpuckpt_stop: asyncio.Task[None] | None
    #: Kernels that the stopping server has left to the next one.
    gpuckpt_left: set[str]

    def __len__(self) -> int:
        """Return the number of kernels that run: a server that has only suspended ones may stop for lack of activity."""
        return sum(not self._is_suspended(kernel_id) for kernel_id in self.list_kernel_ids())

    def __bool__(self) -> bool:
        """Return True: jupyter_server tests `if kernel_manager` before it cleans up."""
        return True

    def list_kernels(self) -> list[dict[str, Any]]:
        """List the kernels as the base does. Raise HTTPError 503 if some were left to the next server."""
        self.gpuckpt_require_not_left(*self.gpuckpt_left)
        models: list[dict[str, Any]] = super().list_kernels()
        return models

    def gpuckpt_require_not_left(self, *kernel_ids: str) -> None:
        """Raise HTTPError 503 if a kernel was left to the next server: an open page would give up one that it is told is gone."""
        if not self.gpuckpt_left.isdisjoint(kernel_ids):
            raise web.HTTPError(
                503, "This server is stopping. The next one lists its kernels again."
            )

    def _check_kernel_id(self, kernel_id: str) -> None:
        self.gpuckpt_require_not_left(kernel_id)
        super()._check_kernel_id(kernel_id)

    def kernel_model(self, kernel_id: str) -> dict[str, Any]:
        """Return Jupyter's model; its `execution_state` shows why the kernel cannot answer."""
        try:
            model: dict[str, Any] = super().kernel_model(kernel_id)
        except (
            AttributeError,
            TraitError,
        ):  # Jupyter sets these a moment after it has listed a kernel
            manager = manager_of(self, kernel_id)
            manager.execution_state, manager.last_activity = "starting", datetime.now(UTC)
            model = super().kernel_model(kernel_id)
        served = self._served(kernel_id)
        if served is not None and served.state in _SHOWN:
            model["execution_state"] = str(served.state)
        return model

    def pre_start_kernel(
        self, kernel_name: str | None, kwargs: dict[str, Any]
    ) -> tuple[Any, str, str]:
        """Prepare a start: the kernel's clients may be relayed; one that is adopted keeps a kernelspec that is no longer installed."""
        manager, name, kernel_id = super().pre_start_kernel(kernel_name, kwargs)
        if not issubclass(manager.client_factory, RelayedClient):
            manager.client_factory = mixed(RelayedClient, manager.client_factory)
        saved = self.gpuckpt_kernelspecs.pop(kernel_id, None)
        if saved is not None:
            try:
                manager.kernel_spec_manager.get_kernel_spec(name)
            except NoSuchKernel:
                jupyter_internals.set_kernelspec(manager, KernelSpec(**saved))
        return manager, name, kernel_id

    def start_watching_activity(self, kernel_id: str) -> None:
        """Watch a kernel's iopub messages as the base does, and pass them to its `KernelOutput`, which sends them to pages."""
        super().start_watching_activity(kernel_id)
        served = self.gpuckpt_owner.served.get(kernel_id)
        if served is None:
            return
        stream = jupyter_internals.activity_stream(self.get_kernel(kernel_id))
        record = jupyter_internals.receiver_of(stream)
        records_all = jupyter_internals.has_untracked_types(self)

        def received(parts: list[bytes]) -> None:
            if is_user_request(parts):
                self.gpuckpt_listener.user_asked(kernel_id, fields(read(parts)[2]))
                return
            try:
                if records_all or not is_about_ours(parts):
                    record(parts)
            except Exception as error:
                self.log.debug("kernel %s: a message cannot be read: %s", kernel_id, error)
                if _RECEIVED_BEFORE in str(error):
                    return
            try:
                served.output.feed(parts)
            except Exception:  # an exception would stall the stream
                self.log.exception("kernel %s: a message was lost", kernel_id)

        stream.on_recv(received)

    def start_buffering(self, kernel_id: str, session_key: str, channels: dict[str, Any]) -> None:
        """Buffer replies for a page that has gone; iopub messages are kept already (`messages/output.py`).

        `channels` is empty if the connection keeps them, because it still has something to send (`messages/gate.py`).
        """
        if not channels:
            return
        super().start_buffering(kernel_id, session_key, channels)
        if self.gpuckpt_owner.served.get(kernel_id) and not channels["iopub"].closed():
            channels["iopub"].on_recv(lambda parts: None)

    def get_buffer(self, kernel_id: str, session_key: str) -> dict[str, Any] | None:
        """Return the messages buffered for a page; unlike the base, keep those for another page."""
        served = self._served(kernel_id)
        left = served.left_pages.pop(session_key, None) if served is not None else None
        if left is not None:
            return {
                "session_key": session_key,
                "buffer": left.unreceived,
                "channels": left.channels,
            }
        kept = jupyter_internals.buffered(self, kernel_id) if served is not None else None
        if kept is not None and kept["session_key"] != session_key:
            return None
        found: dict[str, Any] | None = super().get_buffer(kernel_id, session_key)
        return found

    async def interrupt_kernel(self, kernel_id: str) -> None:  # type: ignore[override] # as the async base
        """Interrupt a kernel after an operation in flight; one that was suspended in the middle of a cell is resumed for it.

        Do nothing for a suspended kernel that was idle: a message would wait for its next cell; nor for one that is being restarted.
        """
        if kernel_id in self.gpuckpt_restarts:
            return
        served = self._served(kernel_id)
        if served is not None:
            try:
                await self.gpuckpt_listener.before_interrupt(kernel_id)
            except GpuCkptError as error:
                raise web.HTTPError(409, f"{error.message} {error.hint}".strip()) from error
        while served is not None and not served.gate_is_open:
            if served.state in {KernelState.SUSPENDED, KernelState.LOST}:
                return
            await served.change()
        await ensure_async(super().interrupt_kernel(kernel_id))

    async def restart_kernel(self, kernel_id: str, now: bool = False) -> None:  # type: ignore[override] # as the async base
        """Restart a kernel; a policy may keep its process. A restart that runs already answers this request as well.

        Two at once would end each other's processes: the page's sockets would reach neither, and the undo would be lost.
        """
        if shutdown := self.gpuckpt_shutdowns.get(kernel_id):
            await asyncio.wait({shutdown}, timeout=_OTHER_SECONDS)
        if kernel_id not in self:
            return  # Jupyter says then that there is no such kernel; an exception would become an unclear one
        restart = self.gpuckpt_restarts.get(kernel_id)
        if restart is None:
            restart = asyncio.ensure_future(self._restart(kernel_id, now=now))
            self.gpuckpt_restarts[kernel_id] = restart
            restart.add_done_callback(lambda _: self.gpuckpt_restarts.pop(kernel_id))
        await asyncio.shield(restart)

    async def _restart(self, kernel_id: str, *, now: bool) -> None:
        if self._served(kernel_id) is not None:
            try:
                await self.gpuckpt_owner.require_answer()
            except DaemonSilent as error:  # it could not end the old kernel: there would be two
                raise web.HTTPError(503, f"{error.message} {error.hint}") from error
            # No process is left then that could be asked to end: the message would reach the next one.
            now = await self.gpuckpt_listener.before_restart(kernel_id) or now
        await ensure_async(super().restart_kernel(kernel_id, now=now))

    async def cull_kernel_if_idle(self, kernel_id: str) -> None:
        """Cull a kernel by Jupyter's own settings; one under the engine is suspended instead of being shut down."""
        served = self._served(kernel_id)
        if served is None:
            await super().cull_kernel_if_idle(kernel_id)
            return
        if not self.gpuckpt_suspends_idle:
            return  # once suspended, no cell would bring it back
        if not (served.gate_is_open or served.state is KernelState.PARKED):
            return  # it uses nothing, or an operation on it runs
        if served.kernel is not None and served.kernel.gpu_utilization:
            return  # a thread of the user's computes on the GPU
        culled = _culled.set(kernel_id)
        try:
            await super().cull_kernel_if_idle(kernel_id)
        finally:
            _culled.reset(culled)

    async def shutdown_kernel(  # type: ignore[override] # as the async base
        self, kernel_id: str, now: bool = False, restart: bool = False
    ) -> None:
        """Shut a kernel down, unless the culler asks for it or a policy keeps it for a while."""
        idle = _culled.get() == kernel_id and self._served(kernel_id) is not None
        dead = idle and getattr(self.get_kernel(kernel_id), "execution_state", "") == "dead"
        if idle and not dead:
            await self.gpuckpt_listener.kernel_idle(kernel_id)
            return
        if not restart and (running := self.gpuckpt_restarts.get(kernel_id)):
            await asyncio.wait({running}, timeout=_OTHER_SECONDS)
        ended = self.gpuckpt_shutdowns[kernel_id] = asyncio.get_running_loop().create_future()
        try:
            if now or restart or dead or not await self.gpuckpt_listener.keep_shut_down(kernel_id):
                await ensure_async(super().shutdown_kernel(kernel_id, now=now, restart=restart))
        finally:
            ended.set_result(None)
            if self.gpuckpt_shutdowns.get(kernel_id) is ended:
                del self.gpuckpt_shutdowns[kernel_id]

    async def shutdown_all(self, now: bool = False) -> None:  # type: ignore[override] # as the async base
        """Stop serving kernels: suspend those that the next server can bring back, shut down the others. Never raise.

        The server's cleanup calls this, once more for each further signal. All calls share one run: an exception here, or a
        second run, would leave the server hanging.
        """
        if self.gpuckpt_stop is None:
            self.gpuckpt_stop = asyncio.ensure_future(self._stop(now=now))
        await asyncio.shield(self.gpuckpt_stop)

    async def _stop(self, *, now: bool) -> None:
        try:
            await self.gpuckpt_listener.server_stops()
            # This must not run after a failure: it would end kernels that were not suspended.
            await ensure_async(super().shutdown_all(now=now))
        except Exception:
            self.log.exception(
                "Kernels that were not suspended run on; the next server lists them."
            )
        try:
            await self.gpuckpt_listener.server_stopped()
        except Exception:
            self.log.exception("The server stops although not everything was closed.")

    def gpuckpt_detach(self, kernel_id: str) -> None:
        """Forget a kernel without touching it or its connection file, which the kernel still uses."""
        manager = self.get_kernel(kernel_id)
        manager.stop_restarter()
        self.stop_watching_activity(kernel_id)
        self.stop_buffering(kernel_id)
        jupyter_internals.keep_connection_file(manager)
        served = self.gpuckpt_owner.served[kernel_id]
        served.output.close()
        served.provisioner.release()
        self.remove_kernel(kernel_id)
        self.gpuckpt_left.add(kernel_id)

    def _served(self, kernel_id: str) -> ServedKernel | None:
        served = self.gpuckpt_owner.served.get(kernel_id)
        return served if served is not None and served.kernel is not None else None

    def _is_suspended(self, kernel_id: str) -> bool:
        served = self._served(kernel_id)
        return served is not None and served.state is KernelState.SUSPENDED
