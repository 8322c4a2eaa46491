"""The extension application: traits, and which part of it is put in place when.

Link phase (before the server's managers exist): the provisioner becomes the default of all kernelspecs. Load phase (they
exist, HTTP is not served yet): the mixins go over the classes that are really used, and kernels of earlier servers are
listed again.
"""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import os
import re
import signal
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar, cast

from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from jupyter_server.services.sessions.sessionmanager import SessionManager

from .. import calls
from ..client import AsyncClient
from ..config import GpuCkptDaemon
from ..errors import DaemonUnavailable, GpuCkptError
from .events.ended_operations import EndedOperations
from .events.kernel_events import KernelEvents
from .events.snapshot_events import SnapshotEvents
from .kernels.adoption import adopt_all
from .kernels.branching import Branching
from .kernels.daemon_link import DaemonLink
from .kernels.kernel_manager import GpuCkptKernels
from .kernels.operations import ServerOperations
from .kernels.reconnecting import Reconnecting
from .kernels.rolling_back import RollingBack
from .kernels.sessions import ReportingSessions
from .messages.gate import GatedConnection
from .messages.probe import AGENT_REQUEST, AGENT_WORD
from .policies.autosave import Autosave
from .policies.gpu_room import RoomMaker
from .policies.parking import IdleParking
from .policies.restart_snapshots import RestartSnapshots
from .policies.shut_downs import ShutDowns
from .policies.waking import Waking
from .rest.kernel_handlers import PREFIX, ROUTES
from .traits import ServerTraits
from .views import kernel_view

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp

    from ..protocol import HostReport, Kernel

PROVISIONER = "gpuckpt-provisioner"
_Part = TypeVar("_Part")
_PROVISIONERS = "jupyter_client.kernel_provisioners"
_DEFAULT_PROVISIONER_ENV = "JUPYTER_DEFAULT_PROVISIONER_NAME"


