"""Finding the daemon of this place, and starting it if it does not run."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigurationError, DaemonSilent, DaemonUnavailable
from ..wire import calls, daemon_settings
from ..wire.calls import Call
from ..wire.daemon_settings import Settings
from ..wire.manifest_records import SCRATCH
from ..wire.place import Place, runtime_dir, runtime_dirs, socket_path, this_place
from ..wire.protocol import PROTOCOL_VERSION, Handshake, package_version
from . import programs
from .silence import connect, is_stopped, silent

#: The timeout of a start: a machine under load may take this long to start a Python program.
START_SECONDS = 60.0
#: How long a daemon that is stopped by a signal is waited for.
_GLANCE_SECONDS = 0.5
#: The timeout per daemon in `others`, so that one that hangs does not delay the others.
_OTHERS_SECONDS = 10.0
#: The bytes of the daemon's log that an error shows.
_TAIL_BYTES = 4096
_PAUSE = 0.05


_log = logging.getLogger(__name__)

#: Called when a daemon has not answered for a moment.
OnSilence = Callable[[DaemonSilent], None]


def log_silence(error: DaemonSilent) -> None:
    """Log that a daemon is waited for."""
    _log.warning("%s It is waited for. %s", error, error.hint)


@dataclass(frozen=True)
class Target:
    """The daemon to which a client connects. `start`: whether to start it if it does not run."""

    settings: Settings
    place: Place
    socket: Path
    start: bool


def target(settings: Settings | None, *, start: bool) -> Target:
    """Return the daemon of this process's place; settings default to the environment's."""
    settings = settings or daemon_settings.from_environment()
    place = this_place(settings.data)
    return Target(settings, place, socket_path(place, runtime_dir(settings.data)), start)


def other_daemons() -> tuple[list[Target], list[Handshake]]:
    """Find this user's daemons that use the same data directory in other places, for instance in another service.

    Return the targets of those that may be asked to suspend kernels, and the handshakes of those with another protocol.
    """
    ours = target(None, start=False)
    found: list[Target] = []
    strangers: list[Handshake] = []
    for directory in runtime_dirs(ours.settings.data):
        for path in sorted(directory.glob("*.sock")):
            other = Target(ours.settings, ours.place, path, start=False)
            handshake = _ask_other(other) if path != ours.socket else None
            if handshake is None or handshake.place == ours.place.key:
                continue
            if handshake.data_dir not in {"", ours.place.data_dir}:
                continue  # a daemon with another data directory
            if handshake.protocol == PROTOCOL_VERSION:
                found.append(other)
            else:
                strangers.append(handshake)
    return found, strangers


def require_outside() -> None:
    """Raise ConfigurationError in a kernel under the engine: in its namespaces, only a daemon of another place could be reached."""
    if Path(SCRATCH, "keeper").exists():
        raise ConfigurationError(
            "This program runs in a kernel that can be saved, where the daemon cannot be reached.",
            hint="Use a terminal, or a script that no such kernel runs. In the kernel itself use `%gpuckpt`, after"
            " `%load_ext jupyter_gpuckpt`.",
        )


def of_another_version() -> tuple[Target, Handshake] | None:
    """Return this place's daemon if it runs and is of another version."""
    ours = target(None, start=False)
    require_answer(ours)
    found = _ask(ours)
    return (ours, found) if found is not None and not is_same_version(found) else None


def ensure(
    wanted: Target,
    patience_seconds: float = calls.ANSWER_SECONDS,
    on_silence: OnSilence = log_silence,
) -> Handshake:
    """Start the daemon if it does not run, and return its handshake. Blocks for up to a minute; raises DaemonUnavailable.

    Of concurrent clients one starts it and the others wait. `patience_seconds`: how long a daemon that runs may be silent before
    DaemonSilent is raised; `on_silence` is called with that error long before, if the client goes on waiting then.
    """
    require_answer(wanted, patience_seconds, on_silence)
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


def require_answer(
    wanted: Target,
    patience_seconds: float = calls.ANSWER_SECONDS,
    on_silence: OnSilence = log_silence,
) -> None:
    """Raise DaemonSilent if the daemon runs, but does not answer; `ensure` explains the arguments."""
    deadline = time.monotonic() + patience_seconds
    try:
        _require_alive(wanted, min(calls.ALIVE_SECONDS, patience_seconds))
    except DaemonSilent as error:
        if patience_seconds <= calls.ALIVE_SECONDS:
            raise
        on_silence(error)
        _answer(wanted, calls.alive(), deadline - time.monotonic())


