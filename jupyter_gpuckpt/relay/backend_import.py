"""The late import of what talks to the daemon: it takes a second, in which ports are bound already."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

if TYPE_CHECKING:
    from ..wire.protocol import Event
    from .backend import Backend
    from .traits import GpuCkptRelay


class BackendImport:
    """The backend, imported and made by the first call. `on_event`: called in another thread."""

    def __init__(
        self, folder: Path, context: zmq.Context[Any], on_event: Callable[[Event], None]
    ) -> None:
        self._folder, self._context, self._on_event = folder, context, on_event
        self._lock = threading.Lock()
        self._made: Backend | None = None

    def __call__(self) -> Backend:
        """Return what starts, suspends and resumes kernels. Called in threads."""
        with self._lock:
            if self._made is None:
                from .backend import Backend  # noqa: PLC0415 - importing it takes a second

                self._made = Backend(self._folder, self._context, self._on_event)
            return self._made

    @property
    def settings(self) -> GpuCkptRelay | None:
        """Return the settings; None until the backend is imported."""
        return self._made.settings if self._made is not None else None
