"""The variables of a kernel now, if it can answer.

How variables are read: `kernel_agent/variables/`; how they get into a snapshot: `kernel_operations.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import KernelBusy, KernelStateConflict
from ...wire.manifest_records import Variables
from ...wire.states import KernelState
from . import agent_calls

if TYPE_CHECKING:
    from jupyter_server.services.kernels.kernelmanager import ServerKernelManager

    from ..messages.served_kernel import ServedKernel


async def variables_of(
    manager: ServerKernelManager, served: ServedKernel, fingerprint_seconds: float
) -> Variables:
    """Return a kernel's current variables. Raises KernelStateConflict if it does not run or has no agent, KernelBusy if a cell runs."""
    if served.state is not KernelState.RUNNING or not served.gate_is_open:
        raise KernelStateConflict(
            f"The kernel is {served.state}: its variables cannot be read.",
            hint="Resume it first, or wait until it is running.",
        )
    if not served.has_agent:
        raise KernelStateConflict(
            "The variables of this kernel are not known.",
            hint="Only IPython kernels that were started by a server report them.",
        )
    if served.output.runs_cell:
        raise KernelBusy(
            "The kernel is busy: its variables are changing.", hint="Wait for its cell to end."
        )
    found = await agent_calls.variables(manager, fingerprint_seconds)
    if found is None:
        raise KernelStateConflict(
            "The kernel does not report its variables.",
            hint="It may be busy with something.",
        )
    return found
