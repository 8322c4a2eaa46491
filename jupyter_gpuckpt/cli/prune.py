"""The command `jupyter gpuckpt prune`, which removes snapshots that no rule keeps (`store/retention.py`)."""

from __future__ import annotations

import argparse
import re
import time
from typing import TYPE_CHECKING, TypeVar

from ..errors import ConfigurationError
from ..wire import calls
from ..wire.retention_policy import MAX_BYTES, MAX_COUNT, MAX_SECONDS
from ..wire.snapshot_records import PruneReport, RetentionPolicy, Verdict
from . import printing
from .parser import Parser

if TYPE_CHECKING:
    from argparse import Namespace

    from ..client import Client

SUMMARY = "delete the snapshots that no rule keeps"
DESCRIPTION = """\
A snapshot is kept if it is among the last N of its kernel, or was taken within TIME before the kernel's latest one. Then the oldest
are deleted until all together take no more than SIZE. Snapshots taken by hand are kept without --manual-too; pinned ones, and those
that a kernel needs, are always kept. The same happens automatically after every save of a Jupyter server, by its settings
GpuCkptDaemon.keep_last, keep_suspends, keep_within and max_bytes.
"""

_UNITS_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_POWERS = " kmgt"
#: The most digits of a number of snapshots, and how much of a wrong value is shown.
_MAX_DIGITS, _SHOWN = 20, 40
_Number = TypeVar("_Number", int, float)


def add_arguments(to: Parser) -> None:
    """Add the arguments of `prune`."""
    add_rules(to, "kernel")


def add_rules(to: Parser, of: str) -> None:
    """Add the rules of retention, which apply to each kernel or session (`of`), and what the command does with them."""
    to.add_argument(
        "--keep-last", metavar="N", type=count, default=0, help=f"keep the last N of every {of}"
    )
    to.add_argument(
        "--keep-within",
        metavar="TIME",
        type=seconds,
        default=0.0,
        help=f"keep those taken within TIME before the {of}'s latest: 90m, 12h, 7d, 2w",
    )
    to.add_argument(
        "--max-size",
        metavar="SIZE",
        type=size_bytes,
        default=0,
        help="then delete the oldest until all take no more than SIZE: 500M, 20G, 1.5T",
    )
    to.flag("--manual-too", "also remove snapshots that users took themselves")
    to.flag("-n", "--dry-run", "only list the snapshots that would be deleted")
    to.flag("-y", "--yes", "do not ask")


def policy_of(args: Namespace) -> RetentionPolicy:
    """Return the rules that the arguments give. Raises ConfigurationError if they remove nothing."""
    policy = RetentionPolicy(
        args.keep_last, args.keep_within, args.max_size, manual_too=args.manual_too
    )
    if policy.removes_nothing:
        raise ConfigurationError(
            "No rule is given for the snapshots to keep.",
            hint="Give --keep-last, --keep-within or --max-size; --dry-run shows what they would do.",
        )
    return policy


def run(args: Namespace, client: Client) -> int:
    """Prune snapshots, after a question on a terminal; print which were deleted and which are kept."""
    policy = policy_of(args)
    report = client.send(calls.prune(policy, dry_run=True))
    doomed = sum(verdict.removed for verdict in report.verdicts)
    if not args.json:
        printing.say(_table(report) if report.verdicts else "No snapshots.")
    if doomed and not args.dry_run:
        confirm(args, doomed)
        report = client.send(calls.prune(policy))
        doomed = sum(verdict.removed for verdict in report.verdicts)
    if args.json:
        printing.say_json({"dry_run": args.dry_run, "prune": report})
    elif report.verdicts:
        printing.say(_summary(report, doomed, dry_run=args.dry_run))
    return 0


def confirm(args: Namespace, doomed: int) -> None:
    """Ask on a terminal whether snapshots are to be deleted, unless --yes is given. Raises OperationCancelled."""
    those = f"these {doomed} snapshots" if doomed > 1 else "this snapshot"
    printing.confirm(f"Delete {those} for ever?", yes=args.yes, kept="Nothing was deleted.")


def _summary(report: PruneReport, doomed: int, *, dry_run: bool) -> str:
    stay = f"{len(report.verdicts) - doomed} stay."
    freed = printing.size(max(0, report.freed_bytes))
    if dry_run:
        return f"\n{doomed} would be deleted, {stay} About {freed} would become free."
    return f"\n{doomed} deleted, {stay} {freed} became free."


def _table(report: PruneReport) -> str:
    infos = [verdict.snapshot for verdict in report.verdicts]
    snapshots = printing.short_ids(info.snapshot_id for info in infos)
    kernels = printing.short_ids(info.kernel_id for info in infos)
    now = time.time()

    def row(verdict: Verdict) -> list[str]:
        info = verdict.snapshot
        return [
            snapshots[info.snapshot_id],
            kernels[info.kernel_id],
            info.cause.value,
            info.name or "-",
            printing.age(now - info.created),
            printing.size(info.sizes.stored_bytes),
            "delete" if verdict.removed else "keep",
            verdict.reason,
        ]

    heads = ["SNAPSHOT", "KERNEL", "CAUSE", "NAME", "CREATED", "STORED", "", "WHY"]
    return printing.table(heads, [row(one) for one in report.verdicts], right={"STORED"})


def count(text: str) -> int:
    """Convert a number of snapshots."""
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise argparse.ArgumentTypeError(f"not a number of snapshots: {text[:_SHOWN]!r}")
    return _at_most(int(text), MAX_COUNT, text)


def seconds(text: str) -> float:
    """Convert texts like `90m`, `12h`, `7d`, `1w2d` to seconds."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(s|m|h|d|w)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(
            f"not a time such as 90m, 12h, 7d or 2w: {text[:_SHOWN]!r}"
        )
    found = sum(float(number) * _UNITS_SECONDS[unit] for number, unit in parts)
    return _at_most(found, MAX_SECONDS, text)


def size_bytes(text: str) -> int:
    """Convert texts like `500M`, `20G`, `20GB` (powers of 1000, as sizes are shown), `20GiB` (powers of 1024) to bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]?)(i?)b?", text.lower())
    if found is None or (found[3] and not found[2]):
        raise argparse.ArgumentTypeError(
            f"not a size such as 500M, 20G or 20GiB: {text[:_SHOWN]!r}"
        )
    unit = (1024 if found[3] else 1000) ** _POWERS.index(found[2] or " ")
    return int(_at_most(float(found[1]) * unit, MAX_BYTES, text))


def _at_most(number: _Number, limit: float, text: str) -> _Number:
    if number > limit:
        raise argparse.ArgumentTypeError(f"too large: {text[:_SHOWN]!r}")
    return number
