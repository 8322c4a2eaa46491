"""Sessions in Python: list, save, suspend, resume, roll back and branch the kernels of this user, from a script.

`Sessions` is for ordinary code, `AsyncSessions` for code on an event loop. Every method raises the errors of `jupyter_gpuckpt.errors`;
`KernelNotFound`, `SnapshotNotFound`, `KernelNotCheckpointable` and `DaemonUnavailable` are the usual ones. In a kernel under the engine
`Sessions` raises ConfigurationError. Kernels and snapshots are named by their whole ids.
"""

from __future__ import annotations

import asyncio
import builtins
import time
import uuid
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple, Self

from .client import Client, starting
from .client.reviving import create, write_connection_file
from .errors import GpuCkptError, KernelNotFound
from .wire import calls
from .wire.daemon_settings import Settings
from .wire.manifest_records import Cause
from .wire.protocol import Kernel, Operation, Result, SaveRequest
from .wire.snapshot_records import Snapshot
from .wire.states import ALIVE, GPU_AWAY, KernelState

__all__ = [
    "AsyncSessions",
    "Branch",
    "Kernel",
    "KernelState",
    "Result",
    "Sessions",
    "Snapshot",
]

_LOOK_SECONDS = 0.1


class Branch(NamedTuple):
    """A second kernel beside the one of its snapshot. `connection_file`: for `jupyter console --existing`; None without one."""

    kernel: Kernel
    connection_file: Path | None


