"""Connecting the server to a kernel after its launch and after a resume, before any page and while the gate is shut."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...wire.states import KernelState
from ..jupyter_internals import buffered
from ..messages import routing_ids
from ..messages.probe import wait_until_connected
from . import agent_calls
from .notebook_sessions import environment_of, manager_of, sessions_of

if TYPE_CHECKING:
    import logging

    from jupyter_server.services.kernels.kernelmanager import (
        AsyncMappingKernelManager,
    )
    from jupyter_server.services.sessions.sessionmanager import SessionManager

    from ..messages.served_kernel import ServedKernel
    from .peer_access_hold import PeerAccessSwitch

#: The most seconds that a resume waits for the kernel to answer and for the server to receive its output again; then it counts as done.
RECONNECT_SECONDS = 20.0
#: The time after which a new kernel that has not answered gets no agent.
_BEGIN_SECONDS = 60.0


class Reconnector:
    """A connector of this server to launched and resumed kernels; it also installs the agent in new ones."""

    def __init__(
        self,
        kernels: AsyncMappingKernelManager,
        sessions: SessionManager,
        peer_access: PeerAccessSwitch,
        *,
        renewed_variables: Sequence[str],
        log: logging.Logger,
    ) -> None:
        self._kernels, self._sessions = kernels, sessions
        self._peer_access = peer_access
        self._renewed_variables = renewed_variables
        self._log = log

    def begin(self, served: ServedKernel) -> None:
        """Install the agent in a new kernel before its first cell; requests are held meanwhile."""
        release = served.hold()

        async def install() -> None:
            try:
                async with asyncio.timeout(_BEGIN_SECONDS):
                    # The manager is listed only after the launch, which is still in progress, has returned.
                    while served.kernel_id not in self._kernels:  # noqa: ASYNC110 - there is no notification
                        await asyncio.sleep(0.01)
                    manager = manager_of(self._kernels, served.kernel_id)
                    served.has_agent = await agent_calls.install(manager)
                    await wait_until_connected(manager, served, RECONNECT_SECONDS)
            except TimeoutError:
                self._log.debug("kernel %s was never listed", served.kernel_id)
            finally:
                release()

        served.spawn(install())

    async def reconnect(self, served: ServedKernel) -> None:
        """Connect to a kernel after a resume, then make it publish its buffered output."""
        try:
            await self._reconnect(served)
        finally:
            if served.output.lacks_beginning:
                served.output.add_beginning([])  # the kernel did not send it

    async def _reconnect(self, served: ServedKernel) -> None:
        if served.kernel_id not in self._kernels:
            return  # it is being listed and has no page yet
        if served.state is KernelState.RUNNING and served.peer_access_is_off:
            await self._peer_access.switch_on(served)  # it was unparked
            return
        manager = manager_of(self._kernels, served.kernel_id)
        # The culler counts from the last message; a kernel that was just resumed is not idle since then.
        manager.last_activity = datetime.now(UTC)
        # An agent is only in ipykernel, and a cell that runs is answered under the routing id of its request.
        is_busy = manager.execution_state == "busy" or served.output.runs_cell
        if served.is_reconnecting and not served.has_agent and not is_busy:
            served.renew_routing_ids()
            if left := buffered(self._kernels, served.kernel_id):
                client_session = left["session_key"].partition(":")[2]
                routing_ids.renew(left["channels"], served.routing_id(client_session))
        if not await wait_until_connected(manager, served, RECONNECT_SECONDS):
            self._log.warning(
                "kernel %s: not connected again within %s s; output may be missing",
                served.kernel_id,
                RECONNECT_SECONDS,
            )
        if not served.has_agent:
            return
        rows = sessions_of(self._sessions, served.kernel_id)
        moved = served.kernel.moved_ports if served.kernel else {}
        parked = served.is_parked
        await agent_calls.resumed(
            manager,
            environment_of(self._kernels, rows),
            moved,
            renewed=self._renewed_variables,
            branched=served.is_new_branch,
            gpu_is_back=not parked,
        )
        served.is_new_branch, served.peer_access_is_off = False, parked
        if not await agent_calls.flush(manager):
            self._log.warning(
                "kernel %s does not answer; it publishes its buffered output by itself",
                served.kernel_id,
            )
        if served.output.lacks_beginning:
            messages, _ = await agent_calls.messages_after(manager, "", [])
            served.output.add_beginning(messages)
        await agent_calls.call_on_resume(manager)
