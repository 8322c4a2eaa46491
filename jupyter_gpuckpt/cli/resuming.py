"""Which kernel `resume` means, and kernels that are made again from a snapshot after they ended.

Such a kernel gets its former id, and ports of its own. It belongs to the next Jupyter server that shows its notebook, if there
is one; whoever knows its connection file can speak to it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import calls
from ..door_secrets import joined, parted
from ..errors import KernelNotFound, KernelStateConflict
from ..ports import HeldPorts, moved_connection
from ..protocol import BranchRequest, Operation, OwnerKind
from ..states import ALIVE, GPU_AWAY
from .ids import one_of

if TYPE_CHECKING:
    from ..client import Client
    from ..snapshot_records import Snapshot


@dataclass
class Revived:
    """A kernel that was made again. `connection`: Jupyter's connection info, with the key."""

    kernel_id: str
    connection: dict[str, Any]

    def write_connection_file(self) -> Path | None:
        """Write the connection file, readable by this user only, and return its path; None for a kernel that Jupyter did not start."""
        from jupyter_core.paths import jupyter_runtime_dir, secure_write  # noqa: PLC0415 - slow

        if not self.connection:
            return None
        path = Path(jupyter_runtime_dir(), f"kernel-{self.kernel_id}.json")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with secure_write(str(path)) as file:
            json.dump(self.connection, file)
        return path


def begin(client: Client, named: str, revived: list[Revived]) -> Operation:
    """Start to resume what `named` begins the id of: a kernel, or a snapshot. A kernel that was made for it joins `revived`."""
    kernels = {kernel.kernel_id: kernel for kernel in client.send(calls.kernels())}
    snapshots = client.send(calls.snapshots())  # newest first
    known = {*kernels, *(s.kernel_id for s in snapshots), *(s.snapshot_id for s in snapshots)}
    wanted = one_of(named, known)
    if wanted in kernels:
        return client.send(calls.resume(wanted))
    found = next((s for s in snapshots if wanted in {s.snapshot_id, s.kernel_id}), None)
    if found is None:
        raise KernelNotFound(
            f"There is no kernel and no snapshot whose id begins with {named!r}.",
            hint="`jupyter gpuckpt ps` lists the kernels, `jupyter gpuckpt list` the snapshots.",
        )
    kernel = kernels.get(found.kernel_id)
    if kernel is None:
        revived.append(_revive(client, found))
    elif kernel.state in ALIVE - GPU_AWAY:
        raise KernelStateConflict(
            f"Kernel {kernel.kernel_id}, of which this snapshot is, is {kernel.state}.",
            hint="Suspend it first: what it holds now is kept as another snapshot.",
        )
    return client.send(calls.resume(found.kernel_id, found.snapshot_id))


def _revive(client: Client, snapshot: Snapshot) -> Revived:
    """Make the kernel of a snapshot again, suspended; it outlives this command."""
    from ..client import this_owner  # noqa: PLC0415 - an HTTP library, too slow for --help

    launch = client.send(calls.launch_spec(snapshot.snapshot_id))
    owner = this_owner(
        OwnerKind.SERVER,
        root_dir=str(launch.jupyter.get("root") or ""),
    )
    free = HeldPorts.free(len(launch.own_ports))
    described = joined(launch.jupyter, launch.secrets)
    saved = described.get("connection_info") or {}
    connection = moved_connection(saved, launch.own_ports, free.ports)
    jupyter, _ = parted({**described, "connection_info": connection, "output": {}})
    kernel_id = snapshot.kernel_id
    with client.hold(owner, lambda event: None):
        request = BranchRequest(
            owner.owner_id, snapshot.snapshot_id, kernel_id, free.ports, snapshot.name, jupyter
        )
        client.send(calls.branch(request))
        client.send(calls.leave(owner.owner_id))
    free.release()
    return Revived(kernel_id, connection)
