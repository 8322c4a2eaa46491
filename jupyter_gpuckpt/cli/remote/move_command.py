"""The command `jupyter gpuckpt move`, which suspends a kernel and uploads it, so that another machine can go on with it."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from ...client import moving
from ...errors import GpuCkptError, KernelStateConflict
from ...wire import calls
from ...wire.protocol import Operation, Result
from ...wire.remote_records import chosen
from ...wire.states import ALIVE, KernelState
from .. import printing
from ..daemon_calls import daemon
from ..naming import one_kernel
from ..parser import Parser

if TYPE_CHECKING:
    from ...client import AsyncClient

SUMMARY = "suspend a kernel and upload it, so that another machine can go on with it"
DESCRIPTION = "If that fails, the kernel is as it was: it runs again, or is suspended here."


def add_arguments(to: Parser) -> None:
    """Add the arguments of `move`."""
    to.kernel()
    to.add_argument(
        "--to", metavar="REMOTE", default="", help="the remote. Default: the only one there is"
    )


def run(args: Namespace) -> int:
    """Move a kernel to a remote; say when this machine may be closed."""
    with daemon(waits=True) as client:
        remote = chosen(args.to, [one.name for one in client.send(calls.remotes())])
        kernel_id = one_kernel(args.kernel, client)
        # A remote that cannot be used raises its error here, before anything is changed.
        client.send(calls.remote_sessions(remote))
        if client.send(calls.kernel(kernel_id)).state is KernelState.LOST:
            raise KernelStateConflict(
                f"Kernel {kernel_id} is lost: only its older snapshots can be uploaded.",
                hint=f"`jupyter gpuckpt remote upload {remote} SNAPSHOT` uploads one.",
            )
        done = asyncio.run(_moved(kernel_id, remote))
        others = [
            one
            for one in client.send(calls.kernels())
            if one.kernel_id != kernel_id and one.state in ALIVE
        ]
    snapshot_id = done.snapshot_id
    if args.json:
        moved = {"kernel_id": kernel_id, "snapshot_id": snapshot_id, "remote": remote}
        printing.say_json({"moved": {**moved, "is_released": not done.warnings}})
        return 0
    printing.say(
        f"Remote {remote} has kernel {kernel_id}, as snapshot {snapshot_id}. It is safe to close this machine."
    )
    if others:
        printing.warn(f"That holds for this kernel; {len(others)} more run here.")
    for warning in done.warnings:
        printing.warn(warning)
    printing.note(
        f"On the other machine: `jupyter gpuckpt remote fetch {remote} {snapshot_id}`, then `jupyter gpuckpt resume {snapshot_id}`;"
        " or the panel Sessions of JupyterLab, which offers it first."
    )
    return 0


class _AskedOfTheDaemon:
    """A `Mover` that sends requests to the daemon and shows the progress."""

    def __init__(self, daemon: AsyncClient, kernel_id: str, remote: str) -> None:
        self._daemon, self._kernel_id, self._remote = daemon, kernel_id, remote

    async def state(self) -> KernelState:
        return (await self._daemon.send(calls.kernel(self._kernel_id))).state

    async def suspend(self) -> None:
        await self._done(calls.suspend(self._kernel_id), "suspending")

    async def move(self) -> Result:
        return await self._done(calls.move(self._kernel_id, self._remote), "moving")

    async def resume(self) -> None:
        await self._done(calls.resume(self._kernel_id), "resuming")

    async def _done(self, call: calls.Call[Operation], title: str) -> Result:
        """Start an operation, show its progress, and return its result; cancel it on an interrupt."""
        request = asyncio.ensure_future(self._daemon.send(call))
        try:
            operation = await asyncio.shield(request)
            with printing.ProgressBar(title) as bar:
                async with aclosing(self._daemon.follow(operation.operation_id)) as changes:
                    async for operation in changes:
                        bar.show(operation.progress)
        except asyncio.CancelledError:
            with suppress(GpuCkptError):
                # The daemon may have begun, though its answer is not here yet.
                operation = await request
                await self._daemon.send(calls.cancel(operation.operation_id))
                await self._daemon.finish(operation.operation_id)
            raise
        return operation.outcome()


async def _moved(kernel_id: str, remote: str) -> Result:
    """Move a kernel and return the result; else put it back. A warning says so if the user has interrupted it."""
    from ...client import AsyncClient  # noqa: PLC0415 - an HTTP library, too slow for --help

    async with await AsyncClient.connect() as client:
        try:
            return await moving.move(_AskedOfTheDaemon(client, kernel_id, remote))
        except asyncio.CancelledError as interrupt:
            for note in getattr(interrupt, "__notes__", []):
                printing.warn(note)
            raise
