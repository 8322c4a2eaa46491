"""The program gpuckptd: arguments, socket, data directory, routes."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_unix_socket
from tornado.web import Application

from ..errors import ConfigurationError, GpuCkptError
from ..host import core_files, privileges
from ..linux import disk_reserve
from ..wire import daemon_settings
from ..wire.answering import by_pattern
from ..wire.daemon_settings import Settings
from ..wire.place import runtime_dir, socket_path, this_place
from . import lifetime
from .http.daemon_handler import UnknownRoute
from .http.kernel_routes import ROUTES
from .kernels.kernel_records import Records
from .service import Daemon

_log = logging.getLogger(__name__)


def application(daemon: Daemon) -> Application:
    """Return the routes of `daemon`."""
    table: Any = list(by_pattern(ROUTES))
    return Application(table, default_handler_class=UnknownRoute, daemon=daemon)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a daemon and return its exit status; 0 if one runs already, because two clients may start one at the same time."""
    parser = argparse.ArgumentParser(
        prog="gpuckptd", description="Keeps, saves and resumes kernels."
    )
    parser.add_argument("--settings", help="settings as JSON (default: from the environment)")
    parser.add_argument(
        "--detach", action="store_true", help="go to the background when the daemon is ready"
    )
    arguments = parser.parse_args(argv)
    if arguments.detach:
        return lifetime.detached(lambda ready: _run(arguments.settings, ready))
    return _run(arguments.settings, lambda: None)


def _run(settings_json: str | None, ready: Callable[[], None]) -> int:
    os.umask(0o077)
    core_files.forbid()
    try:
        return _serve(_settings(settings_json), ready)
    except GpuCkptError as error:
        if _log.hasHandlers():
            _log.error("%s %s", error.message, error.hint)
        sys.stderr.write(f"{error.message}\n{error.hint}\n")
        return 1


def _settings(settings_json: str | None) -> Settings:
    if settings_json is None:
        return daemon_settings.from_environment()
    return daemon_settings.from_json(settings_json)


def _own(directory: Path) -> None:
    """Create a directory, or check that it belongs to this user, and make it inaccessible to others.

    Raises ConfigurationError if it belongs to another user, who could put a forged snapshot there.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.geteuid():
        raise ConfigurationError(
            f"The data directory {directory} belongs to another user (uid {status.st_uid}), who could change snapshots in it.",
            hint="Change its owner, or name another directory in the environment variable JUPYTER_GPUCKPT_DATA_DIR.",
        )
    # A container usually has no other users, and volumes are often such folders.
    if (above := _open_to_all(directory)) and privileges.sees_whole_machine():
        raise ConfigurationError(
            f"Every user may write to {above}, and could put another directory in the place of the data directory {directory}.",
            hint=f"Run `chmod +t {above}`, or name another directory in the environment variable JUPYTER_GPUCKPT_DATA_DIR.",
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        directory.chmod(stat.S_IMODE(status.st_mode) & ~0o077)


def _open_to_all(directory: Path) -> Path | None:
    """Return a parent folder in which any user may rename others' files (man 7 inode, the sticky bit); None if there is none."""
    for path in directory.resolve().parents:
        mode = path.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return path
    return None


def _serve(settings: Settings, ready: Callable[[], None]) -> int:
    place = this_place(settings.data)
    path = socket_path(place, runtime_dir(settings.data))
    if not lifetime.hold_alone(Path(f"{path}.lock")):
        ready()
        return 0
    try:
        for directory in (settings.data, settings.store):
            _own(directory)
            disk_reserve.fill(directory)
        lifetime.log_to(settings.log_file)
        _log.info("the socket is %s", path)
        records = Records(settings.state, place)
        records.hold()
    except OSError as error:
        raise ConfigurationError(
            f"The data directory {settings.data} cannot be used: {error.strerror} ({error.filename}).",
            hint="Name one that you may write to in the environment variable JUPYTER_GPUCKPT_DATA_DIR.",
        ) from error
    lifetime.become_parent_of_orphans()
    os.chdir("/")

    def listen() -> socket.socket:
        # An existing socket is left from a killed daemon, because this one holds the lock. tornado removes it.
        return bind_unix_socket(str(path), mode=0o600)

    async def life() -> None:
        daemon = Daemon(settings, place, records)
        await daemon.serve(HTTPServer(application(daemon)), listen, ready)

    asyncio.run(life())
    # The order is safe: a new daemon needs the lock before it makes its socket.
    path.unlink(missing_ok=True)
    records.release()
    return 0
