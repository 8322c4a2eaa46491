"""Kernels without a server, by `ToolSessions`: those of scripts and consoles, and branches of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from ..client.cell_output import CellOutput
from ..errors import ConfigurationError, GpuCkptError
from ..sessions import ToolSessions
from ..wire.protocol import FilesChoice, Kernel, Operation, Result
from ..wire.variable_changes import Comparison
from .backing import Done, SavedState, Session, done, saved_state
from .tool_progress import tell


class _Canceled(Exception):  # noqa: N818 - it is no error of anything
    """The call of the tool was canceled."""


class DaemonBacking:
    """The kernels of this user that no Jupyter server has."""

    name, is_server = "this user's daemon", False

    def __init__(self, sessions: ToolSessions) -> None:
        self._sessions = sessions

    @classmethod
    async def connect(cls) -> Self:
        """Connect to the daemon, which is started if it does not run."""
        return cls(await asyncio.to_thread(ToolSessions))

    async def sessions(self) -> list[Session]:
        """List the kernels."""
        return list(map(_session, await asyncio.to_thread(self._sessions.list)))

    async def snapshots(self) -> list[SavedState]:
        """List all snapshots, newest first."""
        found = await asyncio.to_thread(self._sessions.snapshots)
        return [saved_state(one, one.sizes.raw_bytes) for one in found]

    async def save(self, kernel_id: str, title: str) -> Done:
        """Save a kernel, which runs on."""
        return _done(
            await self._do(lambda note: self._sessions.save(kernel_id, title=title, progress=note))
        )

    async def suspend(self, kernel_id: str, title: str) -> Done:
        """Save a kernel and end its processes."""
        return _done(
            await self._do(
                lambda note: self._sessions.suspend(kernel_id, title=title, progress=note)
            )
        )

    async def resume(self, kernel_id: str) -> Done:
        """Bring a suspended or parked kernel back."""
        return _done(await asyncio.to_thread(self._sessions.resume_only, kernel_id))

    async def restore(self, kernel_id: str, snapshot_id: str, files: FilesChoice) -> Done:
        """Save a kernel's state, then bring it back from a snapshot."""
        go_back = self._sessions.go_back
        return _done(await asyncio.to_thread(go_back, kernel_id, snapshot_id, files))

    async def branch(self, snapshot_id: str) -> str:
        """Start a second kernel from a snapshot; return its id."""
        making = asyncio.ensure_future(asyncio.to_thread(self._sessions.branch, snapshot_id))
        try:
            return (await asyncio.shield(making)).kernel.kernel_id
        except asyncio.CancelledError:
            with suppress(GpuCkptError):
                await self.end_branch((await making).kernel.kernel_id)
            raise

    async def end_branch(self, kernel_id: str) -> None:
        """End a tool's branch at once."""
        for one in await self.sessions():
            if one.session == kernel_id and not one.is_branch:
                raise ConfigurationError(
                    f"Kernel {kernel_id} is not a branch that a tool made.",
                    hint="Tools end only their own branches. Suspend it to free its memory.",
                )
        await asyncio.to_thread(self._sessions.end, kernel_id)

    async def compare(self, first: str, second: str) -> Comparison:
        """Compare the variables of two moments."""
        return await asyncio.to_thread(self._sessions.compare, first, second)

    async def run(self, kernel_id: str, code: str, output: CellOutput, seconds: float) -> None:
        """Run code in a kernel, which is resumed for it."""
        work = asyncio.to_thread(self._sessions.run_into, output, kernel_id, code, seconds=seconds)
        running = asyncio.ensure_future(work)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            with suppress(GpuCkptError):
                await asyncio.to_thread(self._sessions.interrupt, kernel_id)
                await running
            raise

    async def close(self) -> None:
        """Close the connection; kernels go on."""
        await asyncio.to_thread(self._sessions.close)

    async def _do(self, work: Callable[[Callable[[Operation], object]], Result]) -> Result:
        """Do an operation in a thread, telling its progress; cancel it if the call of the tool is canceled."""
        loop, canceled = asyncio.get_running_loop(), False

        def note(operation: Operation) -> None:
            if canceled:
                raise _Canceled
            if operation.progress.stage:
                text = f"{operation.kind}: {operation.progress.stage}"
                loop.call_soon_threadsafe(lambda: asyncio.ensure_future(tell(text)))

        running = asyncio.ensure_future(asyncio.to_thread(work, note))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            canceled = True
            with suppress(GpuCkptError, _Canceled):
                await running
            raise


def _session(kernel: Kernel) -> Session:
    return Session(
        kernel.kernel_id,
        kernel.name,
        kernel.state,
        kernel.memory_bytes or kernel.suspended_bytes,
        kernel.gpu_bytes,
        kernel.snapshot_id,
        kernel.parent_snapshot_id,
        f"{kernel.error.message} {kernel.error.hint}" if kernel.error else "",
    )


def _done(result: Result) -> Done:
    return done(result, result.sizes.new_bytes)
