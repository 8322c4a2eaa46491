"""The daemon of this place: found, and started when it is not there."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import msgspec

from .. import calls, daemon_settings
from ..daemon_settings import Settings
from ..errors import DaemonUnavailable
from ..place import Place, here, runtime_dir, runtime_dirs, socket_path
from ..protocol import PROTOCOL_VERSION, Handshake, package_version
from . import programs

#: A machine under load may take this long to start a Python program.
START_SECONDS = 30.0
#: One that hangs must not hold up who looks for all of them.
_OTHERS_SECONDS = 3.0
#: How much of the daemon's log an error shows.
_TAIL_BYTES = 4096
_PAUSE = 0.05


@dataclass(frozen=True)
class Target:
    """Daemon that a client connects to. `start`: whether it is started when it is not there."""

    settings: Settings
    place: Place
    socket: Path
    start: bool


def target(settings: Settings | None, *, start: bool) -> Target:
    """Return the daemon of this process's place; settings default to the environment's."""
    settings = settings or daemon_settings.from_environment()
    place = here(settings.data)
    return Target(settings, place, socket_path(place, runtime_dir(settings.data)), start)


def others() -> tuple[list[Target], list[Handshake]]:
    """Find the daemons of this user that have our data directory and run in other places, for instance in another service.

    Those that can be spoken to, and those that cannot, being of another version.
    """
    ours = target(None, start=False)
    found: list[Target] = []
    strangers: list[Handshake] = []
    for directory in runtime_dirs(ours.settings.data):
        for path in sorted(directory.glob("*.sock")):
            other = Target(ours.settings, ours.place, path, start=False)
            handshake = _ask(other, _OTHERS_SECONDS) if path != ours.socket else None
            if handshake is None or handshake.place == ours.place.key:
                continue
            if handshake.data_dir not in {"", ours.place.data_dir}:
                continue  # somebody else's work, though the same user's
            same = (handshake.protocol, handshake.version) == (PROTOCOL_VERSION, package_version())
            if same:
                found.append(other)
            else:
                strangers.append(handshake)
    return found, strangers


def ensure(wanted: Target) -> Handshake:
    """Make sure that the daemon runs and return its handshake. Blocks for up to half a minute; raises DaemonUnavailable.

    Of clients that come at the same moment one starts it and the others wait.
    """
    found = _ask(wanted)
    if found is None and not wanted.start:
        raise DaemonUnavailable(
            "gpuckptd is not running.", hint="Any command that starts a kernel starts it."
        )
    if found is None:
        deadline = time.monotonic() + START_SECONDS
        with _alone(Path(f"{wanted.socket}.start"), deadline):
            found = _started(wanted, deadline)
    return accepted(found, wanted.place)


def accepted(found: Handshake, place: Place) -> Handshake:
    """Return `found` if it is a daemon for us; raise DaemonUnavailable if not."""
    ours = {"protocol": PROTOCOL_VERSION, "version": package_version(), "place": place.key}
    theirs = {"protocol": found.protocol, "version": found.version, "place": found.place}
    differing = [
        f"{name} {theirs[name]} (here: {ours[name]})" for name in ours if ours[name] != theirs[name]
    ]
    if differing:
        raise DaemonUnavailable(
            f"The running gpuckptd (process {found.pid}) does not fit: {', '.join(differing)}.",
            hint="It leaves by itself when its kernels are shut down or suspended and nobody is connected.",
        )
    return found


def _started(wanted: Target, deadline: float) -> Handshake:
    while time.monotonic() < deadline:
        found = _ask(wanted)
        if found:
            return found
        _spawn(wanted, deadline)
        found = _ask(wanted)
        if found:
            return found
        # Another one was just leaving, or is starting in some other way.
        time.sleep(_PAUSE)
    raise _not_started(wanted, "it did not answer in time")


def _ask(wanted: Target, seconds: float = calls.ANSWER_SECONDS) -> Handshake | None:
    """Ask for the handshake of the daemon that listens; return None if none does. Without httpx, which takes longer to set up."""
    call = calls.handshake()
    connection = HTTPConnection("gpuckptd")
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(seconds)
        try:
            connected.connect(str(wanted.socket))
            connection.sock = connected
            connection.request(call.method, call.path)
            response = connection.getresponse()
            content = response.read()
        except (OSError, HTTPException):
            return None
    return call.parse(response.status, content)


def _spawn(wanted: Target, deadline: float) -> None:
    settings = msgspec.json.encode(wanted.settings).decode()
    try:
        ended = subprocess.run(  # noqa: S603 - our own interpreter and module
            [*programs.command("daemon"), "--detach", "--settings", settings],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            timeout=max(1.0, deadline - time.monotonic()),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _not_started(wanted, type(error).__name__) from error
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip()
        raise _not_started(wanted, f"it ended with status {ended.returncode}", said)


def _not_started(wanted: Target, why: str, said: str = "") -> DaemonUnavailable:
    """Return the error for what the daemon printed when it ended: a sentence and a hint, or the traceback of a defect."""
    log = wanted.settings.log_file
    hint = f"Its log is {log}."
    sentence, *hints = said.splitlines() or [why + "."]
    if sentence.startswith("Traceback"):
        sentence = said.splitlines()[-1]
    elif hints:
        return DaemonUnavailable(f"gpuckptd could not be started: {sentence}", hint=hints[0])
    tail = ""
    with suppress(OSError):
        tail = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    return DaemonUnavailable(
        f"gpuckptd could not be started: {sentence}",
        hint=hint,
        details="\n".join(part for part in (said, tail) if part),
    )


@contextmanager
def _alone(path: Path, deadline: float) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # At the deadline go on without the lock: the daemons themselves see to it that there is one.
        while time.monotonic() < deadline:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_PAUSE)
            else:
                break
        yield
    finally:
        os.close(fd)
