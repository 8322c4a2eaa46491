"""Mounts of copies over ssh's system-wide settings in a user namespace.

There root's files belong to nobody, and ssh refuses included files of other owners. So copies that belong to the kernel's user are
mounted over the files that root's settings include. See man ssh_config, Include.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from ...host.commands import CommandFailed
from ...wire.manifest_records import SCRATCH
from . import mounts

logger = logging.getLogger(__name__)

_DIRECTORY = "/etc/ssh/ssh_config.d"
_COPIES = f"{SCRATCH}/ssh"


def mount_copies(init_pid: int) -> None:
    """Mount copies over ssh's included settings in the mount namespace of a kernel's init, if there are any; never raises."""
    root = Path(f"/proc/{init_pid}/root")
    try:
        files = [path for path in (root / _DIRECTORY[1:]).iterdir() if path.is_file()]
        if not files:
            return
        copies = root / _COPIES[1:]
        copies.mkdir(mode=0o755)
        for path in files:
            shutil.copyfile(path, copies / path.name)
            (copies / path.name).chmod(0o644)  # ssh checks the mode, too
        mounts.bind(init_pid, _COPIES, _DIRECTORY)
    except (
        OSError,
        CommandFailed,
    ) as error:  # ssh is not installed, or this user may not read its settings
        logger.debug("ssh's settings are not replaced: %s", error)
