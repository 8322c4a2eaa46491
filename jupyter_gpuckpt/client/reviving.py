"""Kernels that come back: those that were left in any state, and those that are created from a snapshot, with new ports.

The latter are ended kernels again, or branches.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..linux.ports import HeldPorts, moved_connection
from ..wire import calls
from ..wire.manager_secrets import joined, parted
from ..wire.manifest_records import LaunchSpec
from ..wire.own_sockets import moved_address
from ..wire.protocol import BranchRequest, Kernel, OwnerKind
from ..wire.states import KernelState
from ..wire.tool_branches import console_row, is_tool_branch
from . import socket_folders
from .holding import this_owner
from .sync_client import Client

#: The states that a kernel leaves only by a request, and the pause between two looks at one in another state, in seconds.
_STEADY = frozenset(
    {KernelState.RUNNING, KernelState.PARKED, KernelState.SUSPENDED, KernelState.LOST}
)
_PAUSE = 0.05


def steady(client: Client, kernel_id: str) -> Kernel:
    """Return a kernel when no operation changes its state any more."""
    while (kernel := client.send(calls.kernel(kernel_id))).state not in _STEADY:
        time.sleep(_PAUSE)
    return kernel


def bring_back(client: Client, kernel_id: str, tell: Callable[[str], None]) -> Kernel | None:
    """Resume a kernel unless it runs, and return its record; forget one that is lost without a snapshot, and return None.

    `tell`: called with warnings of a resume.
    """
    kernel = steady(client, kernel_id)
    while kernel.state is not KernelState.RUNNING:
        snapshot_id = ""
        if kernel.state is KernelState.LOST:
            # The kernel's record may lack the newest snapshot, if the daemon was killed just when that was complete.
            snapshots = client.send(calls.snapshots(kernel_id))
            if not snapshots:
                client.send(calls.kill(kernel_id))
                return None
            snapshot_id = snapshots[0].snapshot_id
        operation = client.send(calls.resume(kernel_id, snapshot_id))
        for warning in client.wait(operation.operation_id).warnings:
            tell(warning)
        kernel = steady(client, kernel_id)
    return kernel


def revive(
    client: Client,
    owner_id: str,
    snapshot_id: str,
    name: str,
    launch: LaunchSpec,
    *,
    kernel_id: str = "",
) -> dict[str, Any]:
    """Create a suspended kernel from a snapshot for a connected owner; return Jupyter's connection info, with the key.

    `launch`: the snapshot's (`calls.launch_spec`). `kernel_id`: of a branch; by default it is the snapshot's kernel again.
    """
    free = HeldPorts.free(len(launch.own_ports))
    described = joined(launch.jupyter, launch.secrets)
    saved = described.get("connection_info") or {}
    made_id = kernel_id or launch.kernel_id
    folder = str(socket_folders.make(made_id)) if launch.own_sockets.folder else ""
    connection = moved_address(moved_connection(saved, launch.own_ports, free.ports), folder)
    if is_tool_branch(name):
        row = console_row(str(uuid.uuid4()), name, made_id)
        described |= {"path": name, "sessions": [row]}
    jupyter, _ = parted({**described, "connection_info": connection, "output": {}})
    request = BranchRequest(owner_id, snapshot_id, made_id, free.ports, name, jupyter, folder)
    try:
        client.send(calls.branch(request))
    except BaseException:
        if folder:
            socket_folders.remove(Path(folder))
        raise
    free.release()
    return connection


def create(
    client: Client, snapshot_id: str, *, name: str = "", kernel_id: str = ""
) -> dict[str, Any]:
    """Create a suspended kernel from a snapshot, as `revive` does, which outlives this process; return the connection info."""
    launch = client.send(calls.launch_spec(snapshot_id))
    owner = this_owner(OwnerKind.SERVER, root_dir=str(launch.jupyter.get("root") or ""))
    with client.hold(owner, lambda event: None):
        connection = revive(client, owner.owner_id, snapshot_id, name, launch, kernel_id=kernel_id)
        client.send(calls.leave(owner.owner_id))
    return connection


def write_connection_file(kernel_id: str, connection: dict[str, Any]) -> Path | None:
    """Write a kernel's connection file, readable by this user only, and return its path; None for one that Jupyter did not start."""
    from jupyter_core.paths import jupyter_runtime_dir, secure_write  # noqa: PLC0415 - slow

    if not connection:
        return None
    path = Path(jupyter_runtime_dir(), f"kernel-{kernel_id}.json")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with secure_write(str(path)) as file:
        json.dump(connection, file)
    return path
