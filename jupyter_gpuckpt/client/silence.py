"""A daemon that runs but does not answer: connecting to its socket in a limited time, and the error."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from pathlib import Path

from ..errors import DaemonSilent

#: man 7 unix, SO_PEERCRED: pid, uid, gid.
_CREDENTIALS = struct.Struct("3i")
#: man 7 socket, SO_SNDTIMEO: seconds, microseconds.
_TIME = struct.Struct("ll")
#: man 5 proc_pid_stat: stopped by a signal, or by a tracer.
_STOPPED = frozenset("Tt")
_CALM = "Kernels run on meanwhile; nothing is lost."


def connect(connected: socket.socket, path: Path, seconds: float) -> None:
    """Connect to a socket, and let this and each later step take some seconds at most. Raises TimeoutError, another OSError."""
    # `settimeout` would make a full queue of connections an error at once.
    limit = _TIME.pack(int(seconds), int(seconds % 1 * 1_000_000))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    try:
        connected.connect(str(path))
    except BlockingIOError as error:
        raise TimeoutError("It accepts no more connections.") from error
    connected.settimeout(seconds)


def silent(path: Path, details: str = "") -> DaemonSilent:
    """Return the error for the daemon that listens on a socket: its process, and what to do about it."""
    pid = _listener(path)
    who = f" (process {pid})" if pid else ""
    if _is_stopped(pid):
        return DaemonSilent(
            f"gpuckptd does not answer: it was stopped by a signal{who}.",
            hint=f"`kill -CONT {pid}` lets it run on. {_CALM}",
            details=details,
        )
    return DaemonSilent(
        f"gpuckptd does not answer{who}.",
        hint=f"It may be busy: try again in a while. {_CALM}",
        details=details,
    )


def is_stopped(path: Path) -> bool:
    """Return whether the process that listens on a socket is stopped, so that waiting for its answer is no use."""
    return _is_stopped(_listener(path))


def _listener(path: Path) -> int:
    """Return the pid of the process that listens on a socket; 0 if it is not known."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connected:
        connected.setblocking(False)
        connected.connect(str(path))
        found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid: int = _CREDENTIALS.unpack(found)[0]
        return pid
    return 0


def _is_stopped(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="surrogateescape")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in _STOPPED
