"""The extension application: the parts that it installs in each phase of the server's start.

Link phase (before the server's managers exist): the provisioner becomes the default of all kernelspecs. Load phase (they
exist, HTTP is not served yet): the service is built over the classes that are actually used, since other extensions replace them
in their link phase, and kernels of earlier servers are listed again.
"""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

from ..client.daemon_traits import GpuCkptDaemon
from ..linux.disk_reserve import room_beside
from .jupyter_internals import stop_on_signals
from .kernels.kernel_list import KernelList
from .rest.routes import tornado_routes
from .rest.suspended_apps import suspended_app_rule
from .service import Service
from .traits import CLEAN_START_ENV, ServerTraits

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp

PROVISIONER = "gpuckpt-provisioner"
_PROVISIONERS = "jupyter_client.kernel_provisioners"
_DEFAULT_PROVISIONER_ENV = "JUPYTER_DEFAULT_PROVISIONER_NAME"


class GpuCkptServer(ServerTraits, ExtensionApp):
    """The server extension that saves, suspends and resumes the kernels of this server."""

    name = "jupyter_gpuckpt"
    #: The name of the configuration file that the extension, the provisioner and the command line share.
    config_file_name = "jupyter_gpuckpt_config"
    extension_url = "/"
    classes = [GpuCkptDaemon]  # noqa: RUF012 - traitlets' own declaration

    #: The service; None before the load phase, and if no kernel can run under the engine.
    _service: Service | None = None

    def _link_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        super()._link_jupyter_server_extension(serverapp)
        self._make_default(serverapp)

    def initialize_handlers(self) -> None:
        """Build the service and add the routes: the server's managers exist now."""
        serverapp = cast("ServerApp", self.serverapp)
        config = GpuCkptDaemon(parent=self)
        if not isinstance(serverapp.kernel_manager, AsyncMappingKernelManager):
            self.log.warning("This kernel manager is not supported: kernels cannot be saved.")
        elif not serverapp.gateway_config.gateway_enabled:
            self._service = Service(serverapp, self, config, self.log)
        # The choice is for this server alone, not for servers that its user starts in a terminal or a kernel.
        os.environ.pop(CLEAN_START_ENV, None)
        if self._service is not None:
            kernels, parts = self._service.kernels, self._service.parts
            # Before the routes of proxies, in whatever order extensions are loaded.
            rule = suspended_app_rule(serverapp.base_url, parts.link.served)
            serverapp.web_app.default_router.rules.insert(0, rule)
        else:
            managers: Any = serverapp
            kernels = KernelList(
                managers.kernel_manager, managers.session_manager, {}, None, cells_resume=False
            )
            parts = None
        self.handlers.extend(tornado_routes(kernels, parts, config.settings()))

    def initialize(self) -> None:  # type: ignore[override] # as ExtensionApp
        """Load the extension."""
        super().initialize()
        serverapp = cast("ServerApp", self.serverapp)
        if self._service is None:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            stop_on_signals(serverapp)
            # The event loop does not run yet: no client can request sessions before they are listed again.
            serverapp.io_loop.run_sync(self._service.start)
            self._make_room(serverapp)
        else:
            # A server inside another program (a test, for instance), which handles its own signals.
            self._service.spawn(self._service.start())

    def _make_room(self, serverapp: ServerApp) -> None:
        """Have room on a full disk for the files that Jupyter writes before its event loop runs."""
        data = GpuCkptDaemon(parent=self).settings().data
        room = room_beside(data, Path(serverapp.runtime_dir, "file"))
        room.__enter__()
        serverapp.io_loop.add_callback(room.__exit__, None, None, None)

    def current_activity(self) -> None:
        """Return None: the extension has no activity besides that of the kernels, which the kernel manager counts."""
        return

    def _make_default(self, serverapp: ServerApp) -> None:
        """Make the provisioner the default, unless the configuration names one."""
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
