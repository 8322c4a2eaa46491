"""Settings of ssh that belong to root, as a kernel in a user namespace of its own sees them: as nobody's, which ssh refuses to read.

So copies, which are the kernel's user's, are laid over what is included from root's file: ssh looks at the owner of those. See man
ssh_config, Include.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from ...host.commands import CommandFailed
from ...model import SCRATCH
from . import mounts

logger = logging.getLogger(__name__)

_DIRECTORY = "/etc/ssh/ssh_config.d"
_COPIES = f"{SCRATCH}/ssh"


def lay_over(init_pid: int) -> None:
    """Lay copies over ssh's settings in the mount namespace of a kernel's init, if there are any; never raises."""
    root = Path(f"/proc/{init_pid}/root")
    try:
        files = [path for path in (root / _DIRECTORY[1:]).iterdir() if path.is_file()]
        if not files:
            return
        copies = root / _COPIES[1:]
        copies.mkdir(mode=0o755)
        for path in files:
            shutil.copyfile(path, copies / path.name)
            (copies / path.name).chmod(0o644)  # ssh looks at this, too
        mounts.bind(init_pid, _COPIES, _DIRECTORY)
    except (OSError, CommandFailed) as error:  # no ssh here, or nothing of it for this user
        logger.debug("ssh's settings are left as they are: %s", error)
