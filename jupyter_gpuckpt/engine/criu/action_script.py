"""CRIU's action script, from our side: before a dump touches a task, and when a restore has mapped all memory, CRIU waits until we
say that it may go on.

The script is `gpuckpt-init` under the name `notify` (init.c); it connects to a socket on the scratch tmpfs and reads one
byte. See man criu, `--action-script`.
"""

from __future__ import annotations

import socket
from pathlib import Path

from ...model import SCRATCH

#: What CRIU runs, and where it finds us, in the kernel's mount namespace.
PROGRAM = f"{SCRATCH}/notify"
SOCKET = f"{SCRATCH}/notify.socket"
_GO_ON = b"1"


def listen(path: Path) -> socket.socket:
    """A listening unix socket at `path`, whatever lay there before."""
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(str(path))
        server.listen(1)
    except BaseException:
        server.close()
        raise
    return server


def go_on(connection: socket.socket) -> None:
    """Let CRIU go on. A connection that is closed without this makes CRIU give up."""
    connection.sendall(_GO_ON)
