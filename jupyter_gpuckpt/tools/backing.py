"""What the tools need of the owner of kernels, a Jupyter server or the daemon alone, and the records that they get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from ..client.cell_output import CellOutput
from ..wire.manifest_records import Cause
from ..wire.protocol import FilesChoice
from ..wire.states import KernelState
from ..wire.tool_branches import is_tool_branch
from ..wire.variable_changes import Comparison

if TYPE_CHECKING:
    from ..server.rest_records import ResultView, SnapshotView
    from ..wire.protocol import Result
    from ..wire.snapshot_records import Snapshot


class Session(msgspec.Struct, frozen=True):
    """A kernel as tools show it. `name`: its notebook's path, of a tool's branch that with a mark."""

    session: str
    name: str
    state: KernelState
    memory_bytes: int = 0
    gpu_bytes: int = 0
    #: The snapshot from which it would be resumed, and that from which it was branched.
    snapshot: str = ""
    branched_from: str = ""
    #: Why it cannot be saved, or its last error; empty if there is nothing to say.
    problem: str = ""
    can_be_saved: bool = True

    @property
    def is_branch(self) -> bool:
        """Return whether it is a tool's branch."""
        return is_tool_branch(self.name)


class SavedState(msgspec.Struct, frozen=True):
    """A snapshot as tools show it. `memory_bytes`: with the GPU's."""

    snapshot: str
    session: str
    name: str
    title: str
    created: float
    cause: Cause
    memory_bytes: int


class Done(msgspec.Struct, frozen=True):
    """The end of an operation. `snapshot`: the new one, or the one that was resumed."""

    snapshot: str
    seconds: float
    paused_seconds: float = 0.0
    new_bytes: int = 0
    warnings: list[str] = []


def saved_state(one: Snapshot | SnapshotView, memory_bytes: int) -> SavedState:
    """Return a snapshot as tools show it."""
    return SavedState(
        one.snapshot_id,
        one.kernel_id,
        one.name,
        one.title,
        one.created,
        one.cause,
        memory_bytes,
    )


def done(result: Result | ResultView, new_bytes: int) -> Done:
    """Return the end of an operation as tools show it."""
    return Done(
        result.snapshot_id,
        round(result.seconds, 3),
        round(result.frozen_seconds, 3),
        new_bytes,
        result.warnings,
    )


class Backing(Protocol):
    """The owner of kernels. Methods return when the operation is complete, and raise the errors of `errors.py`.

    A canceled call cancels its operation, and interrupts code that it runs.
    """

    #: What users call it.
    name: str
    #: Whether it is a Jupyter server, past which its kernels must not be reached.
    is_server: bool

    async def sessions(self) -> list[Session]:
        """List the kernels."""

    async def snapshots(self) -> list[SavedState]:
        """List all snapshots, newest first."""

    async def save(self, kernel_id: str, title: str) -> Done:
        """Save a kernel, which runs on."""

    async def suspend(self, kernel_id: str, title: str) -> Done:
        """Save a kernel and end its processes."""

    async def resume(self, kernel_id: str) -> Done:
        """Bring a suspended or parked kernel back."""

    async def restore(self, kernel_id: str, snapshot_id: str, files: FilesChoice) -> Done:
        """Save a kernel's state, then bring it back from one of its snapshots, or of one of its notebook's branches by tools.

        `files`: as in `ResumeRequest`.
        """

    async def branch(self, snapshot_id: str) -> str:
        """Start a second kernel from a snapshot; return its id."""

    async def end_branch(self, kernel_id: str) -> None:
        """End a tool's branch at once. Raises ConfigurationError for any other kernel."""

    async def compare(self, first: str, second: str) -> Comparison:
        """Compare the variables and files of two moments, each the id of a snapshot or of a kernel."""

    async def run(self, kernel_id: str, code: str, output: CellOutput, seconds: float) -> None:
        """Run code in a kernel, which is resumed for it, for at most some seconds; then it is interrupted."""

    async def close(self) -> None:
        """Close the connections; kernels go on."""
