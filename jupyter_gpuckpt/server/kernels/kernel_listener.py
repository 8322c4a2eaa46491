"""The one protocol by which parts of the server learn what happens to its kernels.

The connection to the daemon, the gate and the kernel manager notify; events and policies listen. `service.py` adds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...protocol import Kernel, Operation
    from ...snapshot_records import SnapshotChange
    from ..messages.served_kernel import ServedKernel


class KernelListener:
    """A part that is notified of what happens to kernels. Every method does nothing here; override what you need."""

    # ---- notifications ----

    def kernel_changed(self, kernel_id: str) -> None:
        """Note that a kernel's state, operation or use of resources changed, or that it is gone."""

    def operation_changed(self, operation: Operation, name: str) -> None:
        """Note how an operation on the kernel of this name stands, whoever asked for it."""

    def kernel_suspended(self, kernel: Kernel) -> None:
        """Note that a kernel was just suspended, whoever asked for it."""

    def kernel_wanted(self, served: ServedKernel) -> None:
        """Note that somebody runs a cell in a kernel that cannot run it now."""

    def snapshot_changed(self, change: SnapshotChange) -> None:
        """Note that a snapshot was made, changed or removed, whoever did it."""

    def server_started(self) -> None:
        """Note that the daemon is connected and the kernels of earlier servers are listed."""

    # ---- requests, each of which waits for the listeners ----

    async def before_freeze(self, kernel_id: str) -> None:
        """Stop what is in the way of an explicit save or suspend. Never raise."""

    async def before_interrupt(self, kernel_id: str) -> None:
        """Prepare a kernel for an interrupt; raise GpuCkptError if it cannot be interrupted."""

    async def before_restart(self, kernel_id: str) -> None:
        """Keep what a restart would lose. Never raise."""

    async def kernel_idle(self, kernel_id: str) -> None:
        """Deal with a kernel that Jupyter would cull. Never raise."""

    async def keep_shut_down(self, kernel_id: str) -> bool:
        """Return True if the listener keeps a kernel that a user shuts down; else it is shut down at once."""
        return False

    async def server_stops(self) -> None:
        """Suspend and release kernels before Jupyter shuts down those that are left."""

    async def server_stopped(self) -> None:
        """Let go of everything: no kernel is left."""


def _notify(note: str) -> Any:
    """Return a method of `KernelListeners` that calls `note` of every listener."""

    def notify(self: KernelListeners, *arguments: Any) -> None:
        for listener in self.listeners:
            getattr(listener, note)(*arguments)

    return notify


def _ask(request: str) -> Any:
    """Return a method of `KernelListeners` that waits for `request` of one listener after the other, until one returns True."""

    async def ask(self: KernelListeners, *arguments: Any) -> bool:
        for listener in self.listeners:
            if await getattr(listener, request)(*arguments):
                return True
        return False

    return ask


class KernelListeners(KernelListener):
    """A listener that notifies all others, in the order in which they were added."""

    def __init__(self) -> None:
        self.listeners: list[KernelListener] = []

    def add(self, *listeners: KernelListener) -> None:
        """Add listeners, which are notified from now on."""
        self.listeners += listeners

    kernel_changed = _notify("kernel_changed")
    operation_changed = _notify("operation_changed")
    kernel_suspended = _notify("kernel_suspended")
    kernel_wanted = _notify("kernel_wanted")
    snapshot_changed = _notify("snapshot_changed")
    server_started = _notify("server_started")
    before_freeze = _ask("before_freeze")
    before_interrupt = _ask("before_interrupt")
    before_restart = _ask("before_restart")
    kernel_idle = _ask("kernel_idle")
    keep_shut_down = _ask("keep_shut_down")
    server_stops = _ask("server_stops")
    server_stopped = _ask("server_stopped")
