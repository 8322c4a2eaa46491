"""The info files of Jupyter servers (`jpserver-PID.json`) as a kernel sees them.

Libraries call `jupyter_server.list_running_servers()` in notebooks. It removes the file of a server whose process it does not find,
and in a kernel's PID namespace it finds none. So a copy that names process 1 is mounted over each file; a mount point cannot be
removed.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import msgspec

from ...host.commands import CommandFailed
from ...wire import decoding
from ...wire.manifest_records import SCRATCH
from . import mounts

logger = logging.getLogger(__name__)

_PATTERN = "jpserver-*.json"
_COPIES = f"{SCRATCH}/servers"
#: The pid of the kernel's init, which runs as long as the kernel.
_A_LIVING_PROCESS = 1


def protect(init_pid: int, directory: str) -> None:
    """Mount a copy over every info file in `directory`, the servers' runtime directory, that has none yet; never raises."""
    if not directory:
        return  # a script's kernel
    try:
        mounted = _mount_points(init_pid)
    except OSError as error:  # the kernel has just gone
        logger.info("info files of servers in %s are not protected: %s", directory, error)
        return
    for path in sorted(Path(directory).glob(_PATTERN)):
        if str(path) not in mounted:
            try:
                _protect(init_pid, path)
            except (OSError, msgspec.DecodeError, CommandFailed) as error:
                logger.info("the server's info file %s is not protected: %s", path, error)


def _protect(init_pid: int, path: Path) -> None:
    info = decoding.from_json(path.read_bytes(), dict[str, Any])
    copy = Path(f"/proc/{init_pid}/root{_COPIES}") / path.name
    copy.parent.mkdir(exist_ok=True)
    copy.write_text(json.dumps({**info, "pid": _A_LIVING_PROCESS}))
    copy.chmod(0o600)  # the server's token is in it
    mounts.bind(init_pid, f"{_COPIES}/{path.name}", path)


def _mount_points(init_pid: int) -> set[str]:
    """Return the mount points of the kernel's mount namespace (man proc_pid_mountinfo: field 5, spaces as octal numbers)."""
    lines = Path(f"/proc/{init_pid}/mountinfo").read_text().splitlines()
    fields = (line.split()[4] for line in lines)
    return {re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), field) for field in fields}
