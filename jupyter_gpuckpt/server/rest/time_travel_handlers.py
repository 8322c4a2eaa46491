"""The routes about branches, rollbacks, and what a snapshot contains: its notebook, variables, and changes since."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from ...errors import KernelStateConflict
from ...wire import calls, ids
from ...wire.calls import Route
from ...wire.manifest_records import Cause, Variables
from ...wire.protocol import FilesChoice
from ...wire.variable_changes import Comparison, compare
from ..kernels.stored_notebooks import StoredNotebook
from ..rest_records import BranchView, OperationView, VariablesView, branch_view, operation_view
from .rest_handler import GpuCkptHandler, RestRoutes

#: The time for computing fingerprints of the variables' values, in seconds.
_FINGERPRINT_SECONDS = 1.0
_KERNEL, _SNAPSHOT = "/kernels/{kernel_id}", "/snapshots/{snapshot_id}"

ROUTES = RestRoutes()
_answers, _ACCEPTED = ROUTES.answers, HTTPStatus.ACCEPTED


class PathRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a branch. `path`: its notebook; by default one beside the snapshot's. `force`: as in a resume. `tool`: a tool's has none."""

    path: str = ""
    force: bool = False
    tool: bool = False


class RevivalRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of the resume of a snapshot. `path`: the notebook; empty: beside the snapshot's. `take_over`, `force`: as in a resume."""

    path: str = ""
    take_over: bool = False
    force: bool = False


class SnapshotRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a rollback. `force`: as in a resume. `tool`: a tool for programs requests it.

    `files`: what happens to the working folder, if the snapshot has its files: nothing, all as in the snapshot (restore), or what
    was changed since the branch began whose snapshot it is (merge). Its present files are saved first.
    """

    snapshot_id: str
    force: bool = False
    tool: bool = False
    files: FilesChoice = ""


@_answers(Route(OperationView, "POST", f"{_KERNEL}/roll_back", SnapshotRequest, _ACCEPTED))
async def _roll_back(handler: GpuCkptHandler, kernel_id: str) -> OperationView:
    """Start a rollback."""
    # A kernel that does not exist is reported before a body that is not valid.
    handler.parts.operations.served(kernel_id)
    request = handler.record(SnapshotRequest)
    operation = await handler.parts.rollbacks.roll_back(
        kernel_id,
        request.snapshot_id,
        force=request.force,
        cause=Cause.TOOL if request.tool else Cause.ROLLBACK,
        files=request.files,
    )
    return operation_view(operation)


@_answers(Route(BranchView, "POST", f"{_SNAPSHOT}/branch", PathRequest, _ACCEPTED))
async def _branch(handler: GpuCkptHandler, snapshot_id: str, request: PathRequest) -> BranchView:
    """Start making a branch, which is a second kernel."""
    branching, force = handler.parts.branching, request.force
    if request.tool:
        return branch_view(*await branching.branch_for_tool(snapshot_id, force=force))
    return branch_view(*await branching.branch(snapshot_id, request.path, force=force))


@_answers(Route(type(None), "DELETE", f"{_KERNEL}/branch", None, HTTPStatus.NO_CONTENT))
async def _end_branch(handler: GpuCkptHandler, kernel_id: str) -> None:
    """End a branch that a tool made, at once; its snapshots stay."""
    await handler.parts.branching.end_for_tool(kernel_id)


@_answers(Route(BranchView, "POST", f"{_SNAPSHOT}/resume", RevivalRequest, _ACCEPTED))
async def _resume(handler: GpuCkptHandler, snapshot_id: str, request: RevivalRequest) -> BranchView:
    """Start resuming a snapshot as its own kernel; as a branch if that kernel runs, or belongs to another server."""
    resume = handler.parts.branching.resume
    wanted = {"take_over": request.take_over, "force": request.force}
    return branch_view(*await resume(snapshot_id, request.path, **wanted))


@ROUTES.passed_on(calls.changes)
def _changes() -> None:
    """Show the changes since the snapshot was taken."""


@_answers(Route(StoredNotebook, "GET", f"{_SNAPSHOT}/notebook"))
async def _notebook(handler: GpuCkptHandler, snapshot_id: str) -> StoredNotebook:
    """Show the cells and outputs as they were saved with the snapshot; outputs are trusted if this user has signed them."""
    return await handler.parts.notebooks.notebook(snapshot_id)


@_answers(Route(VariablesView, "GET", f"{_KERNEL}/variables"))
async def _variables(handler: GpuCkptHandler, kernel_id: str) -> VariablesView:
    """List a kernel's variables, the biggest first."""
    found = await handler.parts.operations.variables(kernel_id)
    return VariablesView(variables=found.listed)


_COMPARED = {"kernel_id": "By default the kernel of the snapshot."}


_MOMENTS = {
    "first": "A snapshot, or a kernel: its variables now.",
    "second": "The same.",
}


@_answers(Route(Comparison, "GET", "/compare", query=_MOMENTS))
async def _compare_moments(handler: GpuCkptHandler, first: str, second: str) -> Comparison:
    """Show which variables, and which files of the working folder, differ between two snapshots or kernels."""
    found = [await _moment(handler, one) for one in (first, second)]
    files = await handler.parts.link.daemon.send(calls.compare_files(first, second))
    return msgspec.structs.replace(compare(*found), files=files)


async def _moment(handler: GpuCkptHandler, moment_id: str) -> Variables:
    if moment_id in handler.kernels:
        return await handler.parts.operations.variables(moment_id, _FINGERPRINT_SECONDS)
    ids.require({"snapshot_id": moment_id})
    found = await handler.parts.link.daemon.send(calls.snapshot_variables(moment_id))
    return _known(found.variables)


def _known(variables: Variables | None) -> Variables:
    if variables is None:
        raise KernelStateConflict(
            "The variables of this snapshot are not known.",
            hint="It was taken of another kind of kernel, or by the command line.",
        )
    return variables


@_answers(Route(Comparison, "GET", f"{_SNAPSHOT}/compare", query=_COMPARED))
async def _compare(handler: GpuCkptHandler, snapshot_id: str, kernel_id: str) -> Comparison:
    """Show which variables differ."""
    found = await handler.parts.link.daemon.send(calls.snapshot_variables(snapshot_id))
    then = _known(found.variables)
    named = kernel_id or found.kernel_id
    now = await handler.parts.operations.variables(named, _FINGERPRINT_SECONDS)
    return compare(then, now)
