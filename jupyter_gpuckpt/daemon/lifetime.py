"""The daemon's process: detached, the only one of its place, and ignoring stop signals while it is needed."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import logging
import logging.handlers
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from ..errors import is_disk_full

#: Signals that stop a service. A stop of everything around the kernels (a session's end, a unit with KillMode=control-group)
#: sends them to the daemon too, at the moment when it is needed most.
_STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_LOG_BYTES = 1 << 20
_LOG_FILES = 3
#: man 2 prctl
_PR_SET_CHILD_SUBREAPER = 36

_READY = b"ready\n"
_log = logging.getLogger(__name__)


class PatientHandler(logging.handlers.RotatingFileHandler):
    """A handler that drops lines while the disk is full, without the report on standard error that a client would show."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as the base
        """Report any other error as the base does."""
        error = sys.exception()
        if not (isinstance(error, OSError) and is_disk_full(error)):
            super().handleError(record)


def detached(serve: Callable[[Callable[[], None]], int]) -> int:
    """Run `serve` in a child that outlives the caller's process tree; return when `serve` calls its argument, or ends.

    Return 0 if the child is ready or had nothing to do, else the child's exit status; its messages are on standard error then. Call
    this before any thread starts.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            ready = pipe.read() == _READY
        return 0 if ready else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(reader)
    os.setsid()

    def tell_ready() -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)
        os.write(writer, _READY)
        os.close(writer)

    return serve(tell_ready)


def hold_alone(path: Path) -> bool:
    """Lock `path` until this process ends; return False if another process holds the lock."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return False
    return True  # the descriptor stays open on purpose, and with it the lock


def become_parent_of_orphans() -> None:
    """Make this process the parent of kernels' inits, whose own parent exits at once (man 2 prctl)."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        _log.warning("PR_SET_CHILD_SUBREAPER: %s", os.strerror(ctypes.get_errno()))


def log_to(path: Path) -> None:
    """Write the log to a file of at most 1 MiB; three are kept. It never contains environments or keys."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = PatientHandler(path, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES - 1)
    form = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(form))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    # Successful requests are not logged; base_handler logs those that are answered with an error.
    logging.getLogger("tornado.access").setLevel(logging.CRITICAL)
    sys.excepthook = lambda kind, error, trace: _log.critical(
        "the daemon ends", exc_info=(kind, error, trace)
    )


def on_stop(needed: Callable[[], bool], leave: Callable[[], None]) -> None:
    """Install handlers that call `leave` on a stop signal, unless the daemon is needed."""

    def stop(signum: signal.Signals) -> None:
        if needed():
            _log.warning("%s is ignored: there are kernels or operations", signum.name)
        else:
            _log.info("leaving on %s", signum.name)
            leave()

    loop = asyncio.get_running_loop()
    for signum in _STOPS:
        loop.add_signal_handler(signum, stop, signum)
