"""The commands' actions: each sends requests to the daemon, prints the replies and returns an exit status."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ..errors import (
    ConfigurationError,
    GpuCkptError,
    KernelNotFound,
    SessionLost,
    StoreError,
)
from ..wire import calls
from ..wire.protocol import Kernel, Operation
from ..wire.snapshot_records import Snapshot, UploadState
from ..wire.states import ALIVE, KernelState
from . import (
    all_kernels,
    branch_command,
    diff_command,
    doctor_command,
    executing,
    hub_report,
    mcp_command,
    notice,
    printing,
    resuming,
    show_command,
    slurm_script,
    stats_command,
    summary,
    template_command,
)
from . import prune as pruning
from . import snapshots as keeping
from .daemon_calls import begin_save, daemon, finish
from .naming import fitting, one_kernel, one_snapshot
from .remote import move_command, remote_command, upload_command

if TYPE_CHECKING:
    from ..client import Client

#: Columns that are aligned to the right, so that values can be compared.
NUMBERS = frozenset({"PID", "MEMORY", "GPU", "STORED"})

#: A periodic save is late when twice its interval has passed, and this time for the save and its upload.
_GRACE_SECONDS = 30.0


class AtRisk(NamedTuple):
    """What would be lost of a kernel: its work of the last `seconds`; None: all of it. `is_late`: periodic saves should have saved it."""

    seconds: float | None
    is_late: bool = False

    def __str__(self) -> str:
        if self.seconds is None:
            return "all"
        return printing.duration(self.seconds) if self.seconds else "nothing"


def at_risk(kernel: Kernel, snapshots: Iterable[Snapshot], now: float) -> AtRisk:
    """Return what would be lost of a kernel. `snapshots`: of all kernels, newest first."""
    own = [one for one in snapshots if one.kernel_id == kernel.kernel_id]
    there = next(
        (one for one in own if any(up.state is UploadState.UPLOADED for up in one.uploads)), None
    )
    interval = kernel.autosave_seconds
    runs = kernel.state in ALIVE
    # Without periodic saves nobody looks for changes, so a kernel that runs may have changed all the time.
    has_changed = runs and (bool(kernel.changed_at) or not interval)
    if there is None:
        began = kernel.changed_at or now
        return AtRisk(None, bool(interval) and has_changed and _is_late(now - began, interval))
    if there is own[0]:
        seconds = now - (kernel.changed_at or there.created) if has_changed else 0.0
    else:
        seconds = (now if has_changed else own[0].created) - there.created
    return AtRisk(max(0.0, seconds), bool(interval) and runs and _is_late(seconds, interval))


def _is_late(seconds: float, interval_seconds: float) -> bool:
    return seconds > 2 * interval_seconds + _GRACE_SECONDS


def ps(args: Namespace) -> int:
    """List all kernels of this user."""
    with daemon() as client:
        kernels = client.send(calls.kernels())
        has_remotes = bool(kernels) and bool(client.send(calls.remotes()))
        wanted = {kernel.snapshot_id for kernel in kernels} - {""}
        taken = _snapshots(client) if wanted or has_remotes else []
        remote = _remote_only(taken, wanted)
    now = time.time()
    risks = {one.kernel_id: at_risk(one, taken, now) for one in kernels} if has_remotes else {}
    if args.json:
        found = {
            "remote_only": remote,
            "at_risk": {name: one._asdict() for name, one in risks.items()},
        }
        printing.say_json({"kernels": kernels, **{name: one for name, one in found.items() if one}})
        return 0
    short = printing.short_ids(kernel.kernel_id for kernel in kernels)
    snapshots = printing.short_ids(kernel.snapshot_id for kernel in kernels)
    rows = [
        [
            short[kernel.kernel_id],
            _state(kernel),
            kernel.name or "-",
            str(kernel.pid or "-"),
            printing.size(kernel.memory_bytes) if kernel.memory_bytes else "-",
            _gpu(kernel),
            (snapshots[kernel.snapshot_id] or "-")
            + (", not here" if kernel.snapshot_id in remote else ""),
            *([str(risks[kernel.kernel_id])] if risks else []),
        ]
        for kernel in kernels
    ]
    heads = ["KERNEL", "STATE", "NAME", "PID", "MEMORY", "GPU", "SNAPSHOT"]
    heads += ["AT RISK"] * bool(risks)
    printing.say(printing.table(heads, rows, right=NUMBERS) if rows else "No kernels.")
    for kernel in kernels:
        if kernel.error is not None and kernel.error.code == SessionLost.code:
            name, error = short[kernel.kernel_id], kernel.error
            printing.warn(f"Kernel {name}: {error.message} {error.hint}")
        if (risk := risks.get(kernel.kernel_id)) is not None and risk.is_late:
            printing.warn(
                f"Kernel {short[kernel.kernel_id]}: with this machine more would be lost than the last"
                f" {printing.duration(kernel.autosave_seconds)}, after which it is to be saved: {risk}."
                " `jupyter gpuckpt remote status` shows what waits, and why."
            )
    return 0


def _snapshots(client: Client) -> list[Snapshot]:
    with suppress(StoreError):  # kernels are listed even if the store cannot be read
        return client.send(calls.snapshots())
    return []


def _remote_only(found: list[Snapshot], snapshot_ids: set[str]) -> dict[str, str]:
    """Return those of these snapshots whose content is only in a remote, with the remote's name."""
    return {
        one.snapshot_id: one.remote_only
        for one in found
        if one.remote_only is not None and one.snapshot_id in snapshot_ids
    }


