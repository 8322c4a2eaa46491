"""The daemon's side of CRIU's action script, by which CRIU waits for the daemon.

CRIU waits in a dump before it touches a task, and in a restore when all memory is mapped. The script is `gpuckpt-init` under the
name `notify` (init.c); it connects to a socket on the scratch tmpfs and reads one byte. See man criu, `--action-script`.
"""

from __future__ import annotations

import socket
from pathlib import Path

from ...wire.manifest_records import SCRATCH

#: The program that CRIU runs, and the socket to which it connects, in the kernel's mount namespace.
PROGRAM = f"{SCRATCH}/notify"
SOCKET = f"{SCRATCH}/notify.socket"
_CONTINUE = b"1"


def listen(path: Path) -> socket.socket:
    """Return a listening unix socket at `path`; replace an existing file."""
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(str(path))
        server.listen(1)
    except BaseException:
        server.close()
        raise
    return server


def let_continue(connection: socket.socket) -> None:
    """Let CRIU continue. If the connection is closed without this call, CRIU gives up."""
    connection.sendall(_CONTINUE)
