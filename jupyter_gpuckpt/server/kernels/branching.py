"""Kernels that this server makes from snapshots: branches, and kernels that ended here or come from another machine.

A branch is a second kernel beside the snapshot's own one, with an id, a notebook and ports of its own. A kernel that is not on this
machine is made again with its own id, so that it goes on in its session.

To the daemon it is a suspended kernel that has a snapshot. It is listed here like a kernel that an earlier server left, and then
resumed. If that fails, nothing of it remains.
"""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from jupyter_core.utils import ensure_async
from tornado import web

from ...client import socket_folders
from ...client.left_kernels import path_below
from ...errors import ConfigurationError, GpuCkptError, KernelNotFound
from ...linux.ports import HeldPorts, moved_connection
from ...wire import calls
from ...wire.manager_secrets import parted
from ...wire.own_sockets import moved_address
from ...wire.protocol import BranchRequest, SuspendedKernel
from ...wire.states import KernelState
from ...wire.tool_branches import branch_name, console_row, is_tool_branch
from ..messages.begun_cells import begun_cells
from .notebook_sessions import forget_sessions, sessions_of

if TYPE_CHECKING:
    import logging
    from collections.abc import Awaitable, Callable

    from jupyter_server.services.sessions.sessionmanager import SessionManager

    from ...wire.manifest_records import LaunchSpec
    from ...wire.protocol import Operation
    from ..messages.served_kernel import ServedKernel
    from .adoption import Adoption
    from .daemon_link import DaemonLink
    from .kernel_manager import GpuCkptKernels
    from .kernel_operations import Resume, ServerOperations
    from .stored_notebooks import StoredNotebooks

_INSERT = "-branch-"
#: How long the end of a branch waits for its start, and how often it looks.
_START_SECONDS, _LOOK_SECONDS = 60.0, 0.05
#: The states in which a kernel of this server can be resumed from any of its snapshots.
_RESUMABLE = frozenset({KernelState.SUSPENDED, KernelState.LOST})


class Branch(NamedTuple):
    """A kernel that is being made: the operation that resumes it, and the path of its notebook."""

    operation: Operation
    path: str