def _gpu(kernel: Kernel) -> str:
    busy = kernel.gpu_utilization
    used = printing.size(kernel.gpu_bytes) if kernel.gpu_bytes else "-"
    return used if busy is None else f"{used} {busy} %"


def _state(kernel: Kernel) -> str:
    progress = kernel.operation.progress if kernel.operation else None
    if progress and progress.total_bytes and kernel.state.value.endswith("ing"):
        return f"{kernel.state.value} {progress.done_bytes / progress.total_bytes:.0%}"
    if kernel.moved_to and kernel.state is KernelState.SUSPENDED:
        return f"moved to {kernel.moved_to}"
    return kernel.state.value


def save(args: Namespace) -> int:
    """Save a kernel and wait until the snapshot is complete."""
    return _operate(args, "saving", lambda client, kernel: begin_save(client, kernel, args.title))


def suspend(args: Namespace) -> int:
    """Suspend a kernel, or all, and wait until it is gone."""
    if args.all == bool(args.kernel):
        raise ConfigurationError(
            "Either one kernel or --all is suspended.",
            hint="`jupyter gpuckpt ps` lists the kernels.",
        )
    if args.all and args.title:
        raise ConfigurationError("--title goes with one kernel.")
    if args.all:
        return all_kernels.suspend(args)
    if args.within is not None:
        raise ConfigurationError("--within goes with --all.")
    return _operate(
        args,
        "suspending",
        lambda client, kernel: begin_save(client, kernel, args.title, call=calls.suspend),
    )


def park(args: Namespace) -> int:
    """Park a kernel and wait until the GPU is free."""
    return _operate(args, "parking", lambda client, kernel: client.send(calls.park(kernel)))


def resume(args: Namespace) -> int:
    """Resume a kernel, by its id or that of a snapshot, and wait until it runs."""
    revived: list[resuming.Revived] = []
    try:
        status = _operate(
            args,
            "resuming",
            lambda client, named: resuming.begin(
                client, named, revived, take_over=args.take_over, force=args.force
            ),
            find=lambda named, client: named,
        )
    except GpuCkptError:
        # A kernel that was created only for this resume would prevent its snapshot from being deleted.
        for one in revived:
            with daemon(waits=True) as client, suppress(GpuCkptError):
                client.send(calls.kill(one.kernel_id))
        raise
    for one in revived:
        path = one.write_connection_file()
        if path is not None and not args.json:
            printing.note(f"`jupyter console --existing {path}` connects to it.")
    return status


def _operate(
    args: Namespace,
    title: str,
    start: Callable[[Client, str], Operation],
    find: Callable[[str, Client], str] = one_kernel,
) -> int:
    with daemon(waits=True) as client:
        kernel_id = find(args.kernel, client)
        operation = start(client, kernel_id)
        try:
            operation = finish(client, operation, title)
        except KeyboardInterrupt:
            printing.warn(
                f"{title} continues in the daemon; `jupyter gpuckpt ps` shows its progress."
            )
            raise
    if args.json:
        printing.say_json({"operation": operation})
    else:
        printing.say(summary.of_operation(operation))
        for warning in operation.result.warnings if operation.result else []:
            printing.warn(warning)
    return 0


def end(args: Namespace) -> int:
    """End a kernel for good, after a question on a terminal; its snapshots stay."""
    with daemon(waits=True) as client:
        kernel = client.send(calls.kernel(one_kernel(args.kernel, client)))
        snapshots = client.send(calls.snapshots(kernel.kernel_id))
        saved = snapshots[0] if snapshots else None
        text = (
            f"kernel {kernel.kernel_id} ({printing.printable(kernel.name or '-')}, {kernel.state})?"
        )
        if kernel.state in ALIVE:
            since = (
                f" since its last snapshot ({printing.age(time.time() - saved.created)})"
                if saved
                else ""
            )
            text += f" What it did{since} is lost."
        printing.confirm(f"End {text}", yes=args.yes, kept="It was not ended.", required=True)
        client.send(calls.kill(kernel.kernel_id, by_user=True))
    if args.json:
        printing.say_json({"ended": kernel.kernel_id})
        return 0
    printing.say(f"Ended kernel {kernel.kernel_id}.")
    if saved is not None:
        printing.note(
            f"`jupyter gpuckpt resume {kernel.kernel_id}` brings it back from its last snapshot."
        )
    return 0


