"""The record by which a server or script registers with the daemon, and a thread that keeps an owner's connection open."""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Self

from ..errors import DaemonUnavailable, GpuCkptError
from ..wire import calls
from ..wire.place import start_time
from ..wire.protocol import Event, Owner, OwnerKind
from . import starting, transport
from .mirror import Mirror
from .quick_httpx import httpx
from .starting import Target

_log = logging.getLogger(__name__)

OnEvent = Callable[[Event], None]
OnLoss = Callable[[GpuCkptError], None]


def this_owner(
    kind: OwnerKind,
    *,
    hub_server: str | None = None,
    root_dir: str = "",
    jupyter_runtime_dir: str = "",
    autosave_seconds: float = 0.0,
) -> Owner:
    """Return this process as a new owner, whose notebooks are in `root_dir`.

    `hub_server` names it at its hub, where one user may have several servers, each with its own kernels; by default the
    environment does.
    """
    if hub_server is None:
        hub_server = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "")
    pid = os.getpid()
    began = start_time(pid) or 0.0
    return Owner(
        uuid.uuid4().hex,
        kind,
        pid,
        began,
        hub_server,
        root_dir,
        jupyter_runtime_dir,
        autosave_seconds,
    )


class Backoff:
    """An exponential backoff before connecting again; short at first, for a daemon that was killed and is restarted."""

    FIRST_SECONDS, MAX_SECONDS = 0.1, 10.0

    def __init__(self) -> None:
        self._next = self.FIRST_SECONDS

    def succeeded(self) -> None:
        """Reset the next pause to the shortest."""
        self._next = self.FIRST_SECONDS

    def seconds(self) -> float:
        """Return the length of this pause; it doubles with every failure."""
        now, self._next = self._next, min(self._next * 2, self.MAX_SECONDS)
        return now


class Hold:
    """A connection of an owner that is reopened whenever it is lost, until `close`.

    `on_event` is called in the thread with every change in the stream; after each (re)connect with all kernels and operations,
    including those that disappeared meanwhile. `on_loss` is called when the connection is lost, before it is reopened.
    """

    def __init__(self, target: Target, owner: Owner, on_event: OnEvent, on_loss: OnLoss) -> None:
        self._target, self._owner = target, owner
        self._on_event, self._on_loss = on_event, on_loss
        self._mirror = Mirror()
        self._connection: socket.socket | None = None
        self._closed = threading.Event()
        self._first: Future[None] = Future()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="gpuckpt-owner", daemon=True)

    def open(self) -> Self:
        """Open the connection; return when the daemon knows the owner, raise DaemonUnavailable if it cannot be reached."""
        self._thread.start()
        self._first.result()
        return self

    def close(self) -> None:
        """Close the connection; a script's kernels die shortly after. A second call does nothing, nor does one in a forked child."""
        if self._pid != os.getpid():
            return
        self._closed.set()
        connection = self._connection
        if connection is not None:
            # The shutdown wakes the thread that reads from the connection.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=transport.CONNECT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self) -> None:
        backoff, patience_seconds = Backoff(), calls.ANSWER_SECONDS
        while not self._closed.is_set():
            try:
                starting.ensure(self._target, patience_seconds)
                for event in self._events():
                    backoff.succeeded()
                    self._deliver(event)
                loss: GpuCkptError = DaemonUnavailable("gpuckptd ended the connection.")
            except GpuCkptError as error:
                loss = error
            except (
                OSError
            ) as error:  # the runtime directory was removed, or there are no descriptors left
                loss = DaemonUnavailable(f"gpuckptd cannot be reached: {error}.")
            if not self._first.done():
                self._first.set_exception(loss)
                return
            if not self._closed.is_set():
                _log.warning("the connection to gpuckptd was lost: %s", loss)
                self._call(lambda loss=loss: self._on_loss(loss))  # type: ignore[misc]
            self._closed.wait(backoff.seconds())
            patience_seconds = calls.ALIVE_SECONDS  # it is asked again, anyway

    def _events(self) -> Iterator[Event]:
        call = calls.owner_events(self._owner)
        over_socket = transport.UnixTransport(self._target.socket)
        with (
            transport.transport_errors(self._target.socket),
            httpx.Client(transport=over_socket, **transport.ANYWHERE) as http,
            http.stream(**transport.arguments(call)) as response,
        ):
            self._connection = response.extensions["network_stream"].get_extra_info("socket")
            if self._closed.is_set():
                return
            if response.is_error:
                call.parse(response.status_code, response.read())
            for line in response.iter_lines():
                yield call.parse(response.status_code, line.encode())

    def _deliver(self, event: Event) -> None:
        for change in self._mirror.apply(event):
            self._call(lambda change=change: self._on_event(change))  # type: ignore[misc]
        if not self._first.done():
            self._first.set_result(None)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            _log.exception(
                "a callback for events of gpuckptd failed"
            )  # a failing callback must not end the connection
