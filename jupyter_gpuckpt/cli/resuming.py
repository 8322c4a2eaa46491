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
from ..wire.protocol import Operation, OwnerKind
from ..wire.states import ALIVE, GPU_AWAY
from .naming import kernel_among, kernels_of, latest_of, one_of, titles_of

if TYPE_CHECKING:
    from ..client import Client
    from ..wire.snapshot_records import Snapshot


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
    wanted = latest_of(named, snapshots) or kernel_among(named, kernels.values())
    if wanted in kernels:
        return client.send(resume(wanted))
    wanted = wanted or one_of(named, {**titles_of(snapshots), **kernels_of(snapshots)})
    found = next((s for s in snapshots if wanted in {s.snapshot_id, s.kernel_id}), None)
    kernel_id = found.kernel_id if found else named
    if kernel_id not in kernels:
        chosen = found.snapshot_id if found and found.snapshot_id == wanted else ""
        # The daemon takes it over if another machine with the same home directory has suspended it.
        with suppress(KernelNotFound):
            return client.send(resume(kernel_id, chosen))
    if found is None:
        raise KernelNotFound(
            f"There is no kernel and no snapshot {named!r}.",
            hint="`jupyter gpuckpt ps` lists the kernels, `jupyter gpuckpt list` the snapshots.",
        )
    kernel = kernels.get(found.kernel_id)
    if kernel is None:
        revived.append(_revived(client, found))
    elif kernel.state in ALIVE - GPU_AWAY:
        raise KernelStateConflict(
            f"The kernel of this snapshot, {kernel.kernel_id}, is {kernel.state}.",
            hint="Suspend it first: its current state is kept as another snapshot.",
        )
    return client.send(resume(found.kernel_id, found.snapshot_id))


def _revived(client: Client, snapshot: Snapshot) -> Revived:
    """Create the kernel of a snapshot again, suspended; it outlives this command."""
    from ..client import this_owner  # noqa: PLC0415 - an HTTP library, too slow for --help
    from ..client.reviving import revive  # noqa: PLC0415 - the same

    launch = client.send(calls.launch_spec(snapshot.snapshot_id))
    owner = this_owner(
        OwnerKind.SERVER,
        root_dir=str(launch.jupyter.get("root") or ""),
    )
    with client.hold(owner, lambda event: None):
        connection = revive(client, owner.owner_id, snapshot.snapshot_id, snapshot.name, launch)
        client.send(calls.leave(owner.owner_id))
    return Revived(snapshot.kernel_id, connection)
