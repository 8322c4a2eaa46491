"""The interface by which parts of the server are notified of changes of its kernels.

The connection to the daemon, the gate and the kernel manager notify; events and policies listen. `service.py` adds them.
"""

from __future__ import annotations

import logging
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...wire.protocol import Kernel, Operation
    from ...wire.reclaim_records import Notice
    from ...wire.snapshot_records import SnapshotChange
    from ..messages.served_kernel import ServedKernel

_log = logging.getLogger(__name__)


class KernelListener:
    """A listener for changes of kernels. Every method does nothing here; override those that you need."""

    # ---- notifications ----

    def kernel_changed(self, kernel_id: str) -> None:
        """Handle a change of a kernel's state, operation or use of resources, or its removal."""

    def kernel_ended(self, kernel_id: str) -> None:
        """Handle a kernel that a user ended through another client."""

    def operation_changed(self, operation: Operation, name: str) -> None:
        """Handle a change of an operation on the kernel of this name, whichever client requested it."""

    def kernel_suspended(self, kernel: Kernel) -> None:
        """Handle the end of a suspend, whichever client requested it."""

    def kernel_wanted(self, served: ServedKernel) -> None:
        """Handle a cell that was sent to a kernel that cannot run it now."""

    def cell_sent(self, served: ServedKernel, client: tuple[str, str]) -> None:
        """Handle a cell that was sent to a kernel, before the kernel gets it. `client`: the user name and the program that it states."""

    def snapshot_changed(self, change: SnapshotChange) -> None:
        """Handle a snapshot that was made, changed or removed by any client."""

    def notice_changed(self, notice: Notice) -> None:
        """Handle a notice that this machine will go, a change of one, or its withdrawal."""

    def user_asked(self, kernel_id: str, content: dict[str, Any]) -> None:
        """Handle a request of the user's code in a kernel."""

    def server_started(self) -> None:
        """Handle the server's start: the daemon is connected and the kernels of earlier servers are listed."""

    # ---- requests: the caller waits for the listeners ----

    async def before_freeze(self, kernel_id: str) -> None:
        """Stop work that prevents an explicit save or suspend. Never raises."""

    async def before_interrupt(self, kernel_id: str) -> None:
        """Prepare a kernel for an interrupt. Raises GpuCkptError if it cannot be interrupted."""

    async def before_restart(self, kernel_id: str) -> bool:
        """Return True if the listener has set the kernel's process aside, so that it need not be ended. Never raises."""
        return False

    async def kernel_idle(self, kernel_id: str) -> None:
        """Handle a kernel that Jupyter would cull. Never raises."""

    async def keep_shut_down(self, kernel_id: str) -> bool:
        """Return True if the listener keeps a kernel that a user shuts down; else it is shut down at once."""
        return False

    async def server_stops(self) -> None:
        """Suspend and release kernels before Jupyter shuts down those that are left."""

    async def server_stopped(self) -> None:
        """Release all resources: no kernel is left."""


def _notify(note: str) -> Any:
    """Return a method of `KernelListeners` that calls `note` of every listener, even if one raises."""

    def notify(self: KernelListeners, *arguments: Any) -> None:
        for listener in self.listeners:
            try:
                getattr(listener, note)(*arguments)
            except (
                Exception
            ):  # it must affect neither the other listeners nor the connection to the daemon
                _log.exception("%s failed in %s", type(listener).__name__, note)

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
        """Add listeners at the end; they are notified from now on."""
        self.listeners += listeners


for _name, _method in vars(KernelListener).items():
    if not _name.startswith("_"):
        _passed_on = _ask(_name) if iscoroutinefunction(_method) else _notify(_name)
        setattr(KernelListeners, _name, _passed_on)
