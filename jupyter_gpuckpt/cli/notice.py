"""The command `jupyter gpuckpt notice`, with which hooks tell this user's daemons that this machine goes, and wait for safe kernels."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Awaitable, Sequence

from ..errors import ConfigurationError, GpuCkptError
from ..wire import calls
from ..wire.plurals import counted
from ..wire.progress import ProgressRecord
from ..wire.reclaim_records import NoticeRequest, NoticesReport
from ..wire.statuses import SOME_NOT_SAVED
from . import printing
from .all_kernels import daemons
from .parser import Parser

SUMMARY = "suspend and upload all kernels, because this machine goes"
DESCRIPTION = (
    "For a hook that runs before a container or job is ended (preStop of Kubernetes, a trap for Slurm's signal). Servers suspend their"
    " kernels as they would by themselves, and snapshots are uploaded to remotes. The command ends when all kernels are safe, or when the"
    f" time is over, with exit status {SOME_NOT_SAVED} if some are not safe."
)
_LOOK_SECONDS = 0.3


def add_arguments(to: Parser) -> None:
    """Add the arguments of the command."""
    to.seconds("--within", "the time until the machine goes: 25s, 2m")
    to.flag("--disk-survives", "the snapshots here can be read afterwards: do not wait for uploads")
    to.add_argument(
        "--name", default="hook", help="the name of this notice among others (default: %(default)s)"
    )
    to.flag("--no-wait", "only tell the daemons")
    to.flag("--withdraw", "the machine stays after all")


def run(args: argparse.Namespace) -> int:
    """Give or withdraw a notice; return `SOME_NOT_SAVED` if kernels are not safe at its end."""
    if args.within is None and not args.withdraw:
        raise ConfigurationError(
            "The time until this machine goes is missing.", hint="Give it, as in `--within 25s`."
        )
    request = NoticeRequest(
        args.name, args.within or 0.0, args.disk_survives, withdrawn=args.withdraw
    )
    waits = not (args.no_wait or args.withdraw)
    report, all_seen = asyncio.run(_give(request, waits=waits))
    if args.json:
        printing.say_json(report)
    elif waits:
        _show(report, disk_survives=args.disk_survives)
    return SOME_NOT_SAVED if not all_seen or (waits and report.unsafe) else 0


async def _give(request: NoticeRequest, *, waits: bool) -> tuple[NoticesReport, bool]:
    """Give the notice to all daemons; return their reports as one, and whether all daemons could be reached."""
    deadline = time.monotonic() + request.within_seconds
    async with contextlib.AsyncExitStack() as stack:
        clients, all_seen = await daemons(stack)
        gave = calls.give_notice(request)
        report, reached = await _sum_of([client.send(gave) for client in clients])
        with printing.ProgressBar("waiting for kernels") as bar:
            began, most = time.monotonic(), len(report.unsafe)
            while waits and report.unsafe and time.monotonic() < deadline:
                await asyncio.sleep(_LOOK_SECONDS)
                asked = [client.send(calls.notices()) for client in clients]
                report, reached = await _sum_of(asked)
                stage = f"{most - len(report.unsafe)} of {counted(most, 'kernel')} safe"
                bar.show(ProgressRecord(stage, seconds=time.monotonic() - began))
    return report, all_seen and reached


async def _sum_of(answers: Sequence[Awaitable[NoticesReport]]) -> tuple[NoticesReport, bool]:
    """Return the reports of all daemons as one, and whether all daemons have answered."""
    found = await asyncio.gather(*answers, return_exceptions=True)
    reports = [one for one in found if isinstance(one, NoticesReport)]
    errors = [one for one in found if isinstance(one, BaseException)]
    for error in errors:
        if not isinstance(error, GpuCkptError) or not reports:
            raise error
    return NoticesReport(
        [notice for report in reports for notice in report.notices],
        [kernel for report in reports for kernel in report.unsafe],
        any(report.has_remote for report in reports),
    ), not errors


def _show(report: NoticesReport, *, disk_survives: bool) -> None:
    are_lost = not disk_survives and not report.has_remote
    if are_lost:
        printing.warn(
            "Snapshots are uploaded nowhere: they are lost with this machine's disk."
            " `jupyter gpuckpt remote create` makes a place for them."
        )
    if not report.unsafe:
        printing.say("All kernels are suspended." if are_lost else "All kernels are safe.")
        return
    short = printing.short_ids(kernel.kernel_id for kernel in report.unsafe)
    rows = [
        [
            short[kernel.kernel_id],
            kernel.name or "-",
            "runs" if kernel.is_running else "not uploaded",
            printing.age(time.time() - kernel.uploaded_at) if kernel.uploaded_at else "-",
        ]
        for kernel in report.unsafe
    ]
    printing.say(printing.table(["KERNEL", "NAME", "NOW", "UPLOADED AS OF"], rows))
