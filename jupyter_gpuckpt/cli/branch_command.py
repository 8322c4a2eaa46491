"""The command `jupyter gpuckpt branch`, which starts a second kernel beside another one."""

from __future__ import annotations

import uuid
from argparse import Namespace
from typing import TYPE_CHECKING

from ..wire import calls
from ..wire.states import ALIVE
from . import printing
from .daemon_calls import begin_save, daemon, finish
from .naming import kernel_or_snapshot, neither, snapshot_of

if TYPE_CHECKING:
    from ..client import Client


def run(args: Namespace) -> int:
    """Start a second kernel from a snapshot, and wait until it runs; after a failure nothing is left of it."""
    from ..client.reviving import create, write_connection_file  # noqa: PLC0415 - too slow for --help

    kernel_id = str(uuid.uuid4())
    with daemon(waits=True) as client:
        connection = create(client, _snapshot(args.kernel, client), kernel_id=kernel_id)
        try:
            begun = client.send(calls.resume(kernel_id, force=args.force))
            operation = finish(client, begun, "branching")
        except BaseException:
            client.send(calls.kill(kernel_id))  # else its snapshot could not be deleted
            raise
    path = write_connection_file(kernel_id, connection)
    if args.json:
        file = None if path is None else str(path)
        printing.say_json({"operation": operation, "connection_file": file})
        return 0
    result = operation.outcome()
    took = printing.duration(result.seconds)
    printing.say(f"Kernel {kernel_id} runs, branched from snapshot {result.snapshot_id} in {took}.")
    for warning in result.warnings:
        printing.warn(warning)
    if path is not None:
        printing.note(f"`jupyter console --existing {path}` connects to it.")
    return 0


def _snapshot(text: str, client: Client) -> str:
    """Return the id of the snapshot to branch from: the named one, a new one of a running kernel, or the latest one of another kernel."""
    kernels = {kernel.kernel_id: kernel for kernel in client.send(calls.kernels())}
    snapshots = client.send(calls.snapshots())
    wanted = kernel_or_snapshot(text, [*kernels.values()], snapshots)
    kernel = kernels.get(wanted)
    if kernel is not None and kernel.state in ALIVE:
        operation = finish(client, begin_save(client, wanted), "saving")
        return operation.outcome().snapshot_id
    if kernel is not None and kernel.snapshot_id:
        return kernel.snapshot_id
    found = snapshot_of(wanted, snapshots)
    if found is None:
        raise neither(text)
    return found.snapshot_id