def _require_alive(wanted: Target, seconds: float) -> None:
    glance = min(_GLANCE_SECONDS, seconds)
    try:
        _answer(wanted, calls.alive(), glance)
    except DaemonSilent:
        if glance == seconds or is_stopped(wanted.socket):
            raise
        _answer(wanted, calls.alive(), seconds - glance)


def accepted(found: Handshake, place: Place) -> Handshake:
    """Return `found` if its version and place match; raise DaemonUnavailable if not."""
    if found.place != place.key:
        raise DaemonUnavailable(
            f"The running gpuckptd (process {found.pid}) is that of another place: {found.place} (here: {place.key}).",
            hint="Use a runtime directory of its own for each place: JUPYTER_GPUCKPT_RUNTIME_DIR.",
        )
    if not is_same_version(found):
        raise DaemonUnavailable(
            f"A gpuckptd of another version runs with kernels or clients (process {found.pid}): version {found.version},"
            f" protocol {found.protocol}; here: version {package_version()}, protocol {PROTOCOL_VERSION}.",
            hint="Nothing is lost. Stop the Jupyter servers that were started with that version, which suspends their kernels, or run"
            " `jupyter gpuckpt suspend --all`. That gpuckptd exits then within a minute, and kernels come back with the next server.",
        )
    return found


def is_same_version(found: Handshake) -> bool:
    """Return whether a daemon is of this version."""
    return (found.protocol, found.version) == (PROTOCOL_VERSION, package_version())


def _ask_other(other: Target) -> Handshake | None:
    """Return the handshake of another place's daemon; None if it does not answer."""
    try:
        return _ask(other, _OTHERS_SECONDS)
    except DaemonSilent as error:
        _log.warning("%s", error)
        return None


def _started(wanted: Target, deadline: float) -> Handshake:
    while time.monotonic() < deadline:
        found = _ask(wanted)
        if found:
            return found
        _spawn(wanted, deadline)
        found = _ask(wanted)
        if found:
            return found
        # Another daemon is just exiting, or is being started by another program.
        time.sleep(_PAUSE)
    raise _not_started(wanted, "it did not answer in time")


def _ask(wanted: Target, seconds: float = calls.ANSWER_SECONDS) -> Handshake | None:
    """Return the handshake of the listening daemon; None if there is none. Raises DaemonSilent."""
    call = calls.handshake()
    found = _answer(wanted, call, seconds)
    return call.parse(*found) if found is not None else None


def _answer(wanted: Target, call: Call[Any], seconds: float) -> tuple[int, bytes] | None:
    """Return status and content of the daemon's answer; None if no daemon listens. Raises DaemonSilent.

    It avoids httpx, which takes longer to set up.
    """
    connection = HTTPConnection("gpuckptd")
    with socket.socket(socket.AF_UNIX) as connected:
        try:
            connect(connected, wanted.socket, seconds)
            connection.sock = connected
            connection.request(call.method, call.path)
            response = connection.getresponse()
            return response.status, response.read()
        except TimeoutError as error:
            raise silent(wanted.socket) from error
        except (OSError, HTTPException):
            return None


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
        printed = ended.stderr.decode(errors="replace").strip()
        raise _not_started(wanted, f"it ended with status {ended.returncode}", printed)


def _not_started(wanted: Target, why: str, printed: str = "") -> DaemonUnavailable:
    """Return the error for a daemon that ended. `printed`: its output, a sentence and a hint, or the traceback of a defect."""
    log = wanted.settings.log_file
    hint = f"Its log is {log}."
    sentence, *hints = printed.splitlines() or [why + "."]
    if sentence.startswith("Traceback"):
        sentence = printed.splitlines()[-1]
    elif hints:
        return DaemonUnavailable(f"gpuckptd could not be started: {sentence}", hint=hints[0])
    tail = ""
    with suppress(OSError):
        tail = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    return DaemonUnavailable(
        f"gpuckptd could not be started: {sentence}",
        hint=hint,
        details="\n".join(part for part in (printed, tail) if part),
    )


@contextmanager
def _alone(path: Path, deadline: float) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # At the deadline it proceeds without the lock: the daemons themselves ensure that only one runs.
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
