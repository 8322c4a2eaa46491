"""The *place*: which caller may share a daemon with which, and where that daemon's socket lies.

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

from .errors import ConfigurationError, DaemonUnavailable

#: `struct sockaddr_un` has 108 bytes for the path, one of which ends it (man 7 unix).
SOCKET_PATH_BYTES = 107

#: In the data directory: what the name of the directory in /tmp ends with, where its usual name is somebody else's.
_WORD_FILE = "runtime-word"
_log = logging.getLogger(__name__)

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


def runtime_dir(
    data_dir: Path, environ: Mapping[str, str] = os.environ, uid: int | None = None
) -> Path:
    """The directory of the sockets, made if needed: ours alone (0700), on this machine, gone after a reboot.

    `$JUPYTER_GPUCKPT_RUNTIME_DIR`, else /run/user/UID/gpuckpt, else /tmp/gpuckpt-UID, else, where somebody else has that
    name, one in /tmp whose name nobody can know before it is there. Raises ConfigurationError when it is under the home
    directory (homes are on NFS and are mounted in several machines at once), DaemonUnavailable when it is not a directory of
    ours: whoever owns it could put a socket of their own there.
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
    """Where daemons of this user may listen: `runtime_dir`, and where it was for a service that began before its user logged in."""
    uid, chosen = os.getuid(), runtime_dir(data_dir)
    if os.environ.get("JUPYTER_GPUCKPT_RUNTIME_DIR"):
        return [chosen]
    others = (Path(f"/run/user/{uid}/gpuckpt"), _well_known(uid), _unguessable(data_dir, uid))
    return [chosen, *(other for other in others if other != chosen and _is_ours(other, uid))]


def _well_known(uid: int) -> Path:
    return Path(f"/tmp/gpuckpt-{uid}")  # noqa: S108 - its owner is checked


def _unguessable(data_dir: Path, uid: int) -> Path:
    """The directory that `_in_tmp` has chosen; one that cannot be where it has chosen none."""
    try:
        word = (data_dir / _WORD_FILE).read_text()
    except OSError:
        word = ""
    return Path(f"{_well_known(uid)}-{word or '?'}")


def _in_tmp(data_dir: Path, uid: int) -> Path:
    """A directory of ours in /tmp, where anybody may have taken any name that can be guessed.

    The other name is kept in the data directory, so that all that share a daemon find the same.
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
        word_file = (data_dir / _WORD_FILE).open("a")
    except OSError as error:
        raise DaemonUnavailable(
            f"{taken} is not a directory of this user, and the data directory cannot be used: {error}",
            hint="Set JUPYTER_GPUCKPT_RUNTIME_DIR to a directory of your own.",
        ) from error
    with word_file:
        fcntl.flock(word_file, fcntl.LOCK_EX)
        if _is_ours(directory := _unguessable(data_dir, uid), uid):
            return directory  # somebody was quicker
        word = secrets.token_hex(8)
        directory = Path(f"{taken}-{word}")
        directory.mkdir(mode=0o700)
        word_file.truncate(0)
        word_file.write(word)
    _log.warning(
        "%s is not a directory of this user; the daemon's socket is in %s instead.",
        taken,
        directory,
    )
    return directory


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
