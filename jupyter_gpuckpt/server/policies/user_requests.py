"""Requests of user code in kernels: the magic `%gpuckpt` (`jupyter_gpuckpt/client/magics.py`), which the kernel's agent passes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ...errors import ConfigurationError, GpuCkptError
from ..kernels import agent_calls
from ..kernels.kernel_listener import KernelListener
from ..kernels.notebook_sessions import manager_of

if TYPE_CHECKING:
    import logging

    from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

    from ...wire.protocol import Result
    from ..kernels.branching import Branching
    from ..kernels.kernel_list import KernelList
    from ..kernels.kernel_operations import ServerOperations

#: How long a suspend waits for the end of the cell that asked for it.
_CELL_SECONDS = 60.0
_PAUSE = 0.05


class UserRequests(KernelListener):
    """The answers to requests of user code. Each concerns the kernel that sent it; only the list has others."""

    def __init__(
        self,
        kernels: AsyncMappingKernelManager,
        listed: KernelList,
        operations: ServerOperations,
        branching: Branching,
        log: logging.Logger,
    ) -> None:
        self._kernels, self._listed = kernels, listed
        self._operations, self._branching, self._log = operations, branching, log

    def user_asked(self, kernel_id: str, content: dict[str, Any]) -> None:
        """Answer a request; what takes time is done in the background."""
        request_id, verb = content.get("id"), content.get("what")
        argument = content.get("argument")
        known = isinstance(request_id, str) and isinstance(argument, str)
        if known and verb in {"save", "sessions", "suspend", "branch"}:
            answer = self._answer(
                kernel_id, str(request_id), verb, str(argument), content.get("client")
            )
            self._operations.spawn(answer)

    async def _answer(
        self, kernel_id: str, request_id: str, verb: str, argument: str, client: object
    ) -> None:
        manager = manager_of(self._kernels, kernel_id)
        await agent_calls.answer(manager, request_id, "")
        try:
            if verb == "suspend":
                pages = self._operations.served(kernel_id).connections
                # A client that is connected to the kernel itself, such as jupyter console, sends its cells past the server.
                resumes = any(page.client_session == client for page in pages)
                how = (
                    "; the next cell resumes it."
                    if resumes
                    else ". No cell of this client resumes it: use Resume in JupyterLab, or run"
                    f" `jupyter gpuckpt resume {kernel_id}`."
                )
                text = f"The kernel is suspended when this cell has ended{how}"
                await agent_calls.answer(manager, request_id, text)
                await self._suspend(kernel_id, argument)
                return
            text = await self._done(kernel_id, verb, argument)
        except GpuCkptError as error:
            text = f"{error.message} {error.hint}".strip()
        await agent_calls.answer(manager, request_id, text)

    async def _done(self, kernel_id: str, verb: str, argument: str) -> str:
        if verb == "sessions":
            return await self._list(kernel_id)
        if verb == "save":
            result = await self._saved(kernel_id, argument)
            return f"Saved as snapshot {result.snapshot_id}; paused {result.frozen_seconds:.2f} s."
        snapshot_id = await self._snapshot(kernel_id, argument)
        branch = await self._branching.branch(snapshot_id)
        await self._operations.tracked.result(branch.operation)
        return f"Kernel {branch.operation.kernel_id} runs beside this one, with the notebook {branch.path}."

    async def _suspend(self, kernel_id: str, title: str) -> None:
        """Suspend a kernel when its cell has ended, so that its page is not left with a running one."""
        served = self._operations.served(kernel_id)
        deadline = asyncio.get_running_loop().time() + _CELL_SECONDS
        while served.output.runs_cell:
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(_PAUSE)
        try:
            operation = await self._operations.suspend(kernel_id, title)
            await self._operations.tracked.result(operation)
        except GpuCkptError as error:
            self._log.warning("Kernel %s was not suspended: %s", kernel_id, error.message)

    async def _saved(self, kernel_id: str, title: str) -> Result:
        operation = await self._operations.save(kernel_id, title)
        return await self._operations.tracked.result(operation)

    async def _snapshot(self, kernel_id: str, prefix: str) -> str:
        """Return the snapshot whose id begins with `prefix`, else a new one of the kernel."""
        if not prefix:
            return (await self._saved(kernel_id, "")).snapshot_id
        found = [
            one.snapshot_id
            for one in await self._operations.snapshots()
            if one.snapshot_id.startswith(prefix)
        ]
        if len(found) != 1:
            raise ConfigurationError(
                f"{len(found)} snapshots have an id that begins with {prefix!r}.",
                hint="`%gpuckpt sessions` lists those of this kernel.",
            )
        return found[0]

    async def _list(self, kernel_id: str) -> str:
        lines = []
        for one in self._listed.ids():
            view = self._listed.view(one)
            here = "  (this one)" if one == kernel_id else ""
            lines.append(f"{one}  {view.state:<10} {view.path}{here}")
        lines += [
            f"    snapshot {snapshot.snapshot_id}  {snapshot.heading}".rstrip()
            for snapshot in await self._operations.snapshots()
            if snapshot.kernel_id == kernel_id
        ]
        return "\n".join(lines)
