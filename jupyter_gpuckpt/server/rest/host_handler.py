"""The routes about this machine: the report on it, and notices that it will go."""

from __future__ import annotations

from ...client import AsyncClient
from ...wire import calls
from ...wire.protocol import HostReport
from ..rest_records import NoticesView, notice_view
from .openapi import answers
from .rest_handler import GpuCkptHandler


class HostHandler(GpuCkptHandler):
    """A handler for the report on this machine."""

    @answers(HostReport)
    async def get(self) -> None:
        """Answer with the doctor's report; without a connection, a daemon is started for it."""
        if self.connected_link is not None:
            self.reply(await self.connected_link.daemon.send(calls.host()))
            return
        client = await AsyncClient.connect(self.daemon_settings)
        try:
            self.reply(await client.send(calls.host()))
        finally:
            await client.close()


class NoticesHandler(GpuCkptHandler):
    """Handler for notices that this machine will go."""

    _track_activity = False

    @answers(NoticesView)
    async def get(self) -> None:
        """List the standing notices; changes come as events of the schema `.../notice/v1`."""
        link = self.connected_link
        standing = link.mirror.notices.values() if link is not None else ()
        self.reply(NoticesView(notices=[notice_view(notice) for notice in standing]))


ROUTES: dict[str, type[GpuCkptHandler]] = {"/host": HostHandler, "/notices": NoticesHandler}
