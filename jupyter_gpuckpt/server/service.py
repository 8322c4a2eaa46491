"""The composition root: every part of the server is constructed here, in order, with its dependencies."""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection

from ..client import this_owner
from ..client.daemon_traits import GpuCkptDaemon
from ..client.holding import Backoff
from ..errors import DaemonSilent, DaemonUnavailable, GpuCkptError
from ..wire import calls
from ..wire.protocol import OwnerKind
from .events.ended_operations import EndedOperations
from .events.kernel_events import KernelEvents
from .kernels.adoption import Adoption
from .kernels.branching import Branching
from .kernels.daemon_link import DaemonLink
from .kernels.descriptions import KernelDescriptions
from .kernels.kernel_list import KernelList
from .kernels.kernel_listener import KernelListeners
from .kernels.kernel_manager import install_kernel_manager
from .kernels.kernel_operations import ServerOperations
from .kernels.notebook_sessions import install_sessions, mixed
from .kernels.peer_access_hold import PeerAccessSwitch
from .kernels.reconnector import Reconnector
from .kernels.rollbacks import Rollbacks
from .kernels.session_moves import Moves
from .kernels.stored_notebooks import StoredNotebooks
from .kernels.template_builders import TemplateBuilders
from .messages.gate import GatedConnection
from .policies.agent_saves import AgentSaves
from .policies.autosave import Autosave
from .policies.gpu_room import GpuRoom
from .policies.idle import IdleSuspends, IdleSuspension
from .policies.memory_room import MemoryRoom
from .policies.parking import IdleParking
from .policies.ready_kernels import ReadyKernels
from .policies.reclaim import Reclaim
from .policies.restarts import Restarts
from .policies.server_stop import ServerStop
from .policies.shut_downs import ShutDowns
from .policies.user_requests import UserRequests
from .policies.waking import Waking
from .rest.rest_handler import Parts

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from jupyter_server.serverapp import ServerApp

    from .traits import ServerTraits


#: How long the server's start waits for a daemon that runs but does not answer.
_FIRST_SECONDS = 5.0
#: The interval of attempts to start a daemon that did not start, or to reach one of another version.
_RETRY_SECONDS = 60.0


