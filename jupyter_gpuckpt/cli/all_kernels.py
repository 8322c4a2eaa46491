"""The command `jupyter gpuckpt suspend --all`, which suspends all kernels of this user before a deadline.

Hooks run it before a machine or container is removed. It sends requests to the daemon, not to a Jupyter server, which may hang or have
ended. So the output that a busy kernel publishes at that moment is not kept for its page, as it would be if the server suspended it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from argparse import Namespace
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from ..batches import triage
from ..errors import DaemonUnavailable, GpuCkptError
from ..wire import calls
from ..wire.manifest_records import Cause
from ..wire.plurals import counted
from ..wire.progress import ProgressRecord
from ..wire.protocol import PROTOCOL_VERSION, Kernel, Operation, SaveRequest
from ..wire.states import ALIVE
from ..wire.statuses import SOME_NOT_SAVED
from . import printing

if TYPE_CHECKING:
    from ..batches.suspend_batch import SuspendOutcome, SuspendReport
    from ..client import AsyncClient
    from ..wire.manifest_records import SnapshotInfo

_T = TypeVar("_T")


def suspend(args: Namespace) -> int:
    """Suspend all kernels and print the outcomes; return `SOME_NOT_SAVED` if not all are saved."""
    try:
        report, all_seen = asyncio.run(_suspend(args.within))
    except KeyboardInterrupt:
        printing.warn(
            "Suspends that have begun continue in the daemon; `jupyter gpuckpt ps` shows their progress."
        )
        raise
    if args.json:
        printing.say_json(report)
    else:
        _show(report)
    return 0 if report.all_saved and all_seen else SOME_NOT_SAVED


async def _suspend(within_seconds: float | None) -> tuple[SuspendReport, bool]:
    """Return the outcomes, and whether all daemons could be reached."""
    from ..batches import suspend_batch as batch  # noqa: PLC0415 - asyncio tools, too slow for --help

    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        clients, all_seen = await _in_time(daemons(stack), within_seconds)
        asked = _AskedOfTheDaemons()
        snapshots: list[SnapshotInfo] = []
        for client in clients:
            try:
                has_any = await _in_time(asked.look(client), _left(within_seconds, began))
            except GpuCkptError as error:
                if len(clients) == 1:
                    raise
                all_seen = False
                printing.warn(error.message)
                continue
            # Snapshots are only for estimates. A daemon without kernels must not open the store, which another one needs.
            with contextlib.suppress(GpuCkptError):
                if has_any:
                    listed = client.send(calls.snapshots())
                    snapshots += await _in_time(listed, _left(within_seconds, began))
        running = asked.running
        # The time spent so far counts: the caller's deadline started at the call.
        left = _left(within_seconds, began)
        first_to_last = triage.most_at_stake_first(
            running.values(), snapshots, left, now=time.time()
        )
        with printing.ProgressBar("suspending") as bar:
            done: list[SuspendOutcome] = []

            def on_outcome(outcome: SuspendOutcome) -> None:
                done.append(outcome)
                stage = f"{len(done)} of {counted(len(running), 'kernel')}"
                bar.show(ProgressRecord(stage, seconds=time.monotonic() - began))

            outcomes = await batch.suspend_each(
                first_to_last,
                asked,
                _left(within_seconds, began),
                on_outcome,
                snapshots,
            )
    return batch.SuspendReport(outcomes, time.monotonic() - began), all_seen


async def daemons(stack: contextlib.AsyncExitStack) -> tuple[list[AsyncClient], bool]:
    """Return clients of this user's daemons, and whether all of them could be reached.

    This place's daemon is started if necessary, because it may find kernels whose daemon was killed. A hook runs as a service of
    its own, so its place is seldom that of the kernels.
    """
    from ..client import AsyncClient, starting  # noqa: PLC0415 - as above

    former = await asyncio.to_thread(starting.of_another_version)
    if former is None:
        clients = [await stack.enter_async_context(await AsyncClient.connect())]
    elif former[1].protocol == PROTOCOL_VERSION:
        # After an upgrade: its kernels come back with this version once they are suspended.
        clients = [await stack.enter_async_context(AsyncClient(former[0]))]
    else:
        clients = []
    others, strangers = await asyncio.to_thread(starting.other_daemons)
    if former is not None and not clients:
        strangers.append(former[1])
    for stranger in strangers:
        printing.warn(
            f"The kernels of gpuckptd {stranger.version} (process {stranger.pid}) are left out, because it is of another version. Stop the"
            " Jupyter servers that were started with that version: that suspends them."
        )
    clients += [await stack.enter_async_context(AsyncClient(other)) for other in others]
    return clients, not strangers


async def _in_time(answer: Awaitable[_T], within_seconds: float | None) -> _T:
    try:
        async with asyncio.timeout(within_seconds):
            return await answer
    except TimeoutError:
        raise DaemonUnavailable(
            "gpuckptd did not answer in time: its kernels are not suspended.",
            hint="Allow more time.",
        ) from None


def _left(within_seconds: float | None, began: float) -> float | None:
    if within_seconds is None:
        return None
    return max(0.0, within_seconds - (time.monotonic() - began))


class _AskedOfTheDaemons:
    """A `Suspender` that sends each request to the daemon that has the kernel. `running`: the kernels, by id."""

    def __init__(self) -> None:
        self.running: dict[str, Kernel] = {}
        self._daemons: dict[str, AsyncClient] = {}

    async def look(self, daemon: AsyncClient) -> bool:
        """Read a daemon's kernels; return whether any run."""
        # A kernel with `ends_at` was shut down by its user.
        found = [
            k for k in await daemon.send(calls.kernels()) if k.state in ALIVE and not k.ends_at
        ]
        for kernel in found:
            self.running[kernel.kernel_id] = kernel
            self._daemons[kernel.kernel_id] = daemon
        return bool(found)

    async def begin(self, kernel_id: str) -> Operation:
        return await self._daemons[kernel_id].send(
            calls.suspend(kernel_id, SaveRequest(cause=Cause.RECLAIM))
        )

    async def finish(self, operation: Operation) -> Operation:
        return await self._daemons[operation.kernel_id].finish(operation.operation_id)

    async def cancel(self, operation: Operation) -> None:
        await self._daemons[operation.kernel_id].send(calls.cancel(operation.operation_id))


def _show(report: SuspendReport) -> None:
    if not report.kernels:
        printing.say("No kernels are running.")
        return
    short = printing.short_ids(outcome.kernel_id for outcome in report.kernels)
    rows = [
        [
            short[outcome.kernel_id],
            outcome.name or "-",
            printing.size(outcome.size_bytes),
            "suspended" if outcome.saved else "runs on",
            printing.duration(outcome.seconds) if outcome.saved else "-",
            outcome.error.message if outcome.error else "",
        ]
        for outcome in report.kernels
    ]
    heads = ["KERNEL", "NAME", "MEMORY", "NOW", "TOOK", ""]
    printing.say(printing.table(heads, rows, right={"MEMORY", "TOOK"}))
    saved = sum(outcome.saved for outcome in report.kernels)
    printing.say(
        f"{saved} of {counted(len(report.kernels), 'kernel')} suspended in {printing.duration(report.seconds)}."
    )
    hints = dict.fromkeys(one.error.hint for one in report.kernels if one.error and one.error.hint)
    for hint in hints:
        printing.note(f"Hint: {hint}")
