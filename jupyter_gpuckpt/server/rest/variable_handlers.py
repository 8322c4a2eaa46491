"""The routes about variables; `server/openapi.yaml` describes them."""

from __future__ import annotations

from ... import calls
from ...errors import KernelStateConflict
from ..kernels.variables import compare
from .base_handler import GpuCkptHandler

#: How long it is looked at what the variables hold.
_FINGERPRINT_SECONDS = 1.0


class VariablesHandler(GpuCkptHandler):
    """A kernel's variables."""

    async def get(self, kernel_id: str) -> None:
        """List them, biggest first."""
        found = await self.parts.operations.variables(kernel_id)
        self.reply({"variables": found.listed})


class CompareHandler(GpuCkptHandler):
    """A snapshot's variables beside a kernel's."""

    async def get(self, snapshot_id: str) -> None:
        """Show what differs."""
        found = await self.parts.link.daemon.send(calls.snapshot_variables(snapshot_id))
        if found.variables is None:
            raise KernelStateConflict(
                "The variables of this snapshot are not known.",
                hint="It was taken of another kind of kernel, by the command line, or by an older version.",
            )
        kernel_id = self.get_query_argument("kernel_id", "") or found.kernel_id
        now = await self.parts.operations.variables(kernel_id, _FINGERPRINT_SECONDS)
        self.reply(compare(found.variables, now))


ROUTES: dict[str, type[GpuCkptHandler]] = {
    "/kernels/{kernel_id}/variables": VariablesHandler,
    "/snapshots/{snapshot_id}/compare": CompareHandler,
}
