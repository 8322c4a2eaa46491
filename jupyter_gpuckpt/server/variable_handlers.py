"""The routes about variables; `openapi.yaml` beside this file describes them."""

from __future__ import annotations

from typing import Any

import msgspec
from jupyter_server.auth.decorator import authorized
from tornado import web

from ..errors import KernelStateConflict
from ..model import Inventory
from .base_handler import GpuCkptHandler
from .variables import compare

#: How long it is looked at what the variables hold.
_FINGERPRINT_SECONDS = 1.0


class VariablesHandler(GpuCkptHandler):
    """A kernel's variables."""

    @web.authenticated
    @authorized
    async def get(self, kernel_id: str) -> None:
        """List them, biggest first."""
        found = await self.extension.operations.inventory(kernel_id)
        self.reply({"variables": found.variables})


class CompareHandler(GpuCkptHandler):
    """A snapshot's variables beside a kernel's."""

    @web.authenticated
    @authorized
    async def get(self, snapshot_id: str) -> None:
        """Show what differs."""
        manifest = await self.extension.daemon.manifest_summary(snapshot_id)
        then = _inventory(manifest)
        kernel_id = self.get_query_argument("kernel_id", "") or manifest["info"]["kernel_id"]
        now = await self.extension.operations.inventory(kernel_id, _FINGERPRINT_SECONDS)
        self.reply(compare(then, now))


def _inventory(manifest: dict[str, Any]) -> Inventory:
    told = manifest.get("inventory")
    if told is None:
        raise KernelStateConflict(
            "The variables of this snapshot are not known.",
            hint="It was taken of another kind of kernel, by the command line, or by an older version.",
        )
    return msgspec.convert(told, Inventory)


ROUTES: dict[str, type[GpuCkptHandler]] = {
    "/kernels/{kernel_id}/variables": VariablesHandler,
    "/snapshots/{snapshot_id}/compare": CompareHandler,
}
