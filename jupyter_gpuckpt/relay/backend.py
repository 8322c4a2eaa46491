"""What the relay needs of the daemon, and its settings; imported in a thread, because it takes a second."""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq
from gpuckpt_provisioner.exit_status import exit_code
from jupyter_core.application import JupyterApp

from ..client.daemon_traits import GpuCkptDaemon
from ..errors import KernelNotFound
from ..wire.protocol import Event
from .engine_kernels import EngineKernels, RelayOwner, Start, is_absent
from .kept_records import KeptFolder, KeptRecord
from .kernel_requests import KernelRequests
from .traits import GpuCkptRelay

if TYPE_CHECKING:
    from .engine_kernels import Reached
    from .relayed_kernels import RelayedKernel

_INTERRUPT_SECONDS = 5.0


class Backend(EngineKernels):
    """Kernels at the daemon, for the relay. `settings`: the user's, of jupyter_gpuckpt_config.py."""

    def __init__(
        self, folder: Path, context: zmq.Context[Any], on_event: Callable[[Event], None]
    ) -> None:
        app = _App()
        with suppress(Exception):  # a broken file of the user must not end kernels
            app.load_config_file()
        self.settings = GpuCkptRelay(parent=app)
        owner = RelayOwner(
            GpuCkptDaemon(parent=app).settings(), _owner_id(folder), folder, on_event
        )
        super().__init__(owner, context)
        self._telling = threading.Lock()
        self.is_absent = is_absent

    def launch(self, record: KeptRecord, folder: KeptFolder, start: Any) -> Reached:  # noqa: ANN401 - a dictionary of the program
        """Start a kernel."""
        return super().launch(record, folder, Start(**start))

    def describe(self, kernel: RelayedKernel, info: dict[str, Any]) -> None:  # type: ignore[override]
        """Tell the daemon the notebook of a kernel as it is now: the last call tells the newest state. `info`: its kernel_info."""
        record = kernel.record
        with self._telling:
            is_kept = bool(record.path) and not record.is_before_restart and not record.ends_at
            super().describe(record, info, is_listed=is_kept and kernel.editor is None)

    def offer(self, kernel: RelayedKernel) -> None:  # type: ignore[override]
        """Let a Jupyter server take over a suspended kernel whose notebook no editor shows."""
        with self._telling:
            if kernel.record.path and not kernel.record.is_before_restart and kernel.editor is None:
                super().offer(kernel.record)

    def is_lost(self, error: Exception) -> bool:
        """Return whether an error says that a kernel has ended or is not this relay's any more."""
        return isinstance(error, KernelNotFound)

    def exit_code(self, exit_path: str) -> int:
        """Return the exit status of a kernel that has ended."""
        found = exit_code(exit_path)
        return 1 if found is None else found

    def interrupt(self, kernel: RelayedKernel) -> None:  # type: ignore[override]
        """Interrupt a kernel's cell, by a message if it understands that."""
        if kernel.record.has_agent and kernel.connection:
            with KernelRequests(self._context, kernel.connection) as requests:
                if requests.ask("interrupt_request", {}, _INTERRUPT_SECONDS):
                    return
        if not kernel.record.plain_reason:
            super().interrupt(kernel.record.kernel_id, signal.SIGINT)

    def end(self, kernel: RelayedKernel, after_seconds: float = 0.0) -> None:  # type: ignore[override]
        """End a kernel."""
        if kernel.record.plain_reason:
            with KernelRequests(self._context, kernel.connection) as requests:
                requests.ask("shutdown_request", {"restart": False}, _INTERRUPT_SECONDS)
            return
        with suppress(KernelNotFound):
            super().end(kernel.record, after_seconds)


class _App(JupyterApp):
    name = "jupyter-gpuckpt"


def _owner_id(folder: Path) -> str:
    """Return the id of this user's relays at the daemon: always the same, so that a new one has the kernels of the one before."""
    path = folder / "owner"
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(f"relay-{uuid.uuid4().hex}")
    return path.read_text()