def list_snapshots(args: Namespace) -> int:
    """List snapshots, newest first."""
    with daemon() as client:
        found = client.send(calls.snapshots(deleted=args.deleted))
    if args.kernel:
        # Snapshots outlive their kernels, so kernels are taken from the snapshots.
        kernel_ids = fitting(args.kernel, {info.kernel_id: info.name for info in reversed(found)})
        if not kernel_ids:
            raise KernelNotFound(
                f"There is no snapshot of a kernel {args.kernel!r}.",
                hint="`jupyter gpuckpt list` shows all snapshots.",
            )
        found = [info for info in found if info.kernel_id in kernel_ids]
    if args.json:
        printing.say_json({"snapshots": found})
        return 0
    snapshots = printing.short_ids(info.snapshot_id for info in found)
    kernels = printing.short_ids(info.kernel_id for info in found)
    rows = [
        [
            snapshots[info.snapshot_id],
            kernels[info.kernel_id],
            info.reason,
            info.name or "-",
            info.heading or "-",
            printing.age(time.time() - info.created),
            printing.size(info.sizes.raw_bytes),
            printing.size(info.sizes.gpu_bytes) if info.sizes.gpu_bytes else "-",
            printing.size(info.sizes.stored_bytes),
        ]
        for info in found
    ]
    heads = ["SNAPSHOT", "KERNEL", "MADE BY", "NAME", "TITLE", "CREATED", "MEMORY", "GPU", "STORED"]
    if any(info.uploads or info.remote_only is not None for info in found):
        heads.append("REMOTES")
        rows = [[*row, upload_command.as_text(info)] for row, info in zip(rows, found, strict=True)]
    printing.say(printing.table(heads, rows, right=NUMBERS) if rows else "No snapshots.")
    return 0


def remove(args: Namespace) -> int:
    """Delete snapshots one after the other, until one is refused."""
    with daemon(waits=True) as client:
        infos = {info.snapshot_id: info for info in client.send(calls.snapshots())}
        # All names are resolved before any snapshot is deleted.
        wanted = list(
            dict.fromkeys(one_snapshot(text, [*infos.values()]) for text in args.snapshot)
        )
        marked = [one for one in wanted if infos[one].pinned or infos[one].title]
        if not args.yes and (marked or sys.stdin.isatty()):
            for snapshot_id in wanted:
                printing.note(summary.of_snapshot(infos[snapshot_id], now=time.time()))
        those = f"these {len(wanted)} snapshots" if len(wanted) > 1 else "this snapshot"
        if marked:
            those += (
                f", of which {len(marked)} " + ("is" if len(marked) == 1 else "are")
                if wanted[1:]
                else ", which is"
            )
            those += " pinned or titled"
        printing.confirm(
            f"Delete {those}?", yes=args.yes, kept="Nothing was deleted.", required=bool(marked)
        )
        for snapshot_id in wanted:
            client.send(calls.delete_snapshot(snapshot_id))
            if not args.json:
                printing.say(f"Deleted snapshot {snapshot_id}.")
        kept = [info.kept_until or 0.0 for info in client.send(calls.snapshots(deleted=True))]
    if kept and not args.json:
        left = printing.duration(max(0.0, max(kept) - time.time()))
        printing.note(f"`jupyter gpuckpt undelete` brings it back, for {left}.")
        if there := sorted({up.remote for one in wanted for up in infos[one].uploads}):
            places = ", ".join(there)
            printing.note(
                f"After that it is deleted in remotes as well ({places}), unless it is pinned there or another machine needs it."
            )
    if args.json:
        printing.say_json({"deleted": wanted})
    return 0


def _with_daemon(action: Callable[[Namespace, Client], int]) -> Callable[[Namespace], int]:
    """Return an action that calls `action` of another module with a client."""

    def run(args: Namespace) -> int:
        with daemon(waits=True) as client:
            return action(args, client)

    return run


ACTIONS: dict[str, Callable[[Namespace], int]] = {
    "doctor": doctor_command.run,
    "ps": ps,
    "save": save,
    "suspend": suspend,
    "park": park,
    "resume": resume,
    "branch": branch_command.run,
    "end": end,
    "move": move_command.run,
    "list": list_snapshots,
    "show": show_command.run,
    "diff": diff_command.run,
    "rm": remove,
    "undelete": _with_daemon(keeping.undelete),
    "note": _with_daemon(keeping.note),
    "pin": _with_daemon(keeping.pin),
    "unpin": _with_daemon(keeping.unpin),
    "verify": _with_daemon(keeping.verify),
    "export": _with_daemon(keeping.export),
    "import": _with_daemon(keeping.import_archive),
    "stats": stats_command.run,
    "execute": executing.execute,
    "hub-report": hub_report.run,
    "mcp": mcp_command.run,
    "notice": notice.run,
    "prune": _with_daemon(pruning.run),
    "remote": remote_command.run,
    "slurm-script": slurm_script.run,
    "template": template_command.run,
}
