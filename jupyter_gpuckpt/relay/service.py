"""The relay: it gives each editor a kernel, keeps kernels whose editor has gone, and passes their messages on."""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from .backend_import import BackendImport
from .editor_programs import EditorPrograms
from .editor_requests import EditorRequests
from .editor_table import EditorTable
from .event_loop import EventLoop
from .kernel_choice import KernelChoice
from .kernel_table import KernelTable

if TYPE_CHECKING:
    from ..wire.protocol import Event

#: How long a relay without editors and running kernels stays.
_IDLE_EXIT_SECONDS = 60.0

_log = logging.getLogger(__name__)


class Relay:
    """The relay of one user. It binds ports before it imports what talks to the daemon, which takes a second."""

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        self._loop, context = EventLoop(), zmq.Context()
        self._backend = BackendImport(folder, context, self._on_event)
        self._kernels = KernelTable(folder, self._loop, context, self._backend)
        self._editors = EditorTable(self._loop, self._kernels)
        choice = KernelChoice(self._loop, self._backend, self._kernels, self._editors)
        requests = EditorRequests(self._backend, self._kernels, choice)
        EditorPrograms(
            listener, self._loop, context, self._kernels, self._editors, choice, requests
        )
        self._needed_at = time.monotonic()

    def run(self) -> None:
        """Serve until nobody needs the relay."""
        self._kernels.load()
        self._loop.in_thread(self._backend, self._backend_is_there)
        self._loop.every(1.0, self._look_after)
        self._loop.run()
        self._kernels.close()

    def _backend_is_there(self, backend: object) -> None:
        if isinstance(backend, Exception):
            _log.error("the relay cannot work", exc_info=backend)
        self._kernels.find_all()

    def _on_event(self, event: Event) -> None:
        """Handle an event of the daemon; called in another thread."""
        self._loop.from_thread(lambda: self._kernels.note(event))

    def _look_after(self) -> None:
        """End the relay when nobody needs it."""
        now = time.monotonic()
        has_editors, has_kernels = self._editors.look_after(), self._kernels.look_after()
        if has_editors or has_kernels:
            self._needed_at = now
        elif now - self._needed_at > _IDLE_EXIT_SECONDS:
            self._loop.stop()
