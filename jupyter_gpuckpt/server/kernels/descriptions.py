"""Descriptions of kernels, kept by the daemon, from which the next server lists them unchanged."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..jupyter_internals import known_info
from .notebook_sessions import sessions_of

if TYPE_CHECKING:
    from jupyter_client.manager import KernelManager
    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
    from jupyter_server.services.sessions.sessionmanager import SessionManager

    from ..messages.served_kernel import ServedKernel


class KernelDescriptions:
    """A maker of descriptions of this server's kernels: sessions, output, comms, execution state."""

    def __init__(self, kernels: AsyncMappingKernelManager, sessions: SessionManager) -> None:
        self._kernels, self._sessions = kernels, sessions

    def describe(self, manager: KernelManager, served: ServedKernel | None) -> dict[str, Any]:
        """Return the description of a kernel as it is now; `adoption.py` reads it."""
        rows = sessions_of(self._sessions, manager.kernel_id)
        if served is not None and served.kernel is None:
            served = (
                None  # a fresh kernel is being launched; the last one's description does not apply
            )
        state = getattr(manager, "execution_state", None) or "idle"
        return {
            "sessions": rows,
            "path": rows[0]["path"] if rows else "",
            "root": str(self._kernels.root_dir),
            # The owner at a hub, by which remotes are searched.
            "hub_user": os.environ.get("JUPYTERHUB_USER", ""),
            "server_name": os.environ.get("JUPYTERHUB_SERVER_NAME", ""),
            "kernel_info": known_info(manager),
            "kernel_session": served.output.kernel_session if served else "",
            "output": served.output.description() if served else {},
            "agent": served.has_agent if served else False,
            "comms": served.comms.record() if served else {},
            "execution_state": "busy" if served and served.output.runs_cell else state,
        }
