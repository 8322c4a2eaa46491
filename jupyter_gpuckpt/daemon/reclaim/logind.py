"""Source of shutdown notices from systemd's login manager (logind), which delays the shutdown while kernels are suspended.

The delay is at most `InhibitDelayMaxSec`, by default 5 seconds. Needs the package jeepney (extra `logind`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import suppress
from typing import Any

from jeepney import DBusAddress, HeaderFields, MatchRule, MessageType, Properties, new_method_call
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import DBusConnection, open_dbus_connection

from ...wire.reclaim_records import Notice, NoticeKind, now
from .polling import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS

_NAME, _PATH, _INTERFACE = (
    "org.freedesktop.login1",
    "/org/freedesktop/login1",
    "org.freedesktop.login1.Manager",
)
_LOGIND = DBusAddress(_PATH, _NAME, _INTERFACE)
_ANSWER_SECONDS = 10.0
#: The most signals that are queued while the answer to a call is read.
_MAX_SIGNALS = 16
_MAX_DELAY_SECONDS = 3600.0
#: The intervals at which the thread checks for its own end, and for a restart of logind.
_LOOK_SECONDS, _OWNER_SECONDS = 0.5, 30.0

_log = logging.getLogger(__name__)


class Shutdowns:
    """The source of system shutdowns. It delays a shutdown until every kernel is safe."""

    name = "shutdown"

    def __init__(self) -> None:
        #: The descriptor by which the shutdown is delayed; -1: none.
        self._inhibitor = -1
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._count = 0

    async def notices(self, known: Iterable[Notice] = ()) -> AsyncGenerator[Notice]:
        """Yield notices for ever."""
        found: asyncio.Queue[Notice] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(notice: Notice) -> None:
            with suppress(RuntimeError):  # the loop is closed: the daemon exits
                loop.call_soon_threadsafe(found.put_nowait, notice)

        def listen() -> None:
            failures = 0
            while not self._ended.is_set():
                try:
                    for notice in self._heard():
                        failures = 0
                        tell(notice)
                except Exception as error:  # any failure of the bus, of logind or of a message
                    if not failures:
                        _log.info("the system's shutdown is not noticed: %s", error)
                    longest = min(FIRST_PAUSE_SECONDS * 2 ** min(failures, 20), MAX_PAUSE_SECONDS)
                    failures += 1
                    self._ended.wait(longest * random.uniform(0.5, 1.0))  # noqa: S311
                finally:
                    self._release()

        self._ended.clear()
        thread = threading.Thread(target=listen, name="logind", daemon=True)
        thread.start()
        try:
            while True:
                yield await found.get()
        finally:
            self._ended.set()

    async def acknowledge(self, notice: Notice) -> None:
        """Let the shutdown continue."""
        if notice.id.startswith(f"{self.name}:"):
            self._release()

    def _heard(self) -> Iterator[Notice]:
        """Yield the notices from one connection to the bus. Raises the connection's errors."""
        with open_dbus_connection("SYSTEM", enable_fds=True) as bus:
            # Anybody can send a signal, so only signals from the owner of logind's name count.
            (owner,) = _call(bus, message_bus.GetNameOwner(_NAME))
            rule = MatchRule(
                type="signal",
                sender=owner,
                interface=_INTERFACE,
                member="PrepareForShutdown",
                path=_PATH,
            )
            _call(bus, message_bus.AddMatch(rule))
            with bus.filter(rule, bufsize=_MAX_SIGNALS) as told:
                self._inhibit(bus)
                yield from self._told(bus, told, owner)

    def _told(self, bus: DBusConnection, told: Any, owner: str) -> Iterator[Notice]:
        standing: Notice | None = None
        checked_at = now()
        while not self._ended.is_set():
            if now() - checked_at > _OWNER_SECONDS:
                checked_at = now()
                if _call(bus, message_bus.GetNameOwner(_NAME)) != (owner,):
                    raise OSError("logind was started again")
            try:
                begins = bus.recv_until_filtered(told, timeout=_LOOK_SECONDS).body[0]
            except TimeoutError:
                continue
            if begins is True and standing is None:
                self._count += 1
                deadline = now() + _delay_seconds(bus)
                notice_id = f"{self.name}:{self._count}"
                standing = Notice(
                    notice_id, NoticeKind.SHUTDOWN, deadline, disk_survives=True, ends_early=True
                )
                yield standing
            elif not begins and standing is not None:
                yield Notice(standing.id, standing.kind, standing.deadline, withdrawn=True)
                standing = None
                self._inhibit(bus)

    def _inhibit(self, bus: DBusConnection) -> None:
        arguments = ("shutdown", "gpuckpt", "Jupyter kernels are being saved", "delay")
        (inhibitor,) = _call(bus, new_method_call(_LOGIND, "Inhibit", "ssss", arguments))
        self._release()
        with self._lock:
            self._inhibitor = inhibitor.to_raw_fd()

    def _release(self) -> None:
        with self._lock:
            inhibitor, self._inhibitor = self._inhibitor, -1
        if inhibitor >= 0:
            os.close(inhibitor)


def _delay_seconds(bus: DBusConnection) -> float:
    """Return the longest delay of a shutdown in seconds, at most an hour."""
    ((_, microseconds),) = _call(bus, Properties(_LOGIND).get("InhibitDelayMaxUSec"))
    return min(float(microseconds) / 1e6, _MAX_DELAY_SECONDS)


def _call(bus: DBusConnection, message: Any) -> Any:
    """Send a call and return the body of its reply. Raises OSError for an error."""
    reply = bus.send_and_get_reply(message, timeout=_ANSWER_SECONDS)
    if reply.header.message_type is MessageType.error:
        raise OSError(str(reply.header.fields.get(HeaderFields.error_name, "an error")))
    return reply.body
