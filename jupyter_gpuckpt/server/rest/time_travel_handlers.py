"""The routes of branches and of going back; `server/openapi.yaml` describes them."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from ... import calls
from ..views import operation_view
from .base_handler import GpuCkptHandler


class PathRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a branch: where its notebook is to be; empty: beside the snapshot's."""

    path: str = ""


class SnapshotRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a roll back: to which snapshot."""

    snapshot_id: str


class BranchHandler(GpuCkptHandler):
    """Second kernels."""

    async def post(self, snapshot_id: str) -> None:
        """Start bringing one up."""
        request = self.record(PathRequest)
        operation, path = await self.parts.branching.branch(snapshot_id, request.path)
        self.reply({**operation_view(operation), "path": path}, HTTPStatus.ACCEPTED)


class RollBackHandler(GpuCkptHandler):
    """Ways back."""

    async def post(self, kernel_id: str) -> None:
        """Start one."""
        # That there is no such kernel is said before what the body lacks.
        self.parts.operations.served(kernel_id)
        request = self.record(SnapshotRequest)
        operation = await self.parts.rollbacks.roll_back(kernel_id, request.snapshot_id)
        self.reply(operation_view(operation), HTTPStatus.ACCEPTED)


class ChangesHandler(GpuCkptHandler):
    """What became since a snapshot."""

    async def get(self, snapshot_id: str) -> None:
        """Look now."""
        self.reply(await self.parts.link.daemon.send(calls.changes(snapshot_id)))


ROUTES: dict[str, type[GpuCkptHandler]] = {
    "/kernels/{kernel_id}/roll_back": RollBackHandler,
    "/snapshots/{snapshot_id}/branch": BranchHandler,
    "/snapshots/{snapshot_id}/changes": ChangesHandler,
}