class Service:
    """The composition root of the extension, for a server whose kernels can run under the engine."""

    def __init__(
        self, serverapp: ServerApp, traits: ServerTraits, config: GpuCkptDaemon, log: logging.Logger
    ) -> None:
        sessions: Any = serverapp.session_manager
        kernels: Any = serverapp.kernel_manager
        events: Any = serverapp.event_logger
        listeners = KernelListeners()
        descriptions = KernelDescriptions(kernels, sessions)
        peer_access = PeerAccessSwitch(kernels, log)
        reconnector = Reconnector(
            kernels,
            sessions,
            peer_access,
            renewed_variables=traits.renewed_variables,
            log=log,
        )
        link = DaemonLink(
            config.settings(),
            this_owner(
                OwnerKind.SERVER,
                root_dir=str(kernels.root_dir),
                jupyter_runtime_dir=serverapp.runtime_dir,
                autosave_seconds=traits.lose_at_most,
            ),
            refusal=traits.refusal,
            descriptions=descriptions,
            reconnector=reconnector,
            listener=listeners,
            kept_output_bytes=traits.kept_output_bytes,
            log=log,
        )
        operations = ServerOperations(
            link,
            kernels,
            descriptions=descriptions,
            peer_access=peer_access,
            listener=listeners,
            retention=config.retention(),
            trims=traits.trim,
            log=log,
        )
        cells_resume = _install_gate(serverapp, log)
        kernels = install_kernel_manager(kernels, link, listeners, suspends_idle=cells_resume)
        self._adoption = Adoption(
            link,
            kernels,
            sessions,
            operations,
            reconnector,
            resume_busy=traits.resume_busy,
            log=log,
        )
        install_sessions(
            sessions,
            operations.report_sessions,
            None if traits.clean_start else self._adoption.adopted_for,
        )
        self.kernels = KernelList(
            kernels,
            sessions,
            link.served,
            operations.tracked,
            cells_resume=cells_resume,
            resume_busy=traits.resume_busy,
            restart_save_seconds=traits.undo_restart_within,
            trouble=lambda: link.trouble,
        )
        suspends = IdleSuspends(operations)
        # A cell must be able to resume what is suspended.
        memory_room = (
            MemoryRoom(link, kernels, operations, suspends, high=traits.ram_high, log=log)
            if traits.ram_high and cells_resume
            else None
        )
        gpu_room = GpuRoom(
            link, kernels, operations, memory_room, wait_seconds=traits.gpu_wait, log=log
        )
        contents = serverapp.contents_manager
        notebooks = StoredNotebooks(link, contents)
        branching = Branching(
            link,
            kernels,
            sessions,
            contents,
            notebooks,
            operations,
            self._adoption,
            gpu_room.resume,
            log,
        )
        shut_downs = ShutDowns(
            link, kernels, sessions, listeners, undo_seconds=traits.undo_shutdown_for, log=log
        )
        idle = IdleSuspension(
            kernels, operations, suspends, notice_seconds=traits.idle_notice, log=log
        )
        # Listeners are notified in this order: a periodic save is canceled first.
        if traits.lose_at_most:
            listeners.add(
                Autosave(
                    operations,
                    self.kernels,
                    wanted_seconds=traits.lose_at_most,
                    share=traits.autosave_cost,
                    log=log,
                )
            )
        listeners.add(
            operations,
            EndedOperations(events, link.served, log),
            KernelEvents(events, self.kernels),
            suspends,
            Waking(operations, gpu_room, log),
            idle,
            Reclaim(link, kernels, operations, log),
            UserRequests(kernels, self.kernels, operations, branching, log),
            shut_downs,
        )
        if traits.save_before_agents:
            listeners.add(AgentSaves(operations, traits.agent_clients, log))
        if traits.park_after:
            listeners.add(
                IdleParking(kernels, operations, after_seconds=traits.park_after, log=log)
            )
        if memory_room is not None:
            listeners.add(memory_room)
        if traits.ready_kernels:
            listeners.add(
                ReadyKernels(
                    link,
                    operations,
                    counts=traits.ready_kernels,
                    shared=_shared_templates(serverapp),
                    log=log,
                )
            )
        restarts = Restarts(
            link,
            kernels,
            operations,
            listeners,
            keep_seconds=traits.undo_restart_within,
            log=log,
        )
        listeners.add(restarts)
        # It must be the last, because it closes what the others use.
        within_seconds = traits.stop_timeout or None
        listeners.add(
            ServerStop(
                link, kernels, operations, shut_downs, within_seconds=within_seconds, log=log
            )
        )
        self.parts = Parts(
            link,
            operations,
            gpu_room,
            branching,
            Rollbacks(link, operations, gpu_room.resume, log),
            notebooks,
            Moves(link, operations, gpu_room.resume),
            shut_downs,
            restarts,
            idle,
            TemplateBuilders(link.settings),
        )
        self._link, self._operations, self._listeners, self._log = link, operations, listeners, log
        self._starts_clean = traits.clean_start

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task in the background, at the latest until the server stops."""
        self._operations.spawn(work)

    async def start(self) -> None:
        """Connect to the daemon and list the kernels of earlier servers, unless it starts clean. Never raises: the server must start.

        A daemon that cannot be reached is tried again in the background.
        """
        try:
            await self._begin(_FIRST_SECONDS)
        except DaemonUnavailable as error:
            self._tell(error)
            self._operations.spawn(self._begin_later(error))

    async def _begin_later(self, error: GpuCkptError) -> None:
        """Try to begin until that succeeds."""
        backoff = Backoff()
        while True:
            is_silent = isinstance(error, DaemonSilent)
            await asyncio.sleep(backoff.seconds() if is_silent else _RETRY_SECONDS)
            try:
                await self._begin(calls.ALIVE_SECONDS)
            except DaemonUnavailable as again:
                error = again
            else:
                return

    async def _begin(self, patience_seconds: float) -> None:
        """Connect to the daemon and list the kernels of earlier servers. Raises DaemonUnavailable; then it may be called again."""
        try:
            if not self._link.is_open:
                await self._link.open(patience_seconds)
            if not self._starts_clean:
                await self._adoption.adopt_all()
        except DaemonUnavailable:
            raise
        except GpuCkptError as error:
            self._tell(error)
        except Exception:
            self._log.exception("Kernels of an earlier server could not be listed.")
        self._link.settle()
        if self._link.ready:
            self._listeners.server_started()

    def _tell(self, error: GpuCkptError) -> None:
        self._link.notice_given = True
        self._log.warning(
            "Kernels start without jupyter-gpuckpt and cannot be saved: %s %s",
            error.message,
            error.hint,
        )


def _shared_templates(serverapp: ServerApp) -> dict[str, str]:
    """Return the administrator's data directory of each template that kernels may be copies of, as the provisioner is configured."""
    config = serverapp.config.GpuCkptProvisioner
    return dict.fromkeys(config.get("shared_templates", ()), config.get("shared_data_dir", ""))


def _install_gate(serverapp: ServerApp, log: logging.Logger) -> bool:
    """Install the gate in websockets; return whether the configured class allows that."""
    used = serverapp.kernel_websocket_connection_class
    if not issubclass(used, ZMQChannelsWebsocketConnection):
        log.warning(
            "Websockets are served by %s.%s: a cell does not wake a suspended kernel, so automatic suspend is off and idle "
            "kernels are left alone. Explicit suspends and resumes work.",
            used.__module__,
            used.__name__,
        )
        return False
    gated: Any = mixed(GatedConnection, used)
    serverapp.kernel_websocket_connection_class = gated
    serverapp.web_app.settings["kernel_websocket_connection_class"] = gated
    return True
