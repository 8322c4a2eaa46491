"""The variables of a kernel now, and their comparison with those of a snapshot.

Covers: the check that a kernel can answer, the differences between two moments. Does not cover: how variables are read
(`kernel_agent/variables/`), how they get into a snapshot (`kernel_operations.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...errors import KernelBusy, KernelStateConflict
from ...wire.manifest_records import Variable, Variables
from ...wire.states import KernelState
from . import agent_calls

if TYPE_CHECKING:
    from jupyter_server.services.kernels.kernelmanager import ServerKernelManager

    from ..messages.served_kernel import ServedKernel


class Change(msgspec.Struct, frozen=True):
    """A variable whose value has changed."""

    name: str
    then: Variable
    now: Variable


class Comparison(msgspec.Struct, frozen=True):
    """The differences between two moments. `unknown`: variables that may have changed. `same`: the number of unchanged ones."""

    added: list[Variable] = []
    removed: list[Variable] = []
    changed: list[Change] = []
    unknown: list[str] = []
    same: int = 0


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


def compare(then: Variables, now: Variables) -> Comparison:
    """Compare the variables of two moments."""
    before = {variable.name: variable for variable in then.listed}
    after = {variable.name: variable for variable in now.listed}
    changed, unknown, same = list[Change](), list[str](), 0
    for name in sorted(before.keys() & after.keys()):
        prints = then.fingerprints.get(name, ""), now.fingerprints.get(name, "")
        if _looks_different(before[name], after[name]) or (all(prints) and len(set(prints)) > 1):
            changed.append(Change(name, before[name], after[name]))
        elif all(prints):
            same += 1
        else:
            unknown.append(name)
    added = [variable for variable in now.listed if variable.name not in before]
    removed = [variable for variable in then.listed if variable.name not in after]
    if not then.complete:  # it may have been among those that are not listed
        unknown += [variable.name for variable in added]
        added = []
    if not now.complete:
        unknown += [variable.name for variable in removed]
        removed = []
    return Comparison(added, removed, changed, unknown, same)


def _looks_different(first: Variable, second: Variable) -> bool:
    # A summary may be missing because there was no time for it.
    comparable = bool(first.summary and second.summary)
    return first.kind != second.kind or (comparable and first.summary != second.summary)