class Sessions:
    """The sessions of this user on this machine; a context manager that closes the connection to the daemon."""

    def __init__(self, settings: Settings | None = None) -> None:
        starting.require_outside()
        self._client = Client.connect(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; kernels and operations go on."""
        self._client.close()

    def list(self) -> list[Kernel]:
        """List the kernels: running, suspended and parked ones."""
        return self._client.send(calls.kernels())

    def snapshots(self, kernel_id: str | None = None) -> builtins.list[Snapshot]:
        """List the snapshots of a kernel, or all, newest first."""
        return self._client.send(calls.snapshots(kernel_id))

    def save(self, kernel_id: str, *, title: str = "", pinned: bool = False) -> Result:
        """Save a kernel, which runs on; return the result, with the snapshot's id, when the snapshot is complete."""
        request = SaveRequest(title=title, pinned=pinned)
        return self._finish(self._client.send(calls.save(kernel_id, request)))

    def suspend(self, kernel_id: str, *, title: str = "", pinned: bool = False) -> Result:
        """Save a kernel and end its processes; return the result, with the snapshot's id, when its memory is free."""
        request = SaveRequest(title=title, pinned=pinned)
        return self._finish(self._client.send(calls.suspend(kernel_id, request)))

    def resume(self, kernel_id: str, *, force: bool = False) -> Kernel:
        """Bring a suspended or parked kernel back; return it when it runs. A kernel that runs already is not changed.

        Files that changed meanwhile are named by Python warnings. `force`: even if using them may end it or damage a database, for
        which FilesChanged is raised otherwise.
        """
        return self._resumed(kernel_id, force=force)

    def roll_back(self, snapshot_id: str, *, force: bool = False) -> Kernel:
        """Bring a snapshot's kernel back as it was then. Its current state is saved first, and resumed if that fails.

        `force`: as in `resume`.
        """
        kernel_id = self._client.send(calls.launch_spec(snapshot_id)).kernel_id
        try:
            kernel = self._client.send(calls.kernel(kernel_id))
        except KernelNotFound:
            self._create(snapshot_id, kernel_id)
            return self._resumed_or_killed(kernel_id, force=force)
        was_running = kernel.state in ALIVE
        if kernel.state in GPU_AWAY:
            self._finish(self._client.send(calls.resume(kernel_id)))
        if was_running:
            request = SaveRequest(cause=Cause.ROLLBACK, pinned=True)
            self._finish(self._client.send(calls.suspend(kernel_id, request)))
        try:
            return self._resumed(kernel_id, snapshot_id, force=force)
        except GpuCkptError:
            if was_running:
                self._finish(self._client.send(calls.resume(kernel_id)))
            raise

    def branch(self, snapshot_id: str, *, force: bool = False) -> Branch:
        """Start a second kernel from a snapshot, beside the first one. The next Jupyter server that shows its notebook lists it.

        `force`: as in `resume`.
        """
        kernel_id = str(uuid.uuid4())
        file = self._create(snapshot_id, kernel_id)
        return Branch(self._resumed_or_killed(kernel_id, force=force), file)

    def wait(
        self, kernel_id: str, states: Collection[KernelState], *, seconds: float | None = None
    ) -> Kernel:
        """Wait until a kernel is in one of these states, and return it. Raises TimeoutError after `seconds`, KernelNotFound if it ends."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while (kernel := self._client.send(calls.kernel(kernel_id))).state not in states:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"Kernel {kernel_id} is still {kernel.state}.")
            time.sleep(_LOOK_SECONDS)
        return kernel

    def _finish(self, operation: Operation) -> Result:
        return self._client.wait(operation.operation_id)

    def _resumed(self, kernel_id: str, snapshot_id: str = "", *, force: bool) -> Kernel:
        result = self._finish(self._client.send(calls.resume(kernel_id, snapshot_id, force=force)))
        for text in result.warnings:
            warnings.warn(text, stacklevel=3)
        return self._client.send(calls.kernel(kernel_id))

    def _create(self, snapshot_id: str, kernel_id: str) -> Path | None:
        """Create a suspended kernel from a snapshot, which outlives this process; return its connection file."""
        connection = create(self._client, snapshot_id, kernel_id=kernel_id)
        return write_connection_file(kernel_id, connection)

    def _resumed_or_killed(self, kernel_id: str, *, force: bool) -> Kernel:
        """Resume a kernel that was just created; kill it if that fails, because otherwise its snapshot could not be deleted."""
        try:
            return self._resumed(kernel_id, force=force)
        except GpuCkptError:
            self._client.send(calls.kill(kernel_id))
            raise


class AsyncSessions:
    """The sessions of this user on this machine, for code on an event loop; the methods are those of `Sessions`."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings
        self._opened: Sessions | None = None

    async def __aenter__(self) -> Self:
        self._opened = await asyncio.to_thread(Sessions, self._settings)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.to_thread(self._sessions.close)

    async def list(self) -> list[Kernel]:
        """List the kernels: running, suspended and parked ones."""
        return await asyncio.to_thread(self._sessions.list)

    async def snapshots(self, kernel_id: str | None = None) -> builtins.list[Snapshot]:
        """List the snapshots of a kernel, or all, newest first."""
        return await asyncio.to_thread(self._sessions.snapshots, kernel_id)

    async def save(self, kernel_id: str, *, title: str = "", pinned: bool = False) -> Result:
        """Save a kernel, which runs on; return the result, with the snapshot's id, when the snapshot is complete."""
        return await asyncio.to_thread(self._sessions.save, kernel_id, title=title, pinned=pinned)

    async def suspend(self, kernel_id: str, *, title: str = "", pinned: bool = False) -> Result:
        """Save a kernel and end its processes; return the result, with the snapshot's id, when its memory is free."""
        return await asyncio.to_thread(
            self._sessions.suspend, kernel_id, title=title, pinned=pinned
        )

    async def resume(self, kernel_id: str, *, force: bool = False) -> Kernel:
        """Bring a suspended or parked kernel back; return it when it runs. A kernel that runs already is not changed."""
        return await asyncio.to_thread(self._sessions.resume, kernel_id, force=force)

    async def roll_back(self, snapshot_id: str, *, force: bool = False) -> Kernel:
        """Bring a snapshot's kernel back as it was then. Its current state is saved first, and resumed if that fails."""
        return await asyncio.to_thread(self._sessions.roll_back, snapshot_id, force=force)

    async def branch(self, snapshot_id: str, *, force: bool = False) -> Branch:
        """Start a second kernel from a snapshot, beside the first one. The next Jupyter server that shows its notebook lists it."""
        return await asyncio.to_thread(self._sessions.branch, snapshot_id, force=force)

    async def wait(
        self, kernel_id: str, states: Collection[KernelState], *, seconds: float | None = None
    ) -> Kernel:
        """Wait until a kernel is in one of these states, and return it. Raises TimeoutError after `seconds`, KernelNotFound if it ends."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            # Each wait is short, so that a canceled task leaves no thread behind that waits forever.
            try:
                return await asyncio.to_thread(self._sessions.wait, kernel_id, states, seconds=0)
            except TimeoutError:
                if deadline is not None and time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_LOOK_SECONDS)

    @property
    def _sessions(self) -> Sessions:
        if self._opened is None:
            raise RuntimeError("Use `async with AsyncSessions() as sessions`.")
        return self._opened