class GpuCkptServer(ServerTraits, ExtensionApp):
    """Save, suspend and resume for the kernels of this server."""

    name = "jupyter_gpuckpt"
    #: One file for the extension, the provisioner and the command line.
    config_file_name = "jupyter_gpuckpt_config"
    extension_url = "/"
    classes = [GpuCkptDaemon]  # noqa: RUF012 - traitlets' own declaration

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._link: DaemonLink | None = None
        self._operations: ServerOperations | None = None
        self._shut_downs: ShutDowns | None = None
        self._branching: Branching | None = None
        self._rolling_back: RollingBack | None = None
        self._events: KernelEvents | None = None
        self._autosave: Autosave | None = None

    # ---- what handlers ask -------------------------------------------------------------------------------------------

    @property
    def operations(self) -> ServerOperations:
        """The operations; raises DaemonUnavailable where kernels run elsewhere."""
        return _installed(self._operations)

    @property
    def shut_downs(self) -> ShutDowns:
        """The kernels that were shut down a moment ago; raises DaemonUnavailable where kernels run elsewhere."""
        return _installed(self._shut_downs)

    @property
    def branching(self) -> Branching:
        """Makes branches; raises DaemonUnavailable where kernels run elsewhere."""
        return _installed(self._branching)

    @property
    def rolling_back(self) -> RollingBack:
        """Goes back to older snapshots; raises DaemonUnavailable where kernels run elsewhere."""
        return _installed(self._rolling_back)

    @property
    def daemon(self) -> AsyncClient:
        """The client; raises what keeps the daemon away."""
        return self._connected_link.daemon

    @property
    def _connected_link(self) -> DaemonLink:
        if self._link is None:
            raise DaemonUnavailable("This server has no connection to the daemon.")
        return self._link

    @property
    def _server(self) -> ServerApp:
        if self.serverapp is None:
            raise RuntimeError("The extension is not linked to a server yet.")
        return self.serverapp

    def kernel_ids(self) -> list[str]:
        """The kernels of this server."""
        return list(self._server.kernel_manager.list_kernel_ids())

    def view(self, kernel_id: str) -> dict[str, Any]:
        """A kernel as pages see it."""
        kernels = cast("GpuCkptKernels", self._server.kernel_manager)
        return kernel_view(kernel_id, kernels, self._server.session_manager, self._operations)

    async def kept_elsewhere(self) -> list[Kernel]:
        """The kernels of notebooks below this server's folder that belong to another server which has not ended."""
        if self._link is None or not self._link.ready:
            return []
        try:
            return await self._link.kept_elsewhere()
        except GpuCkptError as error:
            self.log.debug("kernels of other servers are not known: %s", error)
            return []

    async def report(self) -> HostReport:
        """What this machine can do; asked of a daemon of its own making where the link is down."""
        if self._link is not None and self._link.ready:
            return await self._link.daemon.send(calls.host())
        client = await AsyncClient.connect(GpuCkptDaemon(parent=self).settings())
        try:
            return await client.send(calls.host())
        finally:
            await client.close()

    # ---- phases ------------------------------------------------------------------------------------------------------

    def _link_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        super()._link_jupyter_server_extension(serverapp)
        self._make_default(serverapp)

    def initialize_handlers(self) -> None:
        """The routes, and with them everything that needs the server's managers."""
        self.handlers.extend((_pattern(route), handler) for route, handler in ROUTES.items())
        if self._server.event_logger is not None:
            self._events = KernelEvents(self._server.event_logger)
        if not isinstance(self._server.kernel_manager, AsyncMappingKernelManager):
            self.log.warning("This kernel manager is not supported: kernels cannot be saved.")
        elif not self._server.gateway_config.gateway_enabled:
            self._install(self._server)

    def initialize(self) -> None:  # type: ignore[override] # as ExtensionApp
        """Load the extension."""
        super().initialize()
        if self._link is None:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._install_signals(self._server)
            # The loop exists but does not run yet: nobody can ask for sessions before they are back.
            self._server.io_loop.run_sync(self._bring_back)
        else:
            # A server inside somebody else's program (a test, say), whose signals are not ours.
            self.operations.spawn(self._bring_back())

    def _start_parking(self) -> None:
        if self.park_after and self._operations is not None:
            kernels = cast("Any", self._server.kernel_manager)
            idle = IdleParking(
                kernels, self._operations, after_seconds=self.park_after, log=self.log
            )
            self._operations.spawn(idle.run())

    async def stop_extension(self) -> None:
        """The server stops; its kernels are suspended next (`kernel_manager.py`)."""
        if self._autosave is not None:
            await self._autosave.close()

    def current_activity(self) -> None:
        """Nothing of its own: kernels are counted by the kernel manager."""
        return

    def _make_default(self, serverapp: ServerApp) -> None:
        """Make the provisioner the default, unless somebody chose one."""
        config = serverapp.config.KernelProvisionerFactory
        if not self.use_for_all_kernels or "default_provisioner_name" in config:
            return
        if os.environ.get(_DEFAULT_PROVISIONER_ENV):
            return
        if not metadata.entry_points(group=_PROVISIONERS, name=PROVISIONER):
            # With a default that does not exist, Jupyter would list no kernel at all.
            self.log.warning("%s is not installed: kernels cannot be saved.", PROVISIONER)
            return
        config.default_provisioner_name = PROVISIONER
        if KernelProvisionerFactory.initialized():
            factory = KernelProvisionerFactory.instance()
            factory.default_provisioner_name = PROVISIONER

    def _install(self, serverapp: ServerApp) -> None:
        """Put the mixins over the final classes: other extensions replace them in their link phase."""
        kernels: Any = serverapp.kernel_manager
        sessions: Any = serverapp.session_manager
        link = DaemonLink(
            GpuCkptDaemon(parent=self).settings(),
            root_dir=str(kernels.root_dir),
            jupyter_runtime_dir=serverapp.runtime_dir,
            allowed=self.allowed_kernelspecs,
            excluded=self.excluded_kernelspecs,
            kept_output_bytes=self.kept_output_bytes,
            log=self.log,
        )
        operations = ServerOperations(
            link, kernels, sessions, reconnect_timeout=self.reconnect_timeout, log=self.log
        )
        operations.trims = self.trim
        operations.room = RoomMaker(
            link, kernels, operations, wait_seconds=self.gpu_wait, log=self.log
        )
        ended = EndedOperations(serverapp.event_logger, self.log)
        ended.count(lambda: [served.state for served in list(link.served.values())])
        link.describe, link.on_change = operations.description, self._on_change
        link.on_news = ended.hear
        link.on_snapshot = SnapshotEvents(serverapp.event_logger).tell
        link.wake, link.on_suspended = Waking(operations, self.log).wake, operations.note_suspended
        reconnecting = Reconnecting(
            kernels,
            sessions,
            operations.peer_access,
            timeout_seconds=self.reconnect_timeout,
            renewed_variables=self.renewed_variables,
            log=self.log,
        )
        link.begin, link.reconnect = reconnecting.begin, reconnecting.reconnect
        link.retention = GpuCkptDaemon(parent=self).retention()
        kernels.gpuckpt_owner, kernels.gpuckpt_operations = link, operations
        kernels.gpuckpt_kernelspecs, kernels._gpuckpt_stop = {}, None
        kernels.gpuckpt_stop_seconds = self.stop_timeout or None
        self._shut_downs = kernels.gpuckpt_shut_downs = ShutDowns(
            link,
            kernels,
            sessions,
            undo_seconds=self.undo_shutdown_for,
            log=self.log,
        )
        self._branching = Branching(
            link, kernels, sessions, serverapp.contents_manager, operations, self.log
        )
        self._rolling_back = RollingBack(link, operations, self.log)
        kernels.gpuckpt_restart_snapshots = RestartSnapshots(
            link, operations, within_seconds=self.undo_restart_within, log=self.log
        )
        # Talk with the agent says nothing about whether a cell runs.
        kernels.untracked_message_types = [
            *kernels.untracked_message_types,
            AGENT_REQUEST,
            AGENT_WORD,
        ]
        kernels.__class__ = _mixed(GpuCkptKernels, type(kernels))
        if issubclass(type(sessions), SessionManager):
            sessions.__class__ = _mixed(ReportingSessions, type(sessions))
            sessions.gpuckpt_report = operations.report
        kernels.gpuckpt_suspends_idle = self._install_connection(serverapp)
        self._link, self._operations = link, operations
        if self.autosave_interval:
            self._autosave = Autosave(
                operations,
                self.kernel_ids,
                interval_seconds=self.autosave_interval,
                rest=self.autosave_rest,
                log=self.log,
            )
            operations.give_way = self._autosave.give_way

    def _install_connection(self, serverapp: ServerApp) -> bool:
        """Put the gate into websockets; whether that can be done."""
        used = serverapp.kernel_websocket_connection_class
        if not issubclass(used, ZMQChannelsWebsocketConnection):
            self.log.warning(
                "Websockets are served by %s.%s: a cell does not wake a suspended kernel, so automatic suspend is off and idle "
                "kernels are left alone. Suspend and resume by hand work.",
                used.__module__,
                used.__name__,
            )
            return False
        gated: Any = _mixed(GatedConnection, used)
        serverapp.kernel_websocket_connection_class = gated
        serverapp.web_app.settings["kernel_websocket_connection_class"] = gated
        return True

    def _install_signals(self, serverapp: ServerApp) -> None:
        """Stop in order for SIGINT and SIGHUP too, where nobody handles them, and let no signal be lost.

        Jupyter handles SIGINT only with a terminal; without one, or when the terminal goes, the server would end without
        its cleanup and with it the chance to suspend. JupyterHub's local spawner sends SIGINT. And Jupyter's own handler
        logs first: in the middle of another log line that raises, and the server never stops. The loop calls it at a
        better moment.
        """
        replaced = {signal.default_int_handler, signal.SIG_DFL, serverapp._signal_stop}
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) in replaced:
                loop = serverapp.io_loop.asyncio_loop  # type: ignore[attr-defined] # tornado's only kind
                loop.add_signal_handler(number, serverapp._signal_stop, number, None)

    async def _bring_back(self) -> None:
        """Connect to the daemon and list what earlier servers left. The server starts whatever happens here."""
        try:
            await self._connected_link.open()
            await self._adopt()
            self._start_parking()
        except GpuCkptError as error:
            self._connected_link.notice_given = True
            self.log.warning(
                "Kernels start without jupyter-gpuckpt and cannot be saved: %s %s",
                error.message,
                error.hint,
            )
        except Exception:
            self.log.exception("Kernels of an earlier server could not be listed.")
        if self._autosave is not None and self._connected_link.ready:
            self._autosave.start()

    async def _adopt(self) -> None:
        kernels = cast("GpuCkptKernels", self._server.kernel_manager)
        sessions = self._server.session_manager
        await adopt_all(
            self._connected_link,
            kernels,
            sessions,
            self.operations,
            self.log,
            resume_busy=self.resume_busy,
        )

    def _on_change(self, kernel_id: str) -> None:
        if self._events is None:
            return
        if kernel_id in self.kernel_ids():
            self._events.tell(self.view(kernel_id))
        else:
            self._events.forget(kernel_id)


def _installed(part: _Part | None) -> _Part:
    if part is None:
        raise DaemonUnavailable(
            "The kernels of this server do not run under jupyter-gpuckpt.",
            hint="Kernels behind a gateway cannot be saved, nor those of a kernel manager without asyncio.",
        )
    return part


def _mixed(mixin: type, used: type) -> type:
    """`used` with `mixin` before it."""
    return type(f"GpuCkpt{used.__name__}", (mixin, used), {"__doc__": used.__doc__})


def _pattern(route: str) -> str:
    """`/kernels/{kernel_id}` as tornado wants it."""
    return PREFIX + re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route)
