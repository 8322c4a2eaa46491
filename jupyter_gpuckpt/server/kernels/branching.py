"""Branches: a second live kernel from a snapshot, with a notebook and ports of its own.

To the daemon a branch is a suspended kernel whose snapshot belongs to another kernel. It is listed here like a kernel that an
earlier server left, and then resumed. If that fails, nothing of it remains.
"""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from jupyter_core.utils import ensure_async
from tornado import web

from ...client import socket_folders
from ...errors import ConfigurationError, GpuCkptError, KernelNotFound
from ...linux.ports import HeldPorts, moved_connection
from ...wire import calls
from ...wire.manager_secrets import parted
from ...wire.own_sockets import moved_address
from ...wire.protocol import BranchRequest, SuspendedKernel
from ..messages.begun_cells import begun_cells
from .notebook_sessions import path_below

if TYPE_CHECKING:
    import logging

    from jupyter_server.services.sessions.sessionmanager import SessionManager

    from ...wire.manifest_records import LaunchSpec
    from ...wire.protocol import Operation
    from .adoption import Adoption
    from .daemon_link import DaemonLink
    from .kernel_manager import GpuCkptKernels
    from .kernel_operations import Resume, ServerOperations
    from .stored_notebooks import StoredNotebooks

_INSERT = "-branch-"


class Branch(NamedTuple):
    """A branch that is being made: the operation that resumes it, and the path of its notebook."""

    operation: Operation
    path: str


class Branching:
    """A maker of branches from any snapshot in the store."""

    def __init__(
        self,
        link: DaemonLink,
        kernels: GpuCkptKernels,
        sessions: SessionManager,
        contents: Any,
        notebooks: StoredNotebooks,
        operations: ServerOperations,
        adoption: Adoption,
        resume: Resume,
        log: logging.Logger,
    ) -> None:
        self._link, self._kernels, self._sessions = link, kernels, sessions
        self._contents, self._notebooks = contents, notebooks
        self._operations, self._log = operations, log
        self._adoption, self._resume = adoption, resume

    async def branch(self, snapshot_id: str, path: str = "", *, force: bool = False) -> Branch:
        """Start a second kernel from a snapshot, with the snapshot's notebook at `path` (by default beside the original).

        `force`: although its files changed (`FilesChanged`).
        """
        launch = await self._link.daemon.send(calls.launch_spec(snapshot_id))
        if not launch.jupyter.get("connection_info"):
            raise ConfigurationError(f"Snapshot {snapshot_id} does not belong to a Jupyter kernel.")
        async with AsyncExitStack() as undo:
            path = await self._notebook(snapshot_id, launch, path, undo)
            kernel_id = await self._make(snapshot_id, launch, path, undo)
            served = self._link.served[kernel_id]
            served.is_new_branch = True
            operation = await self._resume(kernel_id, "", force=force)
            self._operations.spawn(self._finish(operation, undo.pop_all()))
        return Branch(operation, path)

    async def _finish(self, operation: Operation, undo: AsyncExitStack) -> None:
        ended = await self._operations.finish(operation)
        if ended.error is not None:
            self._log.warning("Branch %s was not made: %s", ended.kernel_id, ended.error.message)
            await undo.aclose()

    async def _notebook(
        self, snapshot_id: str, launch: LaunchSpec, wanted: str, undo: AsyncExitStack
    ) -> str:
        """Write the snapshot's notebook, or copy the present one if there is none in the snapshot, and return the path.

        An existing notebook at `wanted` is used unchanged.
        """
        contents = self._contents
        saved = launch.jupyter
        source = path_below(
            saved.get("path", ""),
            saved_root=saved.get("root", ""),
            root=str(self._kernels.root_dir),
        )
        if wanted and await ensure_async(contents.file_exists(wanted)):
            return wanted
        below = PurePosixPath(wanted or source or "branch.ipynb")
        if not wanted and not below.suffix:
            # A console has no file, and its path is no name for a notebook.
            below = below.with_name("console.ipynb")
        folder = "" if str(below.parent) == "." else str(below.parent)
        try:
            if not wanted:
                name = await ensure_async(
                    contents.increment_filename(below.name, folder, insert=_INSERT)
                )
                wanted = f"{folder}/{name}".lstrip("/")
            if (stored := await self._stored(snapshot_id)) is not None:
                model = {"type": "notebook", "format": "json", "content": stored}
                made = await ensure_async(contents.save(model, wanted))
            elif source and await ensure_async(contents.file_exists(source)):
                made = await ensure_async(contents.copy(source, wanted))
            else:
                made = await ensure_async(contents.new({"type": "notebook"}, wanted))
        except web.HTTPError as error:
            raise ConfigurationError(
                f"The notebook {wanted} could not be made: {error.log_message or error.reason}."
            ) from error
        path = str(made["path"])

        async def remove() -> None:
            await ensure_async(contents.delete(path))

        undo.push_async_callback(self._quietly, remove)
        return path

    async def _stored(self, snapshot_id: str) -> dict[str, Any] | None:
        try:
            return (await self._notebooks.notebook(snapshot_id)).notebook
        except GpuCkptError as error:
            self._log.warning("The branch gets the present notebook: %s", error.message)
            return None

    async def _make(
        self, snapshot_id: str, launch: LaunchSpec, path: str, undo: AsyncExitStack
    ) -> str:
        kernel_id = str(uuid.uuid4())
        row = {
            "session_id": str(uuid.uuid4()),
            "path": path,
            "name": PurePosixPath(path).name,
            "type": "notebook",
            "kernel_id": kernel_id,
        }
        free = HeldPorts.free(len(launch.own_ports))
        undo.callback(free.release)
        folder = ""
        if launch.own_sockets.folder:
            made = await asyncio.to_thread(socket_folders.make, kernel_id)
            undo.callback(socket_folders.remove, made)
            folder = str(made)
        saved_connection = launch.jupyter["connection_info"]
        moved = moved_connection(saved_connection, launch.own_ports, free.ports)
        jupyter, _ = parted(
            {
                **launch.jupyter,
                "connection_info": moved_address(moved, folder),
                "sessions": [row],
                "path": path,
                "root": str(self._kernels.root_dir),
                "output": msgspec.to_builtins(begun_cells(launch.jupyter.get("output"))),
            }
        )
        request = BranchRequest(
            self._link.owner_id, snapshot_id, kernel_id, free.ports, path, jupyter, folder
        )
        daemon = self._link.daemon
        kernel = await daemon.send(calls.branch(request))

        async def end() -> None:
            if kernel_id in self._kernels:
                await self._kernels.shutdown_kernel(kernel_id, now=True)
            else:
                await daemon.send(calls.kill(kernel_id))
            await self._sessions.delete_session(row["session_id"])

        undo.push_async_callback(self._quietly, end)
        saved = SuspendedKernel(kernel, jupyter, launch.cwd, secrets=launch.secrets)
        self._link.offer(saved)
        await self._adoption.adopt(saved, resume_busy=False)
        return kernel_id

    async def _quietly(self, undo: Any) -> None:
        """Undo a step; log an error instead of raising it, so that it does not hide the first one."""
        try:
            await undo()
        except KernelNotFound:
            pass
        except (GpuCkptError, web.HTTPError, OSError) as error:
            self._log.warning("A branch failed, and not all of it could be removed: %s", error)
