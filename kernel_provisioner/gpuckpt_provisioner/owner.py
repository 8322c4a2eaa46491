"""The owner of the kernels that this process launches.

A Jupyter server with our extension sets the attribute `gpuckpt_owner` of its multi kernel manager to a `KernelOwner`; the provisioner
and the extension know nothing else of each other. The manager of a batch run's kernel has the attribute itself. Everywhere else
(nbclient, papermill, jupyter console) the provisioner makes a `ScriptOwner`: the daemon ends its kernel when this process has ended.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from jupyter_gpuckpt.client import Client, Hold, this_owner
from jupyter_gpuckpt.errors import HostError
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import Event, Kernel, Owner, OwnerKind, Position, SuspendedKernel

from .agent_installation import install

if TYPE_CHECKING:
    from jupyter_client.connect import KernelConnectionInfo
    from jupyter_client.manager import KernelManager

    from jupyter_gpuckpt.wire.daemon_settings import Settings


class Watcher(Protocol):
    """Receiver of the daemon's records of one kernel, implemented by its provisioner. Called from any thread."""

    kernel: Kernel | None

    def note(self, kernel: Kernel) -> None:
        """Apply a changed record of the kernel."""

    def note_gone(self, position: Position) -> None:
        """Record that the daemon had no such kernel any more at this position: it ended or was killed."""


class KernelOwner(Protocol):
    """Owner of kernels, with its connection to the daemon. `client`, `attach` and `detach` are called in worker threads."""

    #: Whether users have already been told that the engine cannot work here.
    notice_given: bool

    @property
    def owner_id(self) -> str:
        """Return the id under which the daemon lists the kernels."""

    @property
    def settings(self) -> Settings:
        """Return the daemon's settings."""

    def client(self) -> Client:
        """Return a client whose daemon knows this owner.

        Raises HostError where the engine cannot work, and DaemonUnavailable.
        """

    def refusal(self, kernel_name: str) -> str:
        """Return the reason why kernels of this kernelspec must not run under the engine; empty if they may."""

    def adoption(self, kernel_id: str) -> SuspendedKernel | None:
        """Return the kernel of an earlier server that is to be adopted under this id, once; None if there is none."""

    def jupyter(self, manager: KernelManager) -> dict[str, Any]:
        """Return the data that the next owner needs besides kernelspec and connection, for instance sessions."""

    def launched(self, kernel_id: str, connection: KernelConnectionInfo) -> None:
        """Note that a new kernel's process exists, with its connection info; called on the event loop."""

    def attach(self, kernel_id: str, watcher: Watcher) -> None:
        """Pass the daemon's records of the kernel to `watcher` from now on."""

    def end_later(self, kernel_id: str) -> None:
        """End a kernel as soon as the daemon, which cannot be reached now, can be."""

    def detach(self, kernel_id: str) -> None:
        """Forget a kernel that has ended or has another owner now. A script also disconnects from the daemon."""


class ScriptOwner:
    """This process as the owner of one kernel, which ends with the process unless `owner` is of a kind whose kernels do not."""

    def __init__(self, settings: Settings, owner: Owner | None = None) -> None:
        self.settings = settings
        self.notice_given = False
        self._owner = owner or this_owner(OwnerKind.SCRIPT)
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._hold: Hold | None = None
        self._watchers: dict[str, Watcher] = {}

    @property
    def owner_id(self) -> str:
        """Return the id under which the daemon lists the kernel."""
        return self._owner.owner_id

    def client(self) -> Client:
        """Return the client; the first call starts the daemon, checks its engine and opens the owner's connection."""
        with self._lock:
            if self._client is None:
                client = connected(self.settings)
                self._hold = client.hold(self._owner, self._on_event)
                self._client = client
            else:
                self._client.require_answer()
            return self._client

    def refusal(self, kernel_name: str) -> str:
        """Return no reason: a script chose this provisioner itself."""
        return ""

    def adoption(self, kernel_id: str) -> SuspendedKernel | None:
        """Return None: kernels of scripts end with them, so there are none to adopt."""
        return None

    def jupyter(self, manager: KernelManager) -> dict[str, Any]:
        """Return no data: no other owner takes the kernel over."""
        return {}

    def launched(self, kernel_id: str, connection: KernelConnectionInfo) -> None:
        """Install the agent in the background: the clients of a script are served like the pages of a server."""
        threading.Thread(target=install, args=(connection,), daemon=True).start()

    def attach(self, kernel_id: str, watcher: Watcher) -> None:
        """Pass the daemon's records of the kernel to `watcher` from now on."""
        self._watchers[kernel_id] = watcher

    def end_later(self, kernel_id: str) -> None:
        """Do nothing: the daemon ends the kernel, because this process disconnects."""

    def detach(self, kernel_id: str) -> None:
        """Disconnect from the daemon, because the only kernel is gone; the daemon then kills the processes that are left of it."""
        self._watchers.pop(kernel_id, None)
        with self._lock:
            if self._hold is not None:
                self._hold.close()
                self._hold = None
            if self._client is not None:
                self._client.close()
                self._client = None

    def _on_event(self, event: Event) -> None:
        kernel_id = event.kernel.kernel_id if event.kernel else event.gone
        if watcher := self._watchers.get(kernel_id):
            if event.kernel is not None:
                watcher.note(event.kernel)
            else:
                watcher.note_gone(event.position)


def connected(settings: Settings) -> Client:
    """Return a client of a daemon whose engine works; raise HostError or DaemonUnavailable."""
    client = Client.connect(settings)
    handshake = client.send(calls.handshake())
    if not handshake.engine_available:
        client.close()
        raise HostError(handshake.reason, hint=handshake.hint)
    return client
