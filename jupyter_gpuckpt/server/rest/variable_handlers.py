"""The routes about variables."""

from __future__ import annotations

from ...errors import KernelStateConflict
from ...wire import calls
from ..kernels.variables import Comparison, compare
from ..rest_records import VariablesView
from .openapi import answers
from .rest_handler import GpuCkptHandler

#: The time for computing fingerprints of the variables' values, in seconds.
_FINGERPRINT_SECONDS = 1.0


class VariablesHandler(GpuCkptHandler):
    """Handler for a kernel's variables."""

    @answers(VariablesView)
    async def get(self, kernel_id: str) -> None:
        """List a kernel's variables, the biggest first."""
        found = await self.parts.operations.variables(kernel_id)
        self.reply(VariablesView(variables=found.listed))


class CompareHandler(GpuCkptHandler):
    """Handler for comparisons of a snapshot's variables with a kernel's."""

    @answers(Comparison, query={"kernel_id": "By default the kernel of the snapshot."})
    async def get(self, snapshot_id: str) -> None:
        """Show which variables differ."""
        found = await self.parts.link.daemon.send(calls.snapshot_variables(snapshot_id))
        if found.variables is None:
            raise KernelStateConflict(
                "The variables of this snapshot are not known.",
                hint="It was taken of another kind of kernel, or by the command line.",
            )
        kernel_id = self.get_query_argument("kernel_id", "") or found.kernel_id
        now = await self.parts.operations.variables(kernel_id, _FINGERPRINT_SECONDS)
        self.reply(compare(found.variables, now))


ROUTES: dict[str, type[GpuCkptHandler]] = {
    "/kernels/{kernel_id}/variables": VariablesHandler,
    "/snapshots/{snapshot_id}/compare": CompareHandler,
}
