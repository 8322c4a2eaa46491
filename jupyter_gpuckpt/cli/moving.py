"""The command `jupyter gpuckpt move`, which suspends a kernel and uploads it, so that another machine can go on with it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import suppress
from typing import TYPE_CHECKING

from .. import calls
from ..errors import GpuCkptError, KernelStateConflict
from ..protocol import Kernel, Operation, OperationState, Result
from ..remote_records import chosen
from ..states import ALIVE, KernelState
from . import output
from .daemon_calls import daemon, finish
from .ids import one_kernel

if TYPE_CHECKING:
    from ..client import Client

SUMMARY = "suspend a kernel and upload it, so that another machine can go on with it"
DESCRIPTION = "If that fails, the kernel is as it was: it runs again, or is suspended here."


def add_arguments(to: ArgumentParser) -> None:
    """Add the arguments of `move`."""
    to.add_argument("kernel", metavar="KERNEL", help="its id, or the beginning of it")
    to.add_argument(
        "--to", metavar="REMOTE", default="", help="the remote. Default: the only one there is"
    )


def run(args: Namespace) -> int:
    """Move a kernel to a remote; say when this machine may be closed."""
    with daemon() as client:
        remote = chosen(args.to, [one.name for one in client.send(calls.remotes())])
        kernel_id = one_kernel(args.kernel, client)
        # A remote that cannot be used raises its error here, before anything is changed.
        client.send(calls.far_sessions(remote))
        done = _moved(client, client.send(calls.kernel(kernel_id)), remote)
        others = [
            one
            for one in client.send(calls.kernels())
            if one.kernel_id != kernel_id and one.state in ALIVE
        ]
    snapshot_id = done.snapshot_id
    if args.json:
        moved = {"kernel_id": kernel_id, "snapshot_id": snapshot_id, "remote": remote}
        output.say_json({"moved": {**moved, "is_released": not done.warnings}})
        return 0
    output.say(
        f"Remote {remote} has kernel {kernel_id}, as snapshot {snapshot_id}. It is safe to close this machine."
    )
    if others:
        output.warn(f"That holds for this kernel; {len(others)} more run here.")
    for warning in done.warnings:
        output.warn(warning)
    output.note(
        f"On the other machine: `jupyter gpuckpt remote fetch {remote} {snapshot_id}`, then `jupyter gpuckpt resume {snapshot_id}`;"
        " or the panel Sessions of JupyterLab, which offers it first."
    )
    return 0


def _moved(client: Client, kernel: Kernel, remote: str) -> Result:
    """Suspend and upload a kernel, and return the result.

    After an error or an interrupt the kernel is put back into its former state, and a warning says so.
    """
    kernel_id = kernel.kernel_id
    if kernel.state is KernelState.LOST:
        raise KernelStateConflict(
            f"Kernel {kernel_id} is lost: only its older snapshots can be uploaded.",
            hint=f"`jupyter gpuckpt remote upload {remote} SNAPSHOT` uploads one.",
        )
    suspending: Operation | None = None
    moving: Operation | None = None
    try:
        if kernel.state in ALIVE:
            suspending = client.send(calls.suspend(kernel_id))
            finish(client, suspending, "suspending")
        moving = client.send(calls.move(kernel_id, remote))
        return finish(client, moving, "moving").outcome()
    except BaseException:
        if moving is not None:
            with suppress(GpuCkptError):
                client.send(calls.cancel(moving.operation_id))
        _put_back(client, kernel_id, suspending)
        raise


def _put_back(client: Client, kernel_id: str, suspending: Operation | None) -> None:
    """Resume a kernel that was suspended to be moved, and say how it is now; never raises."""
    with suppress(GpuCkptError, KeyboardInterrupt):
        if suspending is not None:
            client.send(calls.cancel(suspending.operation_id))
            *_, ended = client.follow(suspending.operation_id)
            if ended.state is OperationState.SUCCEEDED:
                finish(client, client.send(calls.resume(kernel_id)), "resuming")
    with suppress(GpuCkptError, KeyboardInterrupt):
        state = client.send(calls.kernel(kernel_id)).state
        output.warn(f"Kernel {kernel_id} was not moved; here it is {state.value}.")
        if suspending is not None and state not in ALIVE:
            output.warn(f"`jupyter gpuckpt resume {kernel_id}` brings it back.")
