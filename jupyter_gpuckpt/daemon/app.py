"""gpuckptd: its parts and its life from start to end."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_unix_socket
from tornado.web import Application

from .. import daemon_settings
from ..daemon_settings import Settings
from ..errors import ConfigurationError, GpuCkptError
from ..host import core_files
from ..place import Place, here, runtime_dir, socket_path
from ..protocol import PROTOCOL_VERSION, Event, Handshake, package_version
from ..snapshot_records import SnapshotChange
from . import lifetime
from .base_handler import UnknownRoute
from .endings import Endings
from .handlers import ROUTES
from .inventory import Inventory
from .kernels import Kernels
from .machine import Machine
from .measuring import Measuring
from .operations import Operations
from .owners import Owners
from .records import Records
from .removal import Removal
from .streams import Streams
from .transfers import Transfers
from .verbs import Verbs

#: How often it is looked whether the daemon is still needed, and the heartbeat is written, at most.
LOOK_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Daemon:
    """All parts of a daemon, joined. Made on the event loop."""

    def __init__(self, settings: Settings, place: Place, records: Records) -> None:
        self.settings, self.place, self.records = settings, place, records
        self.machine = Machine(settings, place)
        self.streams = Streams()
        self.operations = Operations(self.streams)
        self.kernels = Kernels(records, self.machine, self.streams)
        every = settings.measure_every_seconds
        self.measuring = Measuring(self.kernels, self.machine, every)
        self.verbs = Verbs(place, self.kernels, self.operations, self.machine, records)
        self.inventory = Inventory(self.kernels, records, self.machine)
        self.removal = Removal(
            self.inventory,
            self.machine,
            self.operations,
            undo_seconds=settings.undo_delete_seconds,
        )
        self.transfers = Transfers(self.machine)
        self.verbs.on_end = self.removal.after
        self.endings = Endings(self.kernels, self.verbs, self.machine)
        self.owners = Owners(self.streams, self.kernels, self.operations, self.verbs, records)
        loop = asyncio.get_running_loop()
        self.machine.on_snapshot = lambda change: _from_thread(
            loop, lambda: self._on_snapshot(change)
        )
        self._left = asyncio.Event()
        self._touched = time.monotonic()

    @property
    def needed(self) -> bool:
        """Whether something would be lost if the daemon left. Suspended kernels lie on disk."""
        return self.kernels.any_alive or self.operations.any_running

    def touch(self) -> None:
        """Somebody is there."""
        self._touched = time.monotonic()

    def _on_snapshot(self, change: SnapshotChange) -> None:
        self.streams.publish(Event(self.streams.advance(), snapshot=change))

    def leave(self) -> None:
        """End."""
        self._left.set()

    async def handshake(self) -> Handshake:
        """Who this is and what works here."""
        report = await asyncio.to_thread(self.machine.report)
        return Handshake(
            protocol=PROTOCOL_VERSION,
            version=package_version(),
            place=self.place.key,
            data_dir=self.place.data_dir,
            pid=os.getpid(),
            engine_available=report.engine_available,
            reason=report.reason,
            hint=report.hint,
        )

    async def serve(self, listener: socket.socket, ready: Callable[[], None]) -> None:
        """Adopt what the last daemon left, then answer until nobody needs it any more."""
        await self.kernels.recover(await asyncio.to_thread(self.records.mine))
        await asyncio.to_thread(self.machine.clear)
        await asyncio.to_thread(self.machine.resume_times.load)
        self.owners.expect_after_restart()
        self.endings.expect_all()
        self.removal.expect_all()
        server = HTTPServer(application(self))
        server.add_socket(listener)
        lifetime.on_stop(lambda: self.needed, self.leave)
        _log.info("gpuckptd %s serves place %s", package_version(), self.place.key)
        self.measuring.start()
        ready()
        self.machine.warm_up()
        await self._until_left()
        await self.measuring.close()
        server.stop()
        await server.close_all_connections()
        await self.verbs.close()
        await self.removal.close()
        await self.transfers.close()
        await self.kernels.close()
        await asyncio.to_thread(self.machine.close)

    async def _until_left(self) -> None:
        idle_exit = self.settings.idle_exit_seconds
        while not self._left.is_set():
            await asyncio.to_thread(self.records.beat)
            await self.kernels.protect_servers()
            await self.kernels.learn_programs()
            if self.needed or self.streams or self.transfers.any_running:
                self.touch()
            remaining = self._touched + idle_exit - time.monotonic()
            if remaining <= 0:
                _log.info("leaving: nothing runs and nobody was here for %.0f s", idle_exit)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.05, min(remaining, LOOK_SECONDS))):
                    await self._left.wait()


def _from_thread(loop: asyncio.AbstractEventLoop, tell: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the daemon leaves: nobody listens any more
        loop.call_soon_threadsafe(tell)


def application(daemon: Daemon) -> Application:
    """The routes of `daemon`."""
    table = [
        (re.sub(r"{(\w+)}", r"(?P<\g<1>>[^/]+)", path), handler) for path, handler in ROUTES.items()
    ]
    return Application(table, default_handler_class=UnknownRoute, daemon=daemon)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a daemon. 0 also when there is one already: two clients may start one at the same moment."""
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
        return _run_here(_settings(settings_json), ready)
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
    """Make a directory, or check that it belongs to this user, and keep everybody else from writing to it.

    Raises ConfigurationError where it belongs to somebody else, who could put a forged snapshot there.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.geteuid():
        raise ConfigurationError(
            f"The data directory {directory} belongs to another user (uid {status.st_uid}), who could change snapshots in it.",
            hint="Change its owner, or name another directory in the environment variable JUPYTER_GPUCKPT_DATA_DIR.",
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        directory.chmod(stat.S_IMODE(status.st_mode) & ~0o077)


def _run_here(settings: Settings, ready: Callable[[], None]) -> int:
    place = here(settings.data)
    path = socket_path(place, runtime_dir(settings.data))
    if not lifetime.hold_alone(Path(f"{path}.lock")):
        ready()
        return 0
    try:
        for directory in (settings.data, settings.store):
            _own(directory)
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
    # A socket that is there is one of a daemon that was killed: we hold its lock. tornado removes it.
    listener = bind_unix_socket(str(path), mode=0o600)

    async def life() -> None:
        await Daemon(settings, place, records).serve(listener, ready)

    asyncio.run(life())
    # Nobody can be waiting in between: a new daemon has to get the lock first, which ends with this process.
    path.unlink(missing_ok=True)
    records.release()
    return 0
