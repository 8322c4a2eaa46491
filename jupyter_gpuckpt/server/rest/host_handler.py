"""The route about the machine."""

from __future__ import annotations

from ... import calls
from ...client import AsyncClient
from ...protocol import HostReport
from .base_handler import GpuCkptHandler
from .openapi import answers


class HostHandler(GpuCkptHandler):
    """Handler for what this machine can do."""

    @answers(HostReport)
    async def get(self) -> None:
        """Answer the doctor's report, of a daemon that is started for it where there is no connection."""
        if self.connected_link is not None:
            self.reply(await self.connected_link.daemon.send(calls.host()))
            return
        client = await AsyncClient.connect(self.daemon_settings)
        try:
            self.reply(await client.send(calls.host()))
        finally:
            await client.close()


ROUTES: dict[str, type[GpuCkptHandler]] = {"/host": HostHandler}
