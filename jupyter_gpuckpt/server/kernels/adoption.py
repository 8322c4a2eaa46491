"""Adoption of the kernels of earlier servers, under the same kernel and session ids, before the first request is served."""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ...errors import GpuCkptError
from ...wire.manager_secrets import joined
from ...wire.manifest_records import Cause
from ..jupyter_internals import expect_info, set_known_info
from ..messages.comms import SavedComms
from ..messages.probe import kernel_info, learn_info
from . import agent_calls
from .notebook_sessions import (
    environment_of,
    forget_sessions,
    list_sessions,
    manager_of,
    moved_rows,
)

if TYPE_CHECKING:
    import logging

    from jupyter_server.services.kernels.kernelmanager import ServerKernelManager
    from jupyter_server.services.sessions.sessionmanager import SessionManager

    from ...wire.protocol import Kernel, SuspendedKernel
    from ..messages.served_kernel import ServedKernel
    from .daemon_link import DaemonLink
    from .kernel_manager import GpuCkptKernels
    from .kernel_operations import ServerOperations
    from .reconnector import Reconnector

#: How long to wait for the shell's reply: a kernel that runs a cell replies when the cell has ended.
_ANSWER_SECONDS = 60.0
#: The interval and the total time in which a new server asks again for kernels of a server that had not ended yet.
_CLAIM_EVERY_SECONDS, _CLAIM_FOR_SECONDS = 2.0, 300.0
#: Causes of suspends at a server's stop: a cell that ran then continues without a request.
STOPPED_WITH_THE_SERVER = frozenset({Cause.SHUTDOWN, Cause.RECLAIM})


