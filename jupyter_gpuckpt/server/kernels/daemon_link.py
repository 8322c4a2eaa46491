"""This server as an owner of kernels: its connection to the daemon, kept up as long as the server lives.

An object of this class is `gpuckpt_owner` of the multi kernel manager (`gpuckpt_provisioner.owner.KernelOwner` says what a
provisioner asks of it, from worker threads). Everything else here belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ... import calls
from ...client import AsyncClient, Client
from ...errors import DaemonUnavailable, GpuCkptError, HostError, KernelNotFound
from ...protocol import RESTART_SECONDS, Event, Kernel, Owner, SuspendedKernel
from ...states import KernelState
from ..messages.output import KernelOutput
from ..messages.served_kernel import Provisioner, ServedKernel
from .kernel_listener import KernelListener

if TYPE_CHECKING:
    from jupyter_client.manager import KernelManager

    from ...daemon_settings import Settings
    from .descriptions import KernelDescriptions
    from .reconnector import Reconnector


class DaemonLink:
    """The owner of this server's kernels."""

    def __init__(
        self,
        settings: Settings,
        owner: Owner,
        *,
        refusal: Callable[[str], str],
        descriptions: KernelDescriptions,
        reconnector: Reconnector,
        listener: KernelListener,
        kept_output_bytes: int,
        log: logging.Logger,
    ) -> None:
        self.settings = settings
        self.served: dict[str, ServedKernel] = {}
        #: Whether the log says already that the engine cannot work here.
        self.notice_given = False
        self._owner, self._refusal, self._descriptions = owner, refusal, descriptions
        self._reconnector, self._listener = reconnector, listener
        self._kept_output_bytes, self._log = kept_output_bytes, log
        self._adoptions: dict[str, SuspendedKernel] = {}
        #: What was being done with kernels that are gone.
        self._ending: set[asyncio.Task[None]] = set()
        self._up = threading.Event()
        self._heard_of: set[str] = set()
        #: The last news of kernels that are not attached: of one that is being adopted it is newer than what was claimed.
        self._early: dict[str, Kernel] = {}
        self._failure: GpuCkptError | None = None
        self._sync: Client | None = None
        self._sync_lock = threading.Lock()
        self._async: AsyncClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # ---- for the server ----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect for the first time; raises HostError where the engine cannot work, and DaemonUnavailable."""
        self._loop = asyncio.get_running_loop()
        try:
            client = self._async = await AsyncClient.connect(self.settings)
            handshake = await client.send(calls.handshake())
            if not handshake.engine_available:
                raise HostError(handshake.reason, hint=handshake.hint)
            first: asyncio.Future[None] = self._loop.create_future()
            self._task = asyncio.ensure_future(self._listen(client, first))
            await first
            self._failure = None
        except GpuCkptError as error:
            self._failure = error
            raise

    @property
    def ready(self) -> bool:
        """Whether there is a connection."""
        return self._up.is_set()

    @property
    def daemon(self) -> AsyncClient:
        """The client for the event loop; raises what keeps the link down."""
        if self._async is None or self._failure is not None:
            raise self._failure or DaemonUnavailable("There is no connection to the daemon yet.")
        return self._async

    async def claim(self) -> list[SuspendedKernel]:
        """The kernels that earlier servers left for this one; each is offered to the provisioner that adopts it."""
        claimed = await self.daemon.send(calls.claim(self.owner_id))
        for saved in claimed:
            self.offer(saved)
        return claimed

    async def kept_elsewhere(self) -> list[Kernel]:
        """The kernels that would be claimed if their servers had ended."""
        return await self.daemon.send(calls.claimable(self.owner_id))

    async def leave(self) -> None:
        """Let go of the kernels before this process ends, which may take it a while. Never raises."""
        try:
            await self.daemon.send(calls.leave(self.owner_id))
        except GpuCkptError as error:
            self._log.warning(
                "The next server has the kernels when this process has ended: %s", error
            )

    def offer(self, saved: SuspendedKernel) -> None:
        """Have the provisioner that is started with this kernel's id adopt it."""
        self._adoptions[saved.kernel.kernel_id] = saved

    async def catch_up(self, kernel_id: str) -> None:
        """Apply to an adopted kernel what became of it between its claim and its adoption."""
        kernel = self._early.pop(kernel_id, None)
        if kernel is not None:
            self._apply(self.served[kernel_id], kernel)
        elif kernel_id not in self._heard_of:
            await self._on_gone(self.daemon, kernel_id)

    async def close(self) -> None:
        """Let go; the daemon keeps the kernels for the next server."""
        for served in self.served.values():
            self._end(served)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._async is not None:
            await self._async.close()
        if self._sync is not None:
            await asyncio.to_thread(self._sync.close)
        if self._ending:
            await asyncio.wait(self._ending)

    # ---- for provisioners --------------------------------------------------------------------------------------------

    @property
    def owner_id(self) -> str:
        """Under which the daemon lists the kernels."""
        return self._owner.owner_id

    def client(self) -> Client:
        """A client for worker threads; raises HostError and DaemonUnavailable."""
        if self._failure is not None:
            raise self._failure
        if not self._up.wait(RESTART_SECONDS):
            raise DaemonUnavailable("The daemon did not come back in time.")
        with self._sync_lock:
            if self._sync is None:
                self._sync = Client.connect(self.settings)
            return self._sync

    def refusal(self, kernel_name: str) -> str:
        """Why the configuration keeps this kernelspec off the engine; empty if it does not."""
        return self._refusal(kernel_name)

    def adoption(self, kernel_id: str) -> SuspendedKernel | None:
        """The kernel that was claimed under this id; handed out once."""
        return self._adoptions.pop(kernel_id, None)

    def jupyter(self, manager: KernelManager) -> dict[str, Any]:
        """What the next server needs."""
        return self._descriptions.describe(manager, self.served.get(manager.kernel_id))

    def attach(self, kernel_id: str, watcher: Provisioner) -> None:
        """A kernel is about to be launched or adopted."""
        served = self.served.get(kernel_id)
        if served is None or served.provisioner is not watcher:
            path = self.settings.data / "output" / kernel_id
            self.served[kernel_id] = ServedKernel(
                kernel_id,
                watcher,
                KernelOutput(path, self._kept_output_bytes),
                self._reconnector.reconnect,
                self._listener,
            )
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(served.reset)

    def launched(self, kernel_id: str) -> None:
        """A new kernel's process exists."""
        self._reconnector.begin(self.served[kernel_id])

    def detach(self, kernel_id: str) -> None:
        """The kernel is gone or no longer ours."""
        served = self.served.pop(kernel_id, None)
        if served is not None:
            served.output.discard()
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._end, served)

    def _end(self, served: ServedKernel) -> None:
        for task in served.end():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    # ---- the connection ----------------------------------------------------------------------------------------------

    async def _listen(self, client: AsyncClient, first: asyncio.Future[None]) -> None:
        """Hear the daemon's events until the server ends; the client connects again by itself."""
        try:
            async with aclosing(client.events(self._owner, self._on_loss)) as events:
                async for event in events:
                    await self._on_event(client, event)
                    if self.ready and not first.done():
                        first.set_result(None)
        except GpuCkptError as error:
            if first.done():
                raise
            first.set_exception(error)

    def _on_loss(self, error: GpuCkptError) -> None:
        self._log.warning("gpuckptd: %s", error)
        self._up.clear()
        self._heard_of.clear()
        self._early.clear()

    async def _on_event(self, client: AsyncClient, event: Event) -> None:
        if event.snapshot is not None:
            self._listener.snapshot_changed(event.snapshot)
        elif event.kernel is not None:
            self._heard_of.add(event.kernel.kernel_id)
            self._on_kernel(event.kernel)
        elif event.gone:
            await self._on_gone(client, event.gone)
        elif not self.ready:
            # All kernels have been told after a gap: those that were not are gone.
            self._up.set()
            for kernel_id in set(self.served) - self._heard_of:
                await self._on_gone(client, kernel_id)

    def _on_kernel(self, kernel: Kernel) -> None:
        served = self.served.get(kernel.kernel_id)
        if served is None:
            self._early[kernel.kernel_id] = kernel
        else:
            self._early.pop(kernel.kernel_id, None)
            self._apply(served, kernel)
        self._listener.kernel_reported(kernel)

    def _apply(self, served: ServedKernel, kernel: Kernel) -> None:
        before = served.kernel.state if served.kernel else KernelState.SUSPENDED
        served.apply(kernel)
        if kernel.state is KernelState.SUSPENDED and before is not KernelState.SUSPENDED:
            self._listener.kernel_suspended(kernel)

    async def _on_gone(self, client: AsyncClient, kernel_id: str) -> None:
        """The news may be about an earlier life of the kernel: a restart kills and launches under one id."""
        served = self.served.get(kernel_id)
        if served is None:
            self._early.pop(kernel_id, None)
            self._heard_of.discard(kernel_id)
            return
        incarnation = served.provisioner.incarnation
        try:
            await client.send(calls.kernel(kernel_id))
        except KernelNotFound:
            if served.provisioner.incarnation == incarnation:
                served.provisioner.note_gone()
                self._listener.kernel_changed(kernel_id)
        except DaemonUnavailable:
            self._log.debug("gpuckptd went while it was asked about kernel %s", kernel_id)
