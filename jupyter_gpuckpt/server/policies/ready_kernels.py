"""Ready copies of templates' kernels: this server tells the daemon which it wants, and again when a template has changed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ...client import templates
from ...errors import GpuCkptError
from ...wire import calls
from ...wire.protocol import WantedCopies
from ..kernels.kernel_listener import KernelListener

if TYPE_CHECKING:
    import logging

    from ..kernels.daemon_link import DaemonLink
    from ..kernels.kernel_operations import ServerOperations

#: The interval of looks at the templates.
_LOOK_SECONDS = 5.0


class ReadyKernels(KernelListener):
    """A timer that tells the daemon which copies to keep ready.

    `counts`: how many of each template. `shared`: the administrator's data directory, by template.
    """

    def __init__(
        self,
        link: DaemonLink,
        operations: ServerOperations,
        *,
        counts: Mapping[str, int],
        shared: Mapping[str, str],
        log: logging.Logger,
    ) -> None:
        self._link, self._operations, self._log = link, operations, log
        self._counts, self._shared = counts, shared

    def server_started(self) -> None:
        """Start telling the daemon which copies to keep ready, until the server stops."""
        self._operations.spawn(self._run())

    async def _run(self) -> None:
        # It is told again each time: a daemon that was started anew knows nothing of it.
        while not self._operations.stopping:
            wanted = await asyncio.to_thread(self._wanted)
            try:
                await self._link.daemon.send(calls.ready(self._link.owner_id, wanted))
            except GpuCkptError as error:
                self._log.debug("no kernels are made ready: %s", error)
            await asyncio.sleep(_LOOK_SECONDS)

    def _wanted(self) -> list[WantedCopies]:
        found, visible = list[WantedCopies](), os.environ.get("CUDA_VISIBLE_DEVICES", "")
        for name, count in self._counts.items():
            with suppress(
                GpuCkptError
            ):  # there is none, or it cannot be read; a start of such a kernel says so
                folder = templates.found(self._link.settings.data, name, self._shared.get(name, ""))
                template = folder.get()
                is_stale = templates.staleness(template, folder.cells(template))
                if count and template.cache is not None and not is_stale:
                    snapshot_id = template.cache.snapshot_id
                    found.append(WantedCopies(snapshot_id, count, folder.store, visible))
        return found
