"""The target of `resume`, and kernels that are created again from a snapshot after they ended.

Such a kernel gets its former id and new ports. The next Jupyter server that shows its notebook takes it over; until then clients can
connect with its connection file.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import KernelNotFound, KernelStateConflict
from ..wire import calls
from ..wire.protocol import Operation
from ..wire.states import ALIVE, GPU_AWAY
from .naming import kernel_or_snapshot, neither, snapshot_of

if TYPE_CHECKING:
    from ..client import Client


@dataclass
class Revived:
    """A kernel that was created again. `connection`: Jupyter's connection info, with the key."""

    kernel_id: str
    connection: dict[str, Any]

    def write_connection_file(self) -> Path | None:
        """Write the connection file, readable by this user only, and return its path; None for a kernel that Jupyter did not start."""
        from ..client.reviving import write_connection_file  # noqa: PLC0415 - slow

        return write_connection_file(self.kernel_id, self.connection)


def begin(
    client: Client,
    named: str,
    revived: list[Revived],
    *,
    take_over: bool = False,
    force: bool = False,
) -> Operation:
    """Start resuming the kernel or snapshot that `named` names. A kernel that is created for it is added to `revived`.

    `take_over`: even if another machine runs its session. `force`: although its files changed (`FilesChanged`).
    """
    resume = partial(calls.resume, take_over=take_over, force=force)
    kernels = {kernel.kernel_id: kernel for kernel in client.send(calls.kernels())}
    snapshots = client.send(calls.snapshots())  # newest first
    wanted = kernel_or_snapshot(named, [*kernels.values()], snapshots)
    if wanted in kernels:
        return client.send(resume(wanted))
    found = snapshot_of(wanted, snapshots)
    kernel_id = found.kernel_id if found else named
    if kernel_id not in kernels:
        chosen = found.snapshot_id if found and found.snapshot_id == wanted else ""
        # The daemon takes it over if another machine with the same home directory has suspended it.
        with suppress(KernelNotFound):
            return client.send(resume(kernel_id, chosen))
    if found is None:
        raise neither(named)
    kernel = kernels.get(found.kernel_id)
    if kernel is None:
        from ..client.reviving import create  # noqa: PLC0415 - an HTTP library, too slow for --help

        connection = create(client, found.snapshot_id, name=found.name)
        revived.append(Revived(found.kernel_id, connection))
    elif kernel.state in ALIVE - GPU_AWAY:
        raise KernelStateConflict(
            f"The kernel of this snapshot, {kernel.kernel_id}, is {kernel.state}.",
            hint="Suspend it first: its current state is kept as another snapshot.",
        )
    return client.send(resume(found.kernel_id, found.snapshot_id))
