"""Kernels that are created from a snapshot, with new ports: ended kernels again, or branches."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from ..linux.ports import HeldPorts, moved_connection
from ..wire import calls
from ..wire.manager_secrets import joined, parted
from ..wire.manifest_records import LaunchSpec
from ..wire.own_sockets import moved_address
from ..wire.protocol import BranchRequest, OwnerKind
from ..wire.tool_branches import console_row, is_tool_branch
from . import socket_folders
from .holding import this_owner
from .sync_client import Client


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
