"""The command `jupyter gpuckpt diff`, which compares the variables of two moments."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import TYPE_CHECKING, NamedTuple

from ..errors import KernelStateConflict
from ..wire import calls
from ..wire.manifest_records import Variable, Variables
from ..wire.protocol import Kernel
from ..wire.snapshot_records import Snapshot
from ..wire.states import KernelState
from ..wire.variable_changes import Comparison, compare
from . import printing, summary
from .daemon_calls import daemon
from .naming import LATEST, kernel_or_snapshot, neither

if TYPE_CHECKING:
    from ..client import Client


class _Moment(NamedTuple):
    """A moment of a kernel: a snapshot of it, or now if `snapshot` is None."""

    kernel_id: str
    snapshot: Snapshot | None
    kernel: Kernel | None


def run(args: Namespace) -> int:
    """Print what differs between the variables of two moments."""
    with daemon() as client:
        kernels = {kernel.kernel_id: kernel for kernel in client.send(calls.kernels())}
        snapshots = client.send(calls.snapshots())
        first, second = _moments(args.first, args.second, kernels, snapshots)
        then, now = _variables(client, first), _variables(client, second)
    found = compare(then, now)
    if args.json:
        printing.say_json({"from": _as_json(first), "to": _as_json(second), "comparison": found})
        return 0
    printing.note(f"From {_as_text(first)}")
    printing.note(f"to   {_as_text(second)}")
    printing.say(_table(found))
    return 0


def _moments(
    first: str, second: str, kernels: dict[str, Kernel], snapshots: list[Snapshot]
) -> tuple[_Moment, _Moment]:
    """Return the two moments that the arguments name. `latest` beside another name means the latest snapshot of the kernel named there."""
    if first == LATEST and second and second != LATEST:
        after, before = _moments(second, first, kernels, snapshots)
        return before, after
    begin = _moment(first, kernels, snapshots)
    if not second:
        return begin, _now(begin.kernel_id, kernels, snapshots)
    if second == LATEST:
        snapshots = [one for one in snapshots if one.kernel_id == begin.kernel_id]
    return begin, _moment(second, kernels, snapshots)


def _moment(text: str, kernels: dict[str, Kernel], snapshots: list[Snapshot]) -> _Moment:
    wanted = kernel_or_snapshot(text, [*kernels.values()], snapshots)
    for one in snapshots:
        if one.snapshot_id == wanted:
            return _Moment(one.kernel_id, one, None)
    if not wanted:
        raise neither(text)
    return _now(wanted, kernels, snapshots)


def _now(kernel_id: str, kernels: dict[str, Kernel], snapshots: list[Snapshot]) -> _Moment:
    """Return the moment of a kernel that is its state now: its last snapshot, if it does not run."""
    kernel = kernels.get(kernel_id)
    if kernel is not None and kernel.state is KernelState.RUNNING:
        return _Moment(kernel_id, None, kernel)
    for one in snapshots:
        if one.snapshot_id == kernel.snapshot_id if kernel else one.kernel_id == kernel_id:
            return _Moment(kernel_id, one, kernel)
    state = kernel.state if kernel else "not there"
    raise KernelStateConflict(
        f"Kernel {kernel_id} is {state}, and has no snapshot.", hint="Wait until it runs."
    )


def _variables(client: Client, moment: _Moment) -> Variables:
    if moment.snapshot is not None:
        found = client.send(calls.snapshot_variables(moment.snapshot.snapshot_id)).variables
        if found is None:
            raise KernelStateConflict(
                f"The variables of snapshot {moment.snapshot.snapshot_id} are not known.",
                hint="Only snapshots of IPython kernels of Jupyter servers have them, if the kernel answered then.",
            )
        return found
    from ..client.kernel_variables import variables_now  # noqa: PLC0415 - too slow for --help

    now = variables_now(moment.kernel_id, idle_only=True)
    if now is None:
        raise KernelStateConflict(
            f"Kernel {moment.kernel_id} does not tell its variables.",
            hint="Wait until its cell has ended. Only IPython kernels of Jupyter servers tell them.",
        )
    return now


def _as_json(moment: _Moment) -> dict[str, str]:
    snapshot_id = moment.snapshot.snapshot_id if moment.snapshot else ""
    return {"kernel_id": moment.kernel_id, "snapshot_id": snapshot_id}


def _as_text(moment: _Moment) -> str:
    if moment.snapshot is not None:
        return f"snapshot {summary.of_snapshot(moment.snapshot, now=time.time())}"
    name = moment.kernel.name if moment.kernel else ""
    return f"kernel {moment.kernel_id} of {printing.printable(name or '-')}, now"


def _table(found: Comparison) -> str:
    rows = [
        *(_row("added", one) for one in found.added),
        *(_row("removed", one) for one in found.removed),
        *(_row("changed", one.now, one.then) for one in found.changed),
        *(["perhaps changed", name, "", "", ""] for name in found.unknown),
    ]
    lines = (
        [printing.table(["", "NAME", "TYPE", "SIZE", "VALUE"], rows, right={"SIZE"})]
        if rows
        else []
    )
    return "\n".join([*lines, f"{found.same} unchanged."])


def _row(what: str, one: Variable, before: Variable | None = None) -> list[str]:
    size, value = printing.size(one.bytes) if one.bytes else "-", one.summary
    if before is not None and before.summary != one.summary:
        value = f"{before.summary or '?'} -> {one.summary or '?'}"
    kind = one.kind if before is None or before.kind == one.kind else f"{before.kind} -> {one.kind}"
    return [what, one.name, kind, size, value or "-"]
