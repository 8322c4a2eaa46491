"""Sessions in Python: list, save, suspend, resume, roll back, branch, compare, run code in and end the kernels of this user, from a script.

`Sessions` is for ordinary code, `AsyncSessions` for code on an event loop. Every method raises the errors of `jupyter_gpuckpt.errors`;
`KernelNotFound`, `SnapshotNotFound`, `KernelNotCheckpointable` and `DaemonUnavailable` are the usual ones. In a kernel under the engine
`Sessions` raises ConfigurationError. Kernels and snapshots are named by their whole ids. `progress`, where a method has it, is called with
each change of the operation; if it raises an exception, the operation is canceled.
"""

from __future__ import annotations

import asyncio
import builtins
import signal
import time
import uuid
import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from .client import Client, starting
from .client.cell_output import CellOutput
from .client.connection_files import connection_file_of
from .client.reviving import create, write_connection_file
from .errors import ConfigurationError, GpuCkptError, KernelNotFound, KernelStateConflict
from .wire import calls
from .wire.daemon_settings import Settings
from .wire.manifest_records import Cause, Variables
from .wire.protocol import FilesChoice, Kernel, Operation, Result, SaveRequest
from .wire.retention_policy import KEPT_TOOL_SAVES, RetentionPolicy
from .wire.snapshot_records import PruneRequest, Snapshot
from .wire.states import ALIVE, GPU_AWAY, KernelState
from .wire.tool_branches import branch_name, is_branch_of
from .wire.variable_changes import Comparison, compare

__all__ = [
    "AsyncSessions",
    "Branch",
    "CellOutput",
    "Comparison",
    "Kernel",
    "KernelState",
    "Result",
    "Sessions",
    "Snapshot",
]

_LOOK_SECONDS = 0.1
#: Called with an operation at each change.
Progress = Callable[[Operation], object]


class Branch(NamedTuple):
    """A second kernel beside the one of its snapshot. `connection_file`: for `jupyter console --existing`; None without one."""

    kernel: Kernel
    connection_file: Path | None


