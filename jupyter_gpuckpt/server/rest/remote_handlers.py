"""The routes about remotes and the snapshots in them."""

from __future__ import annotations

from http import HTTPStatus

from ...wire import calls
from ...wire.remote_listings import FetchEstimate, FetchRequest, RemoteListing
from ..rest_records import OperationView, RemotesView, operation_view
from .openapi import answers
from .rest_handler import GpuCkptHandler


class RemotesHandler(GpuCkptHandler):
    """Handler for all remotes."""

    @answers(RemotesView)
    async def get(self) -> None:
        """List the remotes in their last known state; no request goes to a remote."""
        self.reply(RemotesView(remotes=await self.parts.link.daemon.send(calls.remotes())))


class RemoteSessionsHandler(GpuCkptHandler):
    """Handler for the remote sessions of a remote."""

    @answers(RemoteListing)
    async def get(self, remote: str) -> None:
        """List the snapshots in a remote, by session of a notebook, the newest first."""
        self.reply(await self.parts.link.daemon.send(calls.remote_sessions(remote)))


class RemoteSnapshotHandler(GpuCkptHandler):
    """Handler for one snapshot in a remote."""

    @answers(
        FetchEstimate,
        query={"session_id": "The remote session that lists it; without it, all are searched."},
    )
    async def get(self, remote: str, snapshot_id: str) -> None:
        """Show the size of a fetch, and the reasons why the kernel could not be resumed here."""
        session_id = self.get_query_argument("session_id", "")
        call = calls.fetch_estimate(remote, snapshot_id, session_id)
        self.reply(await self.parts.link.daemon.send(call))


class FetchHandler(GpuCkptHandler):
    """Handler for fetches."""

    @answers(OperationView, HTTPStatus.ACCEPTED, request=FetchRequest)
    async def post(self, remote: str, snapshot_id: str) -> None:
        """Start fetching a snapshot; refuse it if its kernel could not be resumed here, unless forced."""
        call = calls.fetch(remote, snapshot_id, self.record(FetchRequest))
        self.reply(operation_view(await self.parts.link.daemon.send(call)))


ROUTES: dict[str, type[GpuCkptHandler]] = {
    "/remotes": RemotesHandler,
    "/remotes/{remote}/sessions": RemoteSessionsHandler,
    "/remotes/{remote}/snapshots/{snapshot_id}": RemoteSnapshotHandler,
    "/remotes/{remote}/snapshots/{snapshot_id}/fetch": FetchHandler,
}
