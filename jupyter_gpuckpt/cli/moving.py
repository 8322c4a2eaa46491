"""The command `jupyter gpuckpt move`, which suspends a kernel and uploads it, so that another machine can go on with it."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from typing import TYPE_CHECKING

from .. import calls
from ..errors import (
    ConfigurationError,
    GpuCkptError,
    KernelStateConflict,
    RemoteNotFound,
    StoreError,
)
from ..protocol import Kernel, Operation, OperationState
from ..states import ALIVE, KernelState
from . import output, uploads
from .daemon_calls import daemon, finish
from .ids import one_kernel

if TYPE_CHECKING:
    from ..client import Client

#: How long to wait, after the upload, until the remote no longer lists the session as run here.
_RELEASE_SECONDS = 30.0
_LOOK_SECONDS = 0.5

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
        remote = _remote(client, args.to)
        kernel_id = one_kernel(args.kernel, client)
        # A remote that cannot be used raises its error here, before anything is changed.
        client.send(calls.far_sessions(remote))
        kernel = client.send(calls.kernel(kernel_id))
        snapshot_id, is_free = _moved(client, kernel, remote)
        others = [
            one
            for one in client.send(calls.kernels())
            if one.kernel_id != kernel_id and one.state in ALIVE
        ]
    if args.json:
        moved = {"kernel_id": kernel_id, "snapshot_id": snapshot_id, "remote": remote}
        output.say_json({"moved": {**moved, "is_released": is_free}})
        return 0
    output.say(
        f"Remote {remote} has kernel {kernel_id}, as snapshot {snapshot_id}. It is safe to close this machine."
    )
    if others:
        output.warn(f"That holds for this kernel; {len(others)} more run here.")
    if not is_free:
        output.warn(
            "The remote still lists it as run here; others can fetch it two minutes after this machine is closed."
        )
    output.note(
        f"On the other machine: `jupyter gpuckpt remote fetch {remote} {snapshot_id}`, then `jupyter gpuckpt resume {snapshot_id}`;"
        " or the panel Sessions of JupyterLab."
    )
    return 0


def _remote(client: Client, named: str) -> str:
    names = [one.name for one in client.send(calls.remotes())]
    if named and named not in names:
        raise RemoteNotFound(
            f"There is no remote {named!r}.", hint="`jupyter gpuckpt remote list` lists them."
        )
    if named:
        return named
    if len(names) != 1:
        raise ConfigurationError(
            f"There are {len(names)} remotes to which the kernel could be moved.",
            hint=f"Name one of {', '.join(names)} by --to."
            if names
            else "`jupyter gpuckpt remote add` adds one.",
        )
    return names[0]


def _moved(client: Client, kernel: Kernel, remote: str) -> tuple[str, bool]:
    """Suspend and upload a kernel; return its snapshot, and whether the remote lists its session as free.

    After an error or an interrupt the kernel is put back into its former state, and a warning says so.
    """
    kernel_id, ran = kernel.kernel_id, kernel.state in ALIVE
    if kernel.state is KernelState.LOST:
        raise KernelStateConflict(
            f"Kernel {kernel_id} is lost: only its older snapshots can be uploaded.",
            hint=f"`jupyter gpuckpt remote upload {remote} SNAPSHOT` uploads one.",
        )
    suspending: Operation | None = None
    try:
        snapshot_id = kernel.snapshot_id
        if ran:
            suspending = client.send(calls.suspend(kernel_id))
            done = finish(client, suspending, "suspending").result
            snapshot_id = done.snapshot_id if done else snapshot_id
        if not _has_alone(client, remote, snapshot_id):
            client.send(calls.upload(remote, [snapshot_id]))
            uploads.follow(client, remote, [snapshot_id])
        return snapshot_id, _is_released(client, remote, snapshot_id)
    except BaseException:
        _put_back(client, kernel_id, suspending)
        raise


def _has_alone(client: Client, remote: str, snapshot_id: str) -> bool:
    """Return whether a snapshot's content is in the remote and not here."""
    return any(
        one.snapshot_id == snapshot_id and one.far_only == remote
        for one in client.send(calls.snapshots())
    )


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


def _is_released(client: Client, remote: str, snapshot_id: str) -> bool:
    """Wait until the remote lists a snapshot's session as run by no machine; return whether that was so in time."""
    deadline = time.monotonic() + _RELEASE_SECONDS
    while time.monotonic() < deadline:
        with suppress(StoreError):  # the upload is complete whatever the remote says now
            for session in client.send(calls.far_sessions(remote)).sessions:
                listed = any(one.snapshot_id == snapshot_id for one in session.snapshots)
                if listed and not session.leased_to:
                    return True
        time.sleep(_LOOK_SECONDS)
    return False