class Sessions:
    """The sessions of this user on this machine; a context manager that closes the connection to the daemon."""

    #: Why its snapshots are taken.
    cause = Cause.MANUAL

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

    def save(
        self,
        kernel_id: str,
        *,
        title: str = "",
        pinned: bool = False,
        progress: Progress | None = None,
    ) -> Result:
        """Save a kernel, which runs on; return the result, with the snapshot's id, when the snapshot is complete."""
        request = self._request(kernel_id, title, pinned=pinned)
        return self._finish(self._client.send(calls.save(kernel_id, request)), progress)

    def suspend(
        self,
        kernel_id: str,
        *,
        title: str = "",
        pinned: bool = False,
        progress: Progress | None = None,
    ) -> Result:
        """Save a kernel and end its processes; return the result, with the snapshot's id, when its memory is free."""
        request = self._request(kernel_id, title, pinned=pinned)
        return self._finish(self._client.send(calls.suspend(kernel_id, request)), progress)

    def resume(self, kernel_id: str, *, force: bool = False) -> Kernel:
        """Bring a suspended or parked kernel back; return it when it runs. A kernel that runs already is not changed.

        Files that changed meanwhile are named by Python warnings. `force`: even if using them may end it or damage a database, for
        which FilesChanged is raised otherwise.
        """
        return self._resumed(kernel_id, force=force)

    def roll_back(
        self, snapshot_id: str, *, force: bool = False, files: FilesChoice = ""
    ) -> Kernel:
        """Bring a snapshot's kernel back as it was then. Its current state is saved first, and resumed if that fails.

        `force`: as in `resume`. `files`: "restore" also puts the files of the working folder back, if the snapshot has them; the
        present ones are saved first.
        """
        kernel_id = self._client.send(calls.launch_spec(snapshot_id)).kernel_id
        try:
            self._client.send(calls.kernel(kernel_id))
        except KernelNotFound:
            self._create(snapshot_id, kernel_id)
            return self._resumed_or_killed(kernel_id, force=force)
        result = self._go_back(kernel_id, snapshot_id, force=force, files=files)
        return self._warned(kernel_id, result)

    def _go_back(
        self, kernel_id: str, snapshot_id: str, *, force: bool, files: FilesChoice
    ) -> Result:
        """Resume a kernel from a snapshot of it, or of a tool's branch of it, after its current state was saved."""
        kernel = self._client.send(calls.kernel(kernel_id))
        if kernel.state in GPU_AWAY:
            self._resume(kernel_id)
        kept = ""
        if kernel.state in ALIVE:
            # Nothing removes the snapshot, so that going back can be undone.
            request = SaveRequest(cause=Cause.ROLLBACK, pinned=True, files=bool(files))
            if self.cause is not Cause.MANUAL:
                request = SaveRequest(cause=self.cause)
            kept = self._finish(self._client.send(calls.suspend(kernel_id, request))).snapshot_id
        try:
            return self._resume(kernel_id, snapshot_id, force=force, files=files)
        except GpuCkptError:
            if kept:
                self._resume(kernel_id, kept)
            raise

    def branch(self, snapshot_id: str, *, force: bool = False) -> Branch:
        """Start a second kernel from a snapshot, beside the first one. The next Jupyter server that shows its notebook lists it.

        `force`: as in `resume`.
        """
        return self._branch(snapshot_id, str(uuid.uuid4()), "", force=force)

    def _branch(self, snapshot_id: str, kernel_id: str, name: str, *, force: bool) -> Branch:
        file = self._create(snapshot_id, kernel_id, name)
        kernel = self._resumed_or_killed(kernel_id, force=force)
        if file is not None:
            self._tell_branched(file, kernel)
        return Branch(kernel, file)

    def _tell_branched(self, connection_file: Path, kernel: Kernel) -> None:
        from .client.agent_messages import tell_branched  # noqa: PLC0415 - slow

        tell_branched(connection_file, kernel.moved_ports)

    def keep_branch(
        self, branch_id: str, kernel_id: str, *, force: bool = False, files: FilesChoice = ""
    ) -> Kernel:
        """Make a branch's state that of the kernel from which it was made, and end the branch. The kernel's state is saved first.

        `files`: "merge" also takes the files that the branch has changed, and raises KernelStateConflict, which names them, where
        the kernel's were changed as well; "restore" takes all files of the branch.
        Raises ConfigurationError if it is no branch of this kernel. `force`: as in `resume`.
        """
        branch = self._client.send(calls.kernel(branch_id))
        if not is_branch_of(branch.name, kernel_id):
            raise ConfigurationError(
                f"Kernel {branch_id} is not a branch of kernel {kernel_id}.",
                hint="Only branches that tools made (`jupyter gpuckpt mcp`) can be kept as the notebook's kernel.",
            )
        snapshot_id = branch.snapshot_id
        if branch.state in ALIVE:
            snapshot_id = self.save(branch_id).snapshot_id
        result = self._go_back(kernel_id, snapshot_id, force=force, files=files)
        kept = self._warned(kernel_id, result)
        self._tell_kept(kept)
        self.end(branch_id)
        return kept

    def _tell_kept(self, kernel: Kernel) -> None:
        """Tell a kernel that its state is that of a branch. Without a connection file its history goes on in that of the branch."""
        with suppress(KernelStateConflict):
            self._tell_branched(self.connection_file(kernel.kernel_id), kernel)

    def end(self, kernel_id: str) -> None:
        """End a kernel for good, with everything that it started; its snapshots stay."""
        self._client.send(calls.kill(kernel_id, by_user=True))

    def delete(self, snapshot_id: str) -> None:
        """Delete a snapshot; for a while, by default a minute, that can be undone. Raises SnapshotInUse if a kernel needs it."""
        self._client.send(calls.delete_snapshot(snapshot_id))

    def compare(self, first: str, second: str) -> Comparison:
        """Compare two moments, each the id of a snapshot, or of a kernel now: their variables and the files of the working folder."""
        found = compare(self._variables(first), self._variables(second))
        files = self._client.send(calls.compare_files(first, second))
        return msgspec.structs.replace(found, files=files)

    def _variables(self, moment_id: str) -> Variables:
        kernels = {kernel.kernel_id: kernel for kernel in self.list()}
        kernel = kernels.get(moment_id)
        if kernel is not None and kernel.state is KernelState.RUNNING:
            found = self._variables_now(kernel)
        else:
            snapshot_id = moment_id if kernel is None else kernel.snapshot_id
            found = self._client.send(calls.snapshot_variables(snapshot_id)).variables
        if found is None:
            raise KernelStateConflict(
                f"The variables of {moment_id} are not known.",
                hint="Only IPython kernels that were started by a server or by a program report them, while no cell runs.",
            )
        return found

    def _variables_now(self, kernel: Kernel) -> Variables | None:
        from .client.kernel_variables import variables_now  # noqa: PLC0415 - slow

        path = connection_file_of(kernel)
        return variables_now(kernel.kernel_id, idle_only=True, connection_file=path)

    def connection_file(self, kernel_id: str) -> Path:
        """Return the connection file of a kernel, for `jupyter console --existing`. Raises KernelStateConflict if it has none."""
        path = connection_file_of(self._client.send(calls.kernel(kernel_id)))
        if path is None:
            raise KernelStateConflict(
                f"No connection file of kernel {kernel_id} is found.",
                hint="Only kernels of Jupyter that have a process, or were started by a server, have one. Resume it first.",
            )
        return path

    def run(self, kernel_id: str, code: str, *, seconds: float | None = None) -> CellOutput:
        """Run code in a kernel, which is resumed for it, and return its output; after `seconds` interrupt it.

        For kernels without a server: pages of a server would not learn of the run. At most a megabyte of output is kept.
        """
        output = CellOutput()
        self.run_into(output, kernel_id, code, seconds=seconds)
        return output

    def run_into(
        self, output: CellOutput, kernel_id: str, code: str, *, seconds: float | None = None
    ) -> None:
        """Run code as `run` does; `output` grows meanwhile."""
        from .client.kernel_runs import run_code  # noqa: PLC0415 - slow

        self._resume(kernel_id)
        path = self.connection_file(kernel_id)
        run_code(
            path,
            code,
            output,
            seconds,
            interrupt=partial(self.interrupt, kernel_id),
            is_alive=partial(self._is_alive, kernel_id),
        )

    def interrupt(self, kernel_id: str) -> None:
        """Interrupt the code that a kernel runs."""
        self._client.send(calls.signal(kernel_id, int(signal.SIGINT)))

    def _is_alive(self, kernel_id: str) -> bool:
        """Return whether a kernel is there, running or suspended."""
        try:
            return self._client.send(calls.kernel(kernel_id)).state is not KernelState.LOST
        except KernelNotFound:
            return False

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

    def _request(self, kernel_id: str, title: str, *, pinned: bool) -> SaveRequest:
        """Return the request of a save or suspend, with the kernel's variables if it reports them and a tool will compare them."""
        if self.cause is Cause.MANUAL:
            return SaveRequest(title=title, pinned=pinned)
        policy = _tool_saves()
        found = self._variables_now(self._client.send(calls.kernel(kernel_id)))
        return SaveRequest(cause=self.cause, title=title, variables=found, retention=policy)

    def _finish(self, operation: Operation, progress: Progress | None = None) -> Result:
        if progress is None:
            return self._client.wait(operation.operation_id)
        try:
            for operation in self._client.follow(operation.operation_id):  # noqa: B020, PLR1704 - its newest record
                progress(operation)
        except GpuCkptError:
            raise
        except BaseException:
            self._client.send(calls.cancel(operation.operation_id))
            raise
        return operation.outcome()

    def _resumed(self, kernel_id: str, *, force: bool) -> Kernel:
        return self._warned(kernel_id, self._resume(kernel_id, force=force))

    def _resume(
        self,
        kernel_id: str,
        snapshot_id: str = "",
        *,
        force: bool = False,
        files: FilesChoice = "",
    ) -> Result:
        call = calls.resume(kernel_id, snapshot_id, force=force, files=files)
        return self._finish(self._client.send(call))

    def _warned(self, kernel_id: str, resumed: Result) -> Kernel:
        for text in resumed.warnings:
            warnings.warn(text, stacklevel=4)
        return self._client.send(calls.kernel(kernel_id))

    def _create(self, snapshot_id: str, kernel_id: str, name: str = "") -> Path | None:
        """Create a suspended kernel from a snapshot, which outlives this process; return its connection file."""
        connection = create(self._client, snapshot_id, name=name, kernel_id=kernel_id)
        return write_connection_file(kernel_id, connection)

    def _resumed_or_killed(self, kernel_id: str, *, force: bool) -> Kernel:
        """Resume a kernel that was just created; kill it if that fails, because otherwise its snapshot could not be deleted."""
        try:
            return self._resumed(kernel_id, force=force)
        except GpuCkptError:
            self._client.send(calls.kill(kernel_id))
            raise