class Branching:
    """A maker of kernels from any snapshot in the store."""

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
        launch = await self._launch(snapshot_id)
        return await self._start(snapshot_id, launch, str(uuid.uuid4()), path, force=force)

    async def branch_for_tool(self, snapshot_id: str, *, force: bool = False) -> Branch:
        """Start a second kernel from a snapshot as `branch` does, without a notebook of its own: pages list it as a console."""
        launch = await self._launch(snapshot_id)
        kernel_id = str(uuid.uuid4())
        name = branch_name(self._source(launch), launch.kernel_id, kernel_id)
        return await self._start(
            snapshot_id, launch, kernel_id, name, has_notebook=False, force=force
        )

    async def end_for_tool(self, kernel_id: str) -> None:
        """End a tool's branch at once; its snapshots stay. Raises KernelNotFound, and ConfigurationError for any other kernel."""
        if kernel_id not in self._kernels:
            raise KernelNotFound(f"This server has no kernel {kernel_id}.")
        rows = sessions_of(self._sessions, kernel_id)
        if not rows or not is_tool_branch(rows[0]["path"]):
            raise ConfigurationError(
                f"Kernel {kernel_id} is not a branch that a tool made.",
                hint="Tools end only their own branches. Suspend it to free its memory.",
            )
        # Its process may have died just now: Jupyter cannot shut down a kernel that it is starting again.
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                while not self._kernels.get_kernel(kernel_id).ready.done():  # noqa: ASYNC110 - there is no notification
                    await asyncio.sleep(_LOOK_SECONDS)
        await self._kernels.shutdown_kernel(kernel_id, now=True)
        forget_sessions(self._sessions, kernel_id)

    async def resume(
        self, snapshot_id: str, path: str = "", *, take_over: bool = False, force: bool = False
    ) -> Branch:
        """Start resuming a snapshot as its own kernel, in the notebook at `path`, by default in a copy; as a branch if that kernel runs.

        A kernel that is suspended here is resumed in its own notebook. `take_over`, `force`: as in `ServerOperations.resume`.
        """
        launch = await self._launch(snapshot_id)
        kernel_id = launch.kernel_id
        served = self._link.served.get(kernel_id)
        rows = sessions_of(self._sessions, kernel_id)
        there = rows[0]["path"] if rows else ""
        # A branch that took the kernel's id, and its notebook elsewhere, is left alone.
        is_wanted = kernel_id in self._kernels and path in {"", there}
        if is_wanted and served is not None and served.state in _RESUMABLE:
            operation = await self._go_on(
                served,
                launch,
                partial(self._resume, kernel_id, snapshot_id, take_over=take_over, force=force),
            )
            return Branch(operation, there)
        listed = await self._link.daemon.send(calls.kernels())
        holder = next((kernel for kernel in listed if kernel.kernel_id == kernel_id), None)
        if holder is not None:
            # One whose shutdown can still be undone keeps its id, but no longer has the notebook.
            has_notebook = not holder.ends_at and there in {"", path}
            beside = "" if has_notebook else path
            return await self._start(snapshot_id, launch, str(uuid.uuid4()), beside, force=force)
        return await self._start(
            snapshot_id, launch, kernel_id, path, take_over=take_over, force=force
        )

    async def _go_on(
        self, served: ServedKernel, launch: LaunchSpec, resume: Callable[[], Awaitable[Operation]]
    ) -> Operation:
        """Start resuming a kernel of this server from a snapshot that another machine may have made, in another cell."""
        output = served.output
        before = output.description()
        output.follow(launch.jupyter.get("output") or {}, lacks_beginning=True)

        async def go_back_if_failed(operation: Operation) -> None:
            if (await self._operations.finish(operation)).error is not None:
                output.follow(before)

        try:
            operation = await resume()
        except BaseException:
            output.follow(before)
            raise
        self._operations.spawn(go_back_if_failed(operation))
        return operation

    async def _launch(self, snapshot_id: str) -> LaunchSpec:
        launch = await self._link.daemon.send(calls.launch_spec(snapshot_id))
        if not launch.jupyter.get("connection_info"):
            raise ConfigurationError(f"Snapshot {snapshot_id} does not belong to a Jupyter kernel.")
        return launch

    async def _start(
        self,
        snapshot_id: str,
        launch: LaunchSpec,
        kernel_id: str,
        path: str = "",
        *,
        take_over: bool = False,
        has_notebook: bool = True,
        force: bool,
    ) -> Branch:
        """Make a kernel of this id, with the snapshot's notebook at `path` (by default beside the original), and start resuming it."""
        async with AsyncExitStack() as undo:
            if has_notebook:
                path = await self._notebook(snapshot_id, launch, path, undo)
            await self._make(snapshot_id, launch, kernel_id, path, undo)
            self._link.served[kernel_id].is_new_branch = True
            operation = await self._resume(kernel_id, "", take_over=take_over, force=force)
            self._operations.spawn(self._finish(operation, undo.pop_all()))
        return Branch(operation, path)

    async def _finish(self, operation: Operation, undo: AsyncExitStack) -> None:
        ended = await self._operations.finish(operation)
        if ended.error is not None:
            self._log.warning("Kernel %s was not made: %s", ended.kernel_id, ended.error.message)
            await undo.aclose()

    async def _notebook(
        self, snapshot_id: str, launch: LaunchSpec, wanted: str, undo: AsyncExitStack
    ) -> str:
        """Write the snapshot's notebook, or copy the present one if there is none in the snapshot, and return the path.

        An existing notebook at `wanted` is used unchanged.
        """
        contents = self._contents
        source = self._source(launch)
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

    def _source(self, launch: LaunchSpec) -> str:
        """Return the path of a snapshot's notebook below this server's folder; of a console its name."""
        saved = launch.jupyter
        root = str(self._kernels.root_dir)
        return path_below(saved.get("path", ""), saved_root=saved.get("root", ""), root=root)

    async def _stored(self, snapshot_id: str) -> dict[str, Any] | None:
        try:
            return (await self._notebooks.notebook(snapshot_id)).notebook
        except GpuCkptError as error:
            self._log.warning("The kernel gets the present notebook: %s", error.message)
            return None

    async def _make(
        self,
        snapshot_id: str,
        launch: LaunchSpec,
        kernel_id: str,
        path: str,
        undo: AsyncExitStack,
    ) -> None:
        row = console_row(str(uuid.uuid4()), path, kernel_id)
        if not is_tool_branch(path):
            row["type"] = "notebook"
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
        forget_sessions(self._sessions, kernel_id)
        self._link.offer(saved)
        await self._adoption.adopt(saved, resume_busy=False)

    async def _quietly(self, undo: Any) -> None:
        """Undo a step; log an error instead of raising it, so that it does not hide the first one."""
        try:
            await undo()
        except KernelNotFound:
            pass
        except (GpuCkptError, web.HTTPError, OSError) as error:
            self._log.warning(
                "A kernel was not made, and not all of it could be removed: %s", error
            )
