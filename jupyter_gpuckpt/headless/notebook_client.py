"""nbclient's notebook client for batch runs. It replays the cells so far from the journal, then continues with the notebook."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from jupyter_core.utils import run_sync
from nbclient import NotebookClient

from .journal_reader import Rewound

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from .run_kernel_manager import BatchKernelManager, JournalClient


class OutlivedClient(NotebookClient):
    """A notebook client whose kernel outlives it. Its kernel manager is a `BatchKernelManager`, which the caller ends."""

    async def rewind(self) -> None:
        """Wait until the kernel runs again, and go back to the journal's beginning."""
        await cast("JournalClient", self.kc).rewind()

    async def _async_poll_for_reply(self, msg_id: str, *arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - as the base
        try:
            return await super()._async_poll_for_reply(msg_id, *arguments)
        except BaseException:
            # nbclient leaves these tasks running after exceptions that it does not know.
            for task in arguments[-2:]:
                task.cancel()
            await asyncio.gather(*arguments[-2:], return_exceptions=True)
            raise

    async def _async_cleanup_kernel(self) -> None:
        """Make the client raise `Stopped` at its next check, instead of ending the kernel."""
        cast("BatchKernelManager", self.km).is_stopping = True

    _cleanup_kernel = run_sync(_async_cleanup_kernel)


class BatchClient(OutlivedClient):
    """The notebook client of `jupyter gpuckpt execute` and of jupyter-scheduler's jobs."""

    async def async_execute(self, reset_kc: bool = False, **kwargs: Any) -> NotebookNode:  # noqa: ANN401 - as the base
        """Execute the notebook; start over from the journal whenever the kernel was resumed."""
        while True:
            try:
                return await super().async_execute(reset_kc=reset_kc, **kwargs)
            except Rewound:
                await self.rewind()

    execute = run_sync(async_execute)
