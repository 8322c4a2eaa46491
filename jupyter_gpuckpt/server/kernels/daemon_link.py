"""This server as an owner of kernels: its connection to the daemon, kept open while the server runs.

An object of this class is `gpuckpt_owner` of the multi kernel manager (`gpuckpt_provisioner.owner.KernelOwner` says what a
provisioner asks of it, from worker threads). Everything else here belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from ...client import AsyncClient, Client
from ...client.left_kernels import left_kernel
from ...client.mirror import Mirror
from ...errors import DaemonSilent, DaemonUnavailable, GpuCkptError, HostError
from ...wire import calls
from ...wire.protocol import (
    RESTART_SECONDS,
    ClaimRequest,
    Event,
    Kernel,
    Owner,
    Position,
    SuspendedKernel,
)
from ...wire.states import KernelState
from ..messages.output import KernelOutput
from ..messages.served_kernel import Provisioner, ServedKernel
from .kernel_listener import KernelListener

if TYPE_CHECKING:
    from jupyter_client.connect import KernelConnectionInfo
    from jupyter_client.manager import KernelManager

    from ...wire.daemon_settings import Settings
    from .descriptions import KernelDescriptions
    from .reconnector import Reconnector


#: How long this server waits for a daemon that runs but does not answer, before it says so.
_PATIENCE_SECONDS = 5.0


class DaemonLink:
    """The server's connection to the daemon, by which it owns its kernels and applies the daemon's events."""

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
        #: Whether the log already has the message that the engine cannot work here.
        self.notice_given = False
        self._owner, self._refusal, self._descriptions = owner, refusal, descriptions
        self._reconnector, self._listener = reconnector, listener
        self._kept_output_bytes, self._log = kept_output_bytes, log
        self._adoptions: dict[str, SuspendedKernel] = {}
        #: Canceled tasks of kernels that are gone.
        self._ending: set[asyncio.Task[None]] = set()
        self._up = threading.Event()
        #: The daemon's records of all kernels of this owner, attached or not, and of the operations on them.
        self.mirror = Mirror()
        self._giving_up: asyncio.TimerHandle | None = None
        #: Why there was no first connection; why there is none now, since there was one.
        self._failure: GpuCkptError | None = None
        self._loss: GpuCkptError | None = None
        #: Kernels that were shut down while the daemon could not be told.
        self._unended: set[str] = set()
        #: Set when the kernels of earlier servers are listed.
        self._settled = asyncio.Event()
        self._sync: Client | None = None
        self._sync_lock = threading.Lock()
        self._async: AsyncClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # ---- for the server ----------------------------------------------------------------------------------------------

    async def open(self, patience_seconds: float = calls.ANSWER_SECONDS) -> None:
        """Connect to the daemon for the first time; may be called again after a failure.

        `patience_seconds`: as for `starting.ensure`. Raises HostError if the engine cannot work here, or DaemonUnavailable.
        """
        self._loop = asyncio.get_running_loop()
        try:
            client = await AsyncClient.connect(self.settings, patience_seconds=patience_seconds)
            if self._async is not None:
                await self._async.close()
            self._async = client
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
    def is_open(self) -> bool:
        """Return whether there was a connection; if it is lost, it is opened again by itself."""
        return self._task is not None and self._failure is None

    @property
    def ready(self) -> bool:
        """Return whether there is a connection to the daemon now."""
        return self._up.is_set()

    @property
    def daemon(self) -> AsyncClient:
        """Return the client for the event loop. Raises HostError or DaemonUnavailable without a connection."""
        if isinstance(self._loss, DaemonSilent):
            raise self._loss
        return self._first_client()

    @property
    def trouble(self) -> GpuCkptError | None:
        """Return why the daemon cannot be reached; None if it can, or if that is not known yet."""
        return self._failure or self._loss

    async def require_answer(self) -> None:
        """Raise DaemonUnavailable if the daemon does not answer; one that is busy gets a while."""
        try:
            await self._first_client().require_answer(_PATIENCE_SECONDS)
        except DaemonSilent as error:
            # The stream of events would notice it later. Its next event shows that the daemon answers again.
            self._note_loss(error)
            raise

    def managed(self, kernel_ids: Iterable[str]) -> list[str]:
        """Return those of these kernels that are under the engine and launched."""
        return [one for one in kernel_ids if (served := self.served.get(one)) and served.kernel]

    def settle(self) -> None:
        """Note that the kernels of earlier servers are listed, or will not be."""
        self._settled.set()

    async def require_no_kernel(self, path: str, root: str) -> None:
        """Raise DaemonUnavailable if a notebook may have a kernel that is not listed, because the daemon does not answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._settled.wait()
        error = self.trouble
        if self._settled.is_set() and not isinstance(error, DaemonSilent):
            return
        kernel_id = await asyncio.to_thread(
            left_kernel, self.settings.state, path, root=root, owner_id=self.owner_id
        )
        if kernel_id:
            why = f"{error.message} {error.hint}" if error else "It is being listed: try again."
            raise DaemonUnavailable(
                f"{path} has a kernel already ({kernel_id}), which this server cannot reach yet, so no second one is started. {why} A"
                " server that is started with --GpuCkptServer.clean_start=True does without the kernels of earlier servers."
            )

    async def claim(self, kernel_id: str = "") -> list[SuspendedKernel]:
        """Claim the kernels that earlier servers left, or only one, and return them; provisioners get them by `adoption`."""
        claimed = await self.daemon.send(calls.claim(self.owner_id, ClaimRequest(kernel_id)))
        for saved in claimed:
            self.offer(saved)
        return claimed

    async def left_kernel(self, path: str, root: str) -> str:
        """Return the id of the kernel that an editor's relay, or a server, has left for a notebook; empty if there is none."""
        return await asyncio.to_thread(
            left_kernel,
            self.settings.state,
            path,
            root=root,
            owner_id="",
            known=frozenset(self.served),
        )

    async def kept_elsewhere(self) -> list[Kernel]:
        """List the kernels that would be claimed if their servers had ended."""
        return await self.daemon.send(calls.claimable(self.owner_id))

    async def leave(self) -> None:
        """Let the next server claim the kernels now, because this process may take a while to end. Never raises."""
        try:
            await self.daemon.send(calls.leave(self.owner_id))
        except GpuCkptError as error:
            self._log.warning(
                "The next server can claim the kernels only when this process has ended: %s", error
            )

    def offer(self, saved: SuspendedKernel) -> None:
        """Store a kernel for the provisioner that is started with its id and adopts it."""
        self._adoptions[saved.kernel.kernel_id] = saved

    def catch_up(self, kernel_id: str) -> None:
        """Apply the newest record to an adopted or launched kernel: it may have changed since the daemon handed it over."""
        served = self.served.get(kernel_id)
        if served is None or served.kernel is None:
            return
        kernel = self.mirror.expect(served.kernel)
        if kernel is None:
            self._on_gone(kernel_id, self.mirror.position)
        else:
            self._apply(served, kernel)

    async def close(self) -> None:
        """Close the connection and end all tasks; the daemon keeps the kernels for the next server."""
        for served in self.served.values():
            self._end(served)
        if self._giving_up is not None:
            self._giving_up.cancel()
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
        """Return the id of this owner at the daemon."""
        return self._owner.owner_id

    def client(self) -> Client:
        """Return the client for worker threads. Raises HostError or DaemonUnavailable."""
        if self._failure is not None:
            raise self._failure
        if not self._up.wait(RESTART_SECONDS):
            raise self._loss or DaemonUnavailable("The daemon did not come back in time.")
        if isinstance(self._loss, DaemonSilent):
            raise self._loss
        with self._sync_lock:
            if self._sync is None:
                self._sync = Client.connect(self.settings, patience_seconds=_PATIENCE_SECONDS)
        self._sync.require_answer(_PATIENCE_SECONDS)
        return self._sync

    def refusal(self, kernel_name: str) -> str:
        """Return why the configuration keeps this kernelspec off the engine; empty if it does not."""
        return self._refusal(kernel_name)

    def adoption(self, kernel_id: str) -> SuspendedKernel | None:
        """Return the claimed kernel of this id, once; None if there is none."""
        return self._adoptions.pop(kernel_id, None)

    def jupyter(self, manager: KernelManager) -> dict[str, Any]:
        """Return the description from which the next server lists a kernel unchanged."""
        return self._descriptions.describe(manager, self.served.get(manager.kernel_id))

    def attach(self, kernel_id: str, watcher: Provisioner) -> None:
        """Serve a kernel that is about to be launched or adopted."""
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

    def launched(self, kernel_id: str, connection: KernelConnectionInfo) -> None:
        """Connect to a new kernel; its process exists."""
        self.catch_up(kernel_id)
        self._reconnector.begin(self.served[kernel_id])

    def detach(self, kernel_id: str) -> None:
        """Drop a kernel that is gone or no longer this server's."""
        served = self.served.pop(kernel_id, None)
        if served is not None:
            served.output.discard()
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._end, served)

    def end_later(self, kernel_id: str) -> None:
        """Remember a kernel that was shut down without the daemon: it ends it when there is a connection again."""
        self._unended.add(kernel_id)

    def _end(self, served: ServedKernel) -> None:
        for task in served.end():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    # ---- the connection ----------------------------------------------------------------------------------------------

    def _first_client(self) -> AsyncClient:
        """Return the client of the first connection, whether or not there is one now. Raises why there was none."""
        if self._async is None or self._failure is not None:
            raise self._failure or DaemonUnavailable("There is no connection to the daemon yet.")
        return self._async

    async def _listen(self, client: AsyncClient, first: asyncio.Future[None]) -> None:
        """Apply the daemon's events until the server ends; the client reconnects by itself."""
        events = client.events(self._owner, self.mirror, self._on_loss)
        try:
            async with aclosing(events):
                async for changes in events:
                    for change in changes:
                        self._apply_safely(change)
                    if not self.ready or self._loss is not None:
                        self._on_connect(first)
        except GpuCkptError as error:
            if first.done():
                raise
            first.set_exception(error)

    def _on_connect(self, first: asyncio.Future[None]) -> None:
        """Complete a (re)connect after its full state; kernels that are not in it are gone."""
        for kernel_id in set(self.served) - set(self.mirror.kernels):
            self._on_gone(kernel_id, self.mirror.position)
        self._up.set()
        self._loss = None
        for kernel_id in self._unended & set(self.mirror.kernels) - set(self.served):
            task = asyncio.ensure_future(self._kill(kernel_id))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        self._unended.clear()
        self._tell()
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        if not first.done():
            first.set_result(None)

    def _on_loss(self, error: GpuCkptError) -> None:
        self._up.clear()
        self._note_loss(error)
        if isinstance(error, DaemonSilent):
            # What it was doing it may still do.
            if self._giving_up is not None:
                self._giving_up.cancel()
                self._giving_up = None
        elif self._giving_up is None:
            loop = asyncio.get_running_loop()
            self._giving_up = loop.call_later(RESTART_SECONDS, self._give_up)

    def _note_loss(self, error: GpuCkptError) -> None:
        if self._loss is None or self._loss.message != error.message:
            self._log.warning("gpuckptd: %s %s", error, error.hint)
        self._loss = error
        self._tell()

    def _tell(self) -> None:
        """Let pages see whether the daemon answers."""
        for kernel_id in list(self.served):
            self._listener.kernel_changed(kernel_id)

    async def _kill(self, kernel_id: str) -> None:
        try:
            await self.daemon.send(calls.kill(kernel_id))
        except GpuCkptError as error:
            self._log.warning("kernel %s was not shut down: %s", kernel_id, error)

    def _give_up(self) -> None:
        """Fail the operations whose end no daemon has reported in time, so that their waiters continue."""
        for change in self.mirror.lose():
            self._apply_safely(change)

    def _apply_safely(self, change: Event) -> None:
        """Apply a change and log any error, because later changes must still be applied."""
        try:
            self._on_change(change)
        except Exception:
            self._log.exception("A change that the daemon sent could not be applied")

    def _on_change(self, change: Event) -> None:
        if change.kernel is not None and change.kernel.kernel_id in self.served:
            self._apply(self.served[change.kernel.kernel_id], change.kernel)
        if change.operation is not None:
            kernel = self.mirror.kernels.get(change.operation.kernel_id)
            self._listener.operation_changed(change.operation, kernel.name if kernel else "")
        if change.gone:
            self._on_gone(change.gone, change.position)
            if change.by_user and change.gone in self.served:
                self._listener.kernel_ended(change.gone)
        if change.snapshot is not None:
            self._listener.snapshot_changed(change.snapshot)
        if change.notice is not None:
            self._listener.notice_changed(change.notice)

    def _apply(self, served: ServedKernel, kernel: Kernel) -> None:
        before = served.kernel.state if served.kernel else KernelState.SUSPENDED
        served.apply(kernel)
        is_suspended = served.kernel is kernel and kernel.state is KernelState.SUSPENDED
        if is_suspended and before is not KernelState.SUSPENDED:
            self._listener.kernel_suspended(kernel)

    def _on_gone(self, kernel_id: str, position: Position) -> None:
        served = self.served.get(kernel_id)
        if served is not None:
            served.provisioner.note_gone(position)
            self._listener.kernel_changed(kernel_id)
