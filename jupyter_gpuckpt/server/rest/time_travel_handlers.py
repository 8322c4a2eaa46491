"""The routes about branches, rollbacks, changes since a snapshot, and the notebook in it."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from ...wire import calls
from ...wire.snapshot_records import Changes
from ..kernels.stored_notebooks import StoredNotebook
from ..rest_records import BranchView, OperationView, branch_view, operation_view
from .openapi import answers
from .rest_handler import GpuCkptHandler


class PathRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a branch. `path`: its notebook; empty: beside the snapshot's. `force`: as in a resume."""

    path: str = ""
    force: bool = False


class SnapshotRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a rollback. `force`: as in a resume."""

    snapshot_id: str
    force: bool = False


class BranchHandler(GpuCkptHandler):
    """Handler for branches."""

    @answers(BranchView, HTTPStatus.ACCEPTED, request=PathRequest)
    async def post(self, snapshot_id: str) -> None:
        """Start making a branch."""
        request = self.record(PathRequest)
        operation, path = await self.parts.branching.branch(
            snapshot_id, request.path, force=request.force
        )
        self.reply(branch_view(operation, path))


class RollBackHandler(GpuCkptHandler):
    """Handler for rollbacks."""

    @answers(OperationView, HTTPStatus.ACCEPTED, request=SnapshotRequest)
    async def post(self, kernel_id: str) -> None:
        """Start a rollback."""
        # A kernel that does not exist is reported before a body that is not valid.
        self.parts.operations.served(kernel_id)
        request = self.record(SnapshotRequest)
        operation = await self.parts.rollbacks.roll_back(
            kernel_id, request.snapshot_id, force=request.force
        )
        self.reply(operation_view(operation))


class ChangesHandler(GpuCkptHandler):
    """Handler for changes since a snapshot."""

    @answers(Changes)
    async def get(self, snapshot_id: str) -> None:
        """Show the changes since the snapshot was taken."""
        self.reply(await self.parts.link.daemon.send(calls.changes(snapshot_id)))


class NotebookHandler(GpuCkptHandler):
    """Handler for the notebook in a snapshot."""

    @answers(StoredNotebook)
    async def get(self, snapshot_id: str) -> None:
        """Show the cells and outputs as they were saved with the snapshot; outputs are trusted if this user has signed them."""
        self.reply(await self.parts.notebooks.notebook(snapshot_id))


ROUTES: dict[str, type[GpuCkptHandler]] = {
    "/kernels/{kernel_id}/roll_back": RollBackHandler,
    "/snapshots/{snapshot_id}/branch": BranchHandler,
    "/snapshots/{snapshot_id}/changes": ChangesHandler,
    "/snapshots/{snapshot_id}/notebook": NotebookHandler,
}
