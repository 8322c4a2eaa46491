"""The *place* of a process: callers of the same place share a daemon. Also the path of that daemon's socket.

Kernels inherit rights, namespaces and resource limits from the daemon that starts them. So a daemon serves only callers for
which these are the same as its own: same user, boot, namespaces and cgroup, and the same data directory. A hash of all that
names the socket; the handshake compares the hash again.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ..errors import ConfigurationError, DaemonUnavailable

#: `struct sockaddr_un` has 108 bytes for the path, one of which ends it (man 7 unix).
SOCKET_PATH_BYTES = 107

#: A file in the data directory: the random suffix of the directory in /tmp, if another user has its usual name.
_SUFFIX_FILE = "runtime-word"
_log = logging.getLogger(__name__)

_NAMESPACES = ("pid", "mnt", "user", "net")


class Place(msgspec.Struct, frozen=True):
    """The properties of a process that its kernels inherit. `namespaces`: the inodes of pid, mnt, user and net."""

    uid: int
    boot_id: str
    namespaces: list[int]
    cgroup: str
    data_dir: str

    @property
    def key(self) -> str:
        """A hash of all fields as 16 hexadecimal digits."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=8).hexdigest()

    def sees_processes_of(self, other: Place) -> bool:
        """Return whether pids mean the same in both places."""
        return (self.boot_id, self.namespaces[0]) == (other.boot_id, other.namespaces[0])


def this_place(data_dir: Path) -> Place:
    """Return the place of this process, for a daemon that keeps its data in `data_dir`."""
    return Place(
        uid=os.getuid(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        namespaces=[Path(f"/proc/self/ns/{name}").stat().st_ino for name in _NAMESPACES],
        cgroup=Path("/proc/self/cgroup").read_text().strip(),
        data_dir=str(data_dir.expanduser().resolve()),
    )


def runtime_dir(
    data_dir: Path, environ: Mapping[str, str] = os.environ, uid: int | None = None
) -> Path:
    """Return the directory of the sockets; create it (0700) if necessary. It is local to this machine and this boot.

    It is `$JUPYTER_GPUCKPT_RUNTIME_DIR`, else /run/user/UID/gpuckpt, else /tmp/gpuckpt-UID, else, if another user has that name,
    one in /tmp with an unguessable name. Raises ConfigurationError if it is under the home directory (homes are on NFS and are
    mounted on several machines at once), DaemonUnavailable if another user owns it, who could put a socket there.
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
        return _in_tmp(data_dir, uid)
    _make_private(directory, uid)
    return directory


def runtime_dirs(data_dir: Path) -> list[Path]:
    """Return the directories in which daemons of this user may listen: `runtime_dir`, and those used before the user's login."""
    uid, chosen = os.getuid(), runtime_dir(data_dir)
    if os.environ.get("JUPYTER_GPUCKPT_RUNTIME_DIR"):
        return [chosen]
    others = (Path(f"/run/user/{uid}/gpuckpt"), _well_known(uid), _unguessable(data_dir, uid))
    return [chosen, *(other for other in others if other != chosen and _is_ours(other, uid))]


def _well_known(uid: int) -> Path:
    return Path(f"/tmp/gpuckpt-{uid}")  # noqa: S108 - its owner is checked


def _unguessable(data_dir: Path, uid: int) -> Path:
    """Return the directory that `_in_tmp` has chosen; a nonexistent one if it has chosen none."""
    try:
        suffix = (data_dir / _SUFFIX_FILE).read_text()
    except OSError:
        suffix = ""
    return Path(f"{_well_known(uid)}-{suffix or '?'}")


def _in_tmp(data_dir: Path, uid: int) -> Path:
    """Return a directory of this user in /tmp, where other users may have taken any guessable name.

    An unguessable name is stored in the data directory, so that all callers that share a daemon find the same directory.
    """
    if _is_ours(chosen := _unguessable(data_dir, uid), uid):
        _make_private(chosen, uid)
        return chosen
    directory = _well_known(uid)
    try:
        _make_private(directory, uid)
    except DaemonUnavailable:
        if not os.path.lexists(directory):
            raise
        taken = directory
    else:
        return directory
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        suffix_file = (data_dir / _SUFFIX_FILE).open("a")
    except OSError as error:
        raise DaemonUnavailable(
            f"{taken} is not a directory of this user, and the data directory cannot be used: {error}",
            hint="Set JUPYTER_GPUCKPT_RUNTIME_DIR to a directory of your own.",
        ) from error
    with suffix_file:
        fcntl.flock(suffix_file, fcntl.LOCK_EX)
        if _is_ours(directory := _unguessable(data_dir, uid), uid):
            return directory  # another process was faster
        suffix = secrets.token_hex(8)
        directory = Path(f"{taken}-{suffix}")
        directory.mkdir(mode=0o700)
        suffix_file.truncate(0)
        suffix_file.write(suffix)
    _log.warning(
        "%s is not a directory of this user; the daemon's socket is in %s instead.",
        taken,
        directory,
    )
    return directory


def socket_path(place: Place, directory: Path) -> Path:
    """Return the path of the socket of `place`'s daemon. Raises ConfigurationError if it is too long for a socket."""
    path = directory / f"{place.key}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
        raise ConfigurationError(
            f"The path of the daemon's socket is too long for a unix socket: {path}",
            hint="Set JUPYTER_GPUCKPT_RUNTIME_DIR to a directory with a shorter path.",
        )
    return path


def start_time(pid: int) -> float | None:
    """Return a process's start time, in clock ticks since boot, which with the pid identifies it; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="surrogateescape")
    except OSError:
        return None
    # The name is in parentheses and may itself contain spaces and parentheses; the state follows it.
    state, *fields = text.rpartition(")")[2].split()
    return None if state in "ZX" else float(fields[18])


def _refuse_home(directory: Path, environ: Mapping[str, str]) -> None:
    home = Path(environ.get("HOME") or "/").resolve()
    # Containers set HOME=/ or HOME=/tmp, which are not shared between machines.
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
