"""Saves before the cells of AI agents, so that each of them can be taken back."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ...errors import GpuCkptError
from ...wire.manifest_records import Cause
from ...wire.states import KernelState
from ...wire.tool_branches import is_tool_branch
from ..kernels.kernel_listener import KernelListener
from ..messages.served_kernel import is_past_freeze

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from ..kernels.kernel_operations import ServerOperations
    from ..messages.served_kernel import ServedKernel

#: The user name by which this package's own tools run code.
OWN_TOOLS = "gpuckpt-tool"
#: How long a wait for news of a save lasts at most.
_LOOK_SECONDS = 1.0


class AgentSaves(KernelListener):
    """A policy that saves a changed kernel before a cell of an agent; the cell waits until the kernel has been frozen.

    `clients`: patterns of the user names and programs of agents' clients, besides this package's tools. A branch that a tool made is not
    saved: it comes from a snapshot, and the tool can make it again. A failed save does not keep a cell from running.
    """

    def __init__(
        self, operations: ServerOperations, clients: Sequence[str], log: logging.Logger
    ) -> None:
        self._operations, self._log = operations, log
        self._clients = (OWN_TOOLS, *clients)

    def cell_sent(self, served: ServedKernel, client: tuple[str, str]) -> None:
        """Save the kernel first if an agent sent the cell and the kernel has changed since its last snapshot."""
        name = served.kernel.name if served.kernel else ""
        is_agent = any(
            fnmatchcase(one, pattern) for one in client for pattern in self._clients if one
        )
        if (
            is_agent
            and served.state is KernelState.RUNNING
            and served.gate_is_open
            and served.changed
            and not is_tool_branch(name)
        ):
            self._operations.spawn(self._save(served, served.save_first()))

    async def _save(self, served: ServedKernel, end: Callable[[], None]) -> None:
        try:
            operation = await self._operations.save(served.kernel_id, cause=Cause.TOOL)
            tracked = self._operations.tracked
            while not operation.is_over and not is_past_freeze(operation):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await served.change()
                operation = tracked.latest(operation.operation_id)
            if operation.error is not None:
                self._log.warning(
                    "kernel %s was not saved before a cell of an agent: %s",
                    served.kernel_id,
                    operation.error.message,
                )
        except GpuCkptError as error:
            self._log.warning(
                "kernel %s was not saved before a cell of an agent: %s",
                served.kernel_id,
                error.message,
            )
        finally:
            end()
