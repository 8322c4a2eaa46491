"""The launch spec of a kernel, by which the daemon starts it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from jupyter_core.paths import jupyter_runtime_dir

from jupyter_gpuckpt.linux.disk_reserve import room_beside, with_room
from jupyter_gpuckpt.wire import manager_secrets
from jupyter_gpuckpt.wire.folder_records import FolderRules
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec

if TYPE_CHECKING:
    from jupyter_client.manager import KernelManager

    from jupyter_gpuckpt.wire.daemon_settings import Settings
    from jupyter_gpuckpt.wire.own_sockets import OwnSockets

OnLostLease = Literal["auto", "continue", "pause"]
GpuCopy = Literal["driver", "own"]

#: hwloc, which mpi4py loads, opens GPU devices for good, and CRIU cannot save them. With these components off it opens none.
_HWLOC_COMPONENTS = "-nvml,-cuda,-opencl,-gl,-rsmi,-levelzero"


def launch_spec(  # noqa: PLR0913 - all but the first three by name
    kernel_id: str,
    command: Sequence[str],
    arguments: Mapping[str, Any],
    *,
    log_path: Path,
    private_shm: bool,
    io_uring: bool,
    gpu_copy: GpuCopy,
    on_lost_lease: OnLostLease,
    keep_files: list[str],
    working_folder: FolderRules,
    own_ports: list[int],
    own_sockets: OwnSockets,
    jupyter: dict[str, Any],
) -> LaunchSpec:
    """Return the spec of a kernel that `Popen(command, **arguments)` would start; raise OSError where Popen would."""
    # ipykernel exits when its parent's pid changes, as it does at a resume. 1 means "no parent to watch", and also avoids the log's
    # advice for kernels that were started by hand. It must not be the pid of a real parent.
    env = {"HWLOC_COMPONENTS": _HWLOC_COMPONENTS, **arguments["env"], "JPY_PARENT_PID": "1"}
    cwd = Path(arguments.get("cwd") or Path.cwd()).absolute()
    if not cwd.is_dir():
        raise NotADirectoryError(f"The kernel's working directory does not exist: {cwd}")
    with_room(log_path, lambda: log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True))
    public, secrets = manager_secrets.parted(jupyter)
    spec = LaunchSpec(
        kernel_id=kernel_id,
        argv=[_program(command[0], env, cwd), *(os.path.expanduser(a) for a in command[1:])],  # noqa: PTH111
        env=env,
        cwd=str(cwd),
        log_path=str(log_path),
        umask=_umask(),
        private_shm=private_shm,
        io_uring=io_uring,
        gpu_copy=gpu_copy,
        on_lost_lease=on_lost_lease,
        keep_files=list(keep_files),
        own_ports=own_ports,
        own_sockets=own_sockets,
        jupyter=public,
        secrets=secrets,
    )
    if working_folder == FolderRules():  # as the default itself it is left out of records
        return spec
    return msgspec.structs.replace(spec, working_folder=working_folder)


def log_path(settings: Settings, kernel_id: str) -> Path:
    """Return the file for the kernel's own standard output and error; what cells print is not in it."""
    return settings.data / "log" / "kernels" / f"{kernel_id}.log"


def connection_room(settings: Settings, manager: KernelManager) -> AbstractContextManager[None]:
    """Return a context in which a kernel's connection file has room on a full disk."""
    path = Path(manager.connection_file or jupyter_runtime_dir(), "file")
    return room_beside(settings.data, path)


def saved_manager(manager: KernelManager) -> dict[str, Any]:
    """Return the description with which a later server's manager connects to this kernel. It contains the connection key: never log it."""
    spec = manager.kernel_spec
    return {
        "kernel_name": manager.kernel_name,
        # The whole kernelspec: it may be gone when the kernel is resumed.
        "kernelspec": {**spec.to_dict(), "resource_dir": spec.resource_dir} if spec else {},
        "connection_info": {
            key: value.decode() if isinstance(value, bytes) else value
            for key, value in manager.get_connection_info().items()
        },
    }


def _program(name: str, env: Mapping[str, str], cwd: Path) -> str:
    """Return the path of the program. Raises FileNotFoundError here, because later the kernel would end without a message."""
    name = os.path.expanduser(name)  # noqa: PTH111 - Path would drop the ./ of ./program
    if "/" in name:
        found = os.access(cwd / name, os.X_OK)
        path: str | None = name if found else None
    else:
        path = shutil.which(name, path=env.get("PATH", os.defpath))
    if path is None:
        raise FileNotFoundError(f"The kernel's program was not found or cannot be run: {name}")
    return path


def _umask() -> int:
    """Return this process's umask; os.umask() could only return it by changing it, for all threads."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022
