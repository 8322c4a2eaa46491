"""The *place*: which caller may share a daemon with which, and where that daemon's socket lies.

Kernels inherit rights, namespaces and resource limits from the daemon that starts them. So a daemon serves only callers for
which these are the same as its own: same user, boot, namespaces and cgroup, and the same data directory. A hash of all that
names the socket; the handshake compares the hash again.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from .errors import ConfigurationError, DaemonUnavailable

#: `struct sockaddr_un` has 108 bytes for the path, one of which ends it (man 7 unix).
SOCKET_PATH_BYTES = 107

_NAMESPACES = ("pid", "mnt", "user", "net")


class Place(msgspec.Struct, frozen=True):
    """Where a process is, as far as its kernels would notice. `namespaces` are the inodes of pid, mnt, user and net."""

    uid: int
    boot_id: str
    namespaces: list[int]
    cgroup: str
    data_dir: str

    @property
    def key(self) -> str:
        """16 hexadecimal digits that stand for all fields."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=8).hexdigest()

    def sees_processes_of(self, other: Place) -> bool:
        """Whether pids mean the same here and there."""
        return (self.boot_id, self.namespaces[0]) == (other.boot_id, other.namespaces[0])


def here(data_dir: Path) -> Place:
    """The place of this process, for a daemon that keeps its data in `data_dir`."""
    return Place(
        uid=os.getuid(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        namespaces=[Path(f"/proc/self/ns/{name}").stat().st_ino for name in _NAMESPACES],
        cgroup=Path("/proc/self/cgroup").read_text().strip(),
        data_dir=str(data_dir.expanduser().resolve()),
    )


def runtime_dir(environ: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """The directory of the sockets, made if needed: ours alone (0700), on this machine, gone after a reboot.

    `$JUPYTER_GPUCKPT_RUNTIME_DIR`, else /run/user/UID/gpuckpt, else /tmp/gpuckpt-UID. Raises ConfigurationError when it is
    under the home directory (homes are on NFS and are mounted in several machines at once), DaemonUnavailable when it is not
    a directory of ours: whoever owns it could put a socket of their own there.
    """
    uid = os.getuid() if uid is None else uid
    chosen = environ.get("JUPYTER_GPUCKPT_RUNTIME_DIR", "")
    session_dir = Path(f"/run/user/{uid}")
    if chosen:
        directory = Path(chosen).absolute()
        _refuse_home(directory, environ)
    elif _is_ours(session_dir, uid):
        directory = session_dir / "gpuckpt"
    else:
        directory = Path(f"/tmp/gpuckpt-{uid}")  # noqa: S108 - its owner is checked below
    _make_private(directory, uid)
    return directory


def runtime_dirs() -> list[Path]:
    """Where daemons of this user may listen: `runtime_dir`, and where it was for a service that began before its user logged in."""
    uid, chosen = os.getuid(), runtime_dir()
    if os.environ.get("JUPYTER_GPUCKPT_RUNTIME_DIR"):
        return [chosen]
    others = (Path(f"/run/user/{uid}/gpuckpt"), Path(f"/tmp/gpuckpt-{uid}"))  # noqa: S108 - its owner is checked
    return [chosen, *(other for other in others if other != chosen and _is_ours(other, uid))]


def socket_path(place: Place, directory: Path) -> Path:
    """Where the daemon of `place` listens; raises ConfigurationError when the path is longer than a socket's may be."""
    path = directory / f"{place.key}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
        raise ConfigurationError(
            f"The path of the daemon's socket is too long for a unix socket: {path}",
            hint="Set JUPYTER_GPUCKPT_RUNTIME_DIR to a directory with a shorter path.",
        )
    return path


def start_time(pid: int) -> float | None:
    """When a process started, in clock ticks since boot; None if there is none. With the pid it names one process for ever."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="surrogateescape")
    except OSError:
        return None
    # The name stands in parentheses and may hold spaces and parentheses itself; the state follows it.
    state, *fields = text.rpartition(")")[2].split()
    return None if state in "ZX" else float(fields[18])


def _refuse_home(directory: Path, environ: Mapping[str, str]) -> None:
    home = Path(environ.get("HOME") or "/").resolve()
    # Containers set HOME=/ or HOME=/tmp; nothing that is shared between machines lies there.
    shared = home not in {Path("/"), Path("/tmp")}  # noqa: S108
    if shared and directory.resolve().is_relative_to(home):
        raise ConfigurationError(
            f"JUPYTER_GPUCKPT_RUNTIME_DIR lies under the home directory: {directory}",
            hint="Choose a directory that belongs to this machine, for example under /run or /tmp.",
        )


def _make_private(directory: Path, uid: int) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DaemonUnavailable(
            f"The directory of the daemon's socket cannot be made: {error}",
            hint="Set JUPYTER_GPUCKPT_RUNTIME_DIR to a directory that can be written.",
        ) from error
    if not _is_ours(directory, uid):
        raise DaemonUnavailable(
            f"{directory} is not a directory of this user, so a socket in it cannot be trusted.",
            hint="Remove it, or set JUPYTER_GPUCKPT_RUNTIME_DIR to a directory of your own.",
        )
    if stat.S_IMODE(directory.lstat().st_mode) != 0o700:
        directory.chmod(0o700)


def _is_ours(directory: Path, uid: int) -> bool:
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid
