"""The five ports of a kernel: chosen, held until the kernel or the daemon has them, and returned; or its five unix sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_client.connect import LocalPortCache

from jupyter_gpuckpt.client import socket_folders
from jupyter_gpuckpt.linux.ports import HeldPorts
from jupyter_gpuckpt.wire.own_sockets import OwnSockets

if TYPE_CHECKING:
    from jupyter_client.manager import KernelManager

NAMES = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


class KernelPorts:
    """The ports that a kernel manager has chosen for its kernel."""

    def __init__(self, manager: KernelManager) -> None:
        self._manager = manager
        self._held = HeldPorts([])

    @property
    def numbers(self) -> list[int]:
        """Return the ports, without those that are not chosen yet; none with a transport that has no TCP ports."""
        if self._manager.transport != "tcp":
            return []
        ports = (getattr(self._manager, name, 0) for name in NAMES)
        return [port for port in ports if isinstance(port, int) and port]

    def hold(self, *, choose: bool) -> None:
        """Hold the ports until `release`; with `choose` new ones, as the local provisioner would choose them.

        Otherwise any program could get one of them before the kernel listens, which takes a second and longer on a busy machine; the
        kernel would then end ("Address already in use").
        """
        self._held.release()
        if choose:
            self._held = HeldPorts.free(len(NAMES))
            for name, port in zip(NAMES, self._held.ports, strict=True):
                setattr(self._manager, name, port)
            self.note()
        elif self._manager.transport == "tcp":
            self._held = HeldPorts(self.numbers)
            self._held.hold()

    def choose_sockets(self, kernel_id: str) -> None:
        """With the transport `ipc`, let the kernel's sockets lie in a folder of their own, unless the user has chosen their address.

        Only then a second kernel from a snapshot can have its sockets at another place.
        """
        manager = self._manager
        by_default = ("kernel-ipc", f"{manager.connection_file.removesuffix('.json')}-ipc")
        if manager.transport == "ipc" and manager.ip in by_default:
            manager.ip = str(socket_folders.make(kernel_id) / socket_folders.SOCKETS)

    @property
    def sockets(self) -> OwnSockets:
        """Return the names of the unix sockets, and their own folder."""
        manager = self._manager
        if manager.transport != "ipc":
            return OwnSockets()
        names = [f"{manager.ip}-{getattr(manager, name)}" for name in NAMES]
        return OwnSockets(names, str(self._folder or ""))

    @property
    def _folder(self) -> Path | None:
        manager = self._manager
        return socket_folders.of({"transport": manager.transport, "ip": manager.ip})

    def remove_sockets(self) -> None:
        """Remove the sockets' own folder when the kernel has ended."""
        if folder := self._folder:
            socket_folders.remove(folder)

    def note(self) -> None:
        """Let no other manager of this process choose these ports, until Jupyter returns them with the kernel's end."""
        LocalPortCache.instance().currently_used_ports.update(self.numbers)

    def give_back(self) -> None:
        """Return the ports to Jupyter and set them to none, so that it takes those of a connection file."""
        for port in self.numbers:
            LocalPortCache.instance().return_port(port)
        for name in NAMES:
            setattr(self._manager, name, 0)

    def release(self) -> None:
        """Release the ports; the kernel keeps those on which it listens."""
        self._held.release()

    @contextmanager
    def released_on_error(self) -> Iterator[None]:
        """Release the ports if a step of the launch fails."""
        try:
            yield
        except BaseException:
            self.release()
            raise