class Adoption:
    """The adopter of kernels that earlier servers left with the daemon: it lists them again.

    `resume_busy`: those that were running a cell when their server stopped are resumed.
    """

    def __init__(
        self,
        link: DaemonLink,
        kernels: GpuCkptKernels,
        sessions: SessionManager,
        operations: ServerOperations,
        reconnector: Reconnector,
        *,
        resume_busy: bool,
        log: logging.Logger,
    ) -> None:
        self._link, self._kernels, self._sessions = link, kernels, sessions
        self._operations, self._reconnector = operations, reconnector
        self._resume_busy, self._log = resume_busy, log

    async def adopt_all(self) -> None:
        """List the kernels that earlier servers left; those of a server that is still stopping follow when it releases them."""
        kept_elsewhere = await self._claim()
        for kernel in kept_elsewhere:
            self._log.warning(
                "Kernel %s (%s, %s) is a session of another server that has not ended; it is listed here if that one ends soon.",
                kernel.kernel_id,
                kernel.name or "no notebook",
                kernel.state,
            )
        if kept_elsewhere:
            self._operations.spawn(self._claim_again())

    async def adopted_for(self, path: str) -> str:
        """List the kernel that an editor's relay has left for a notebook since this server started; return its id, else empty.

        Raises DaemonUnavailable if the notebook may have a kernel that cannot be listed now.
        """
        root = str(self._kernels.root_dir)
        await self._link.require_no_kernel(path, root)
        kernel_id = await self._link.left_kernel(path, root)
        if not kernel_id or kernel_id in self._kernels:
            return ""
        try:
            for saved in await self._link.claim(kernel_id):
                await self.adopt(saved, resume_busy=False)
                # The session that is being created is its only one.
                forget_sessions(self._sessions, kernel_id)
                self._log.info("Kernel %s was left for %s", kernel_id, path)
                return kernel_id
        except Exception:
            self._log.exception("Kernel %s, left for %s, could not be listed.", kernel_id, path)
        return ""

    async def adopt(self, saved: SuspendedKernel, *, resume_busy: bool) -> None:
        """List a claimed kernel again, with its sessions."""
        link, kernels = self._link, self._kernels
        kernel_id, kept = saved.kernel.kernel_id, joined(saved.jupyter, saved.secrets)
        kernels.gpuckpt_kernelspecs[kernel_id] = kept["kernelspec"]
        rows = moved_rows(
            kept.get("sessions", []), saved_root=kept.get("root", ""), root=str(kernels.root_dir)
        )
        # The environment is used by a later restart, which starts a kernel of this server.
        await kernels.start_kernel(
            kernel_id=kernel_id,
            kernel_name=kept["kernel_name"],
            cwd=saved.cwd,
            env=environment_of(kernels, rows),
        )
        list_sessions(self._sessions, rows)
        manager, served = manager_of(kernels, kernel_id), link.served[kernel_id]
        served.output.kernel_session = kept.get("kernel_session", "")
        recovered = None
        if served.absent:
            served.output.load(kept.get("output", {}))
        else:
            recovered = served.output.recover()
        served.has_agent = kept.get("agent", False)
        served.comms = SavedComms.from_record(kept.get("comms"))
        if kept.get("kernel_info"):
            set_known_info(manager, kept["kernel_info"])
        elif not served.absent:
            self._operations.spawn(learn_info(manager, expect_info(manager)))
        if served.absent:
            manager.execution_state = kept.get("execution_state") or "idle"
            if manager.execution_state == "busy":
                self._expect_asker(manager, served)
                if resume_busy and saved.cause in STOPPED_WITH_THE_SERVER:
                    served.wake()
        else:
            # Until it has answered it counts as busy, so that a computation is not culled.
            manager.execution_state = "busy"
            # It may have changed while no server was connected.
            served.output.changes += 1
            self._operations.spawn(_learn_state(manager))
            served.peer_access_is_off = served.has_agent and served.is_parked
            # The last server may have died while the agent buffered the kernel's output.
            self._operations.spawn(self._connect(manager, served, recovered))
            if recovered is not None:
                self._expect_asker(manager, served)
        link.catch_up(kernel_id)

    async def _claim(self) -> list[Kernel]:
        """List the kernels that no server owns; return those that another server has not released.

        A kernel that cannot be listed does not prevent the others.
        """
        for saved in await self._link.claim():
            try:
                await self.adopt(saved, resume_busy=self._resume_busy)
            except Exception:
                self._log.exception("Kernel %s could not be listed again.", saved.kernel.kernel_id)
            else:
                self._log.info("Kernel %s is back: %s", saved.kernel.kernel_id, saved.kernel.state)
        return await self._link.kept_elsewhere()

    async def _claim_again(self) -> None:
        deadline = asyncio.get_running_loop().time() + _CLAIM_FOR_SECONDS
        left = True
        while left and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_CLAIM_EVERY_SECONDS)
            try:
                left = bool(await self._claim())
            except GpuCkptError as error:
                self._log.debug("kernels of another server were not claimed: %s", error)

    async def _connect(
        self,
        manager: ServerKernelManager,
        served: ServedKernel,
        recovered: tuple[str, list[str]] | None,
    ) -> None:
        """Connect to a kernel whose server was killed, and ask it for the messages since then."""
        missed, complete = list[list[bytes]](), True
        try:
            if (
                not served.has_agent
            ):  # the agent may have been installed after that server's last record
                served.has_agent = await agent_calls.state(manager) is not None
            await self._reconnector.reconnect(served)
            if recovered is not None and served.has_agent:
                missed, complete = await agent_calls.messages_after(manager, *recovered)
        finally:
            if recovered is not None:
                served.output.add_missed(missed, complete=complete)

    def _expect_asker(self, manager: ServerKernelManager, served: ServedKernel) -> None:
        """Buffer the kernel's replies to the page that runs the cell, until it connects again under its session id."""
        client_session = served.output.asked_by
        if not client_session:
            return
        channels: dict[str, Any] = {"iopub": manager.connect_iopub()}
        identity = served.routing_id(client_session)
        for name in ("shell", "control", "stdin"):
            channels[name] = getattr(manager, f"connect_{name}")(identity=identity)
        for name, stream in channels.items():
            stream.channel = name
        kernel_id = served.kernel_id
        self._kernels.start_buffering(kernel_id, f"{kernel_id}:{client_session}", channels)


async def _learn_state(manager: ServerKernelManager) -> None:
    if await kernel_info(manager, "shell", _ANSWER_SECONDS):
        manager.execution_state = "idle"
