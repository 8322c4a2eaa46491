"""The routes about remotes and their content, one class each."""

from __future__ import annotations

from http import HTTPStatus

from ...wire.remote_listings import FetchRequest, MoveRequest
from .daemon_handler import BaseHandler


class RemotesHandler(BaseHandler):
    """Handler for all remotes."""

    async def get(self) -> None:
        """List the remotes, without a request to any of them."""
        self.reply(await self.daemon.remote_sessions.remotes())


class RemoteSessionsHandler(BaseHandler):
    """Handler for the remote sessions of a remote."""

    async def get(self, remote: str) -> None:
        """List the remote sessions of a remote with their snapshots."""
        self.reply(await self.daemon.remote_sessions.sessions(remote))


class RemoteSnapshotHandler(BaseHandler):
    """Handler for one snapshot in a remote."""

    async def get(self, remote: str, snapshot_id: str) -> None:
        """Return what a fetch would move, and whether the kernel could be resumed here."""
        session_id = self.get_query_argument("session_id", "")
        self.reply(await self.daemon.remote_sessions.estimate(remote, snapshot_id, session_id))


class FetchHandler(BaseHandler):
    """Handler for fetches."""

    async def post(self, remote: str, snapshot_id: str) -> None:
        """Start a fetch."""
        request = self.record(FetchRequest)
        operation = await self.daemon.remote_sessions.fetch(remote, snapshot_id, request)
        self.reply(operation.public(), HTTPStatus.ACCEPTED)


class MoveHandler(BaseHandler):
    """Handler for moves."""

    async def post(self, kernel_id: str) -> None:
        """Start moving a suspended kernel."""
        operation = await self.daemon.moves.move(kernel_id, self.record(MoveRequest))
        self.reply(operation.public(), HTTPStatus.ACCEPTED)


ROUTES: dict[str, type[BaseHandler]] = {
    "/remotes": RemotesHandler,
    "/remotes/{remote}/sessions": RemoteSessionsHandler,
    "/remotes/{remote}/snapshots/{snapshot_id}": RemoteSnapshotHandler,
    "/remotes/{remote}/snapshots/{snapshot_id}/fetch": FetchHandler,
    "/kernels/{kernel_id}/move": MoveHandler,
}