class ToolSessions(Sessions):
    """The sessions as tools for programs use them (`tools/`): what they save is theirs to thin, and their branches are marked."""

    cause = Cause.TOOL

    def branch(self, snapshot_id: str, *, force: bool = False) -> Branch:
        """Start a second kernel from a snapshot; its name tells of which notebook it is a tool's branch."""
        kernel_id = str(uuid.uuid4())
        found = next((one for one in self.snapshots() if one.snapshot_id == snapshot_id), None)
        name = branch_name(found.name, found.kernel_id, kernel_id) if found else ""
        return self._branch(snapshot_id, kernel_id, name, force=force)

    def resume_only(self, kernel_id: str) -> Result:
        """Resume a kernel as `resume` does; return the result with the texts of the warnings."""
        return self._resume(kernel_id)

    def go_back(self, kernel_id: str, snapshot_id: str, files: FilesChoice) -> Result:
        """Save a kernel's state, then resume it from a snapshot of it, or of one of its branches; return the result of the resume."""
        result = self._go_back(kernel_id, snapshot_id, force=False, files=files)
        if self._client.send(calls.launch_spec(snapshot_id)).kernel_id != kernel_id:
            self._tell_kept(self._client.send(calls.kernel(kernel_id)))
        # Not with the save: the snapshot to which it goes back may be the oldest that is kept.
        self._client.send(calls.prune(PruneRequest(_tool_saves())))
        return result


def _tool_saves() -> RetentionPolicy:
    """Return the policy by which what tools saved is thinned."""
    return RetentionPolicy(keep_tool_saves=KEPT_TOOL_SAVES)


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

    async def roll_back(
        self, snapshot_id: str, *, force: bool = False, files: FilesChoice = ""
    ) -> Kernel:
        """Bring a snapshot's kernel back as it was then. Its current state is saved first, and resumed if that fails."""
        return await asyncio.to_thread(
            self._sessions.roll_back, snapshot_id, force=force, files=files
        )

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
