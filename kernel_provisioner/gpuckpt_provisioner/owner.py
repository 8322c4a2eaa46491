"""Who owns the kernels that this process launches.

A Jupyter server with our extension sets the attribute `gpuckpt_owner` on its multi kernel manager to an object of the
shape `KernelOwner`; the provisioner and the extension know nothing else of each other. Everywhere else (nbclient,
papermill, jupyter console) the provisioner makes a `ScriptOwner`: the daemon ends its kernel when this process is gone.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from jupyter_gpuckpt import calls
from jupyter_gpuckpt.client import Client, Hold, this_owner
from jupyter_gpuckpt.errors import HostError
from jupyter_gpuckpt.protocol import Event, Kernel, OwnerKind, Position, SuspendedKernel

if TYPE_CHECKING:
    from jupyter_client.manager import KernelManager

    from jupyter_gpuckpt.daemon_settings import Settings


class Watcher(Protocol):
    """Who wants to know what becomes of one kernel, the provisioner. Called from any thread."""

    kernel: Kernel | None

    def note(self, kernel: Kernel) -> None:
        """The kernel changed."""

    def note_gone(self, position: Position) -> None:
        """The daemon had forgotten the kernel at this position: it ended or was killed."""


class KernelOwner(Protocol):
    """Whose kernels they are, and the way to the daemon. `client`, `attach` and `detach` are called in worker threads."""

    #: Whether people have been told already that the engine cannot work here.
    notice_given: bool

    @property
    def owner_id(self) -> str:
        """The owner under which the daemon lists the kernels."""

    @property
    def settings(self) -> Settings:
        """The daemon's settings."""

    def client(self) -> Client:
        """A client whose daemon knows this owner.

        Raises HostError where the engine cannot work and DaemonUnavailable.
        """

    def refusal(self, kernel_name: str) -> str:
        """Why kernels of this kernelspec are not to run under the engine; empty if they are."""

    def adoption(self, kernel_id: str) -> SuspendedKernel | None:
        """The kernel of an earlier server that is to be taken over under this id; handed out once."""

    def jupyter(self, manager: KernelManager) -> dict[str, Any]:
        """What the next owner needs beside kernelspec and connection: sessions and the like."""

    def launched(self, kernel_id: str) -> None:
        """A new kernel's process exists; called on the event loop."""

    def attach(self, kernel_id: str, watcher: Watcher) -> None:
        """Tell `watcher` from now on what happens to the kernel."""

    def detach(self, kernel_id: str) -> None:
        """Tell no more: the kernel is gone for good or belongs to somebody else now. A script lets go of the daemon."""


class ScriptOwner:
    """This process as the owner of one kernel, which does not outlive it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.notice_given = False
        self._owner = this_owner(OwnerKind.SCRIPT)
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._hold: Hold | None = None
        self._watchers: dict[str, Watcher] = {}

    @property
    def owner_id(self) -> str:
        """Under which the daemon lists the kernel."""
        return self._owner.owner_id

    def client(self) -> Client:
        """The client; at the first call the daemon is started, asked and told of this owner."""
        with self._lock:
            if self._client is None:
                client = connected(self.settings)
                self._hold = client.hold(self._owner, self._on_event)
                self._client = client
            return self._client

    def refusal(self, kernel_name: str) -> str:
        """Never: a script chose this provisioner itself."""
        return ""

    def adoption(self, kernel_id: str) -> None:
        """Never: kernels of scripts end with them."""
        return

    def jupyter(self, manager: KernelManager) -> dict[str, Any]:
        """Nothing: nobody takes the kernel over."""
        return {}

    def launched(self, kernel_id: str) -> None:
        """A new kernel's process exists; called on the event loop."""

    def attach(self, kernel_id: str, watcher: Watcher) -> None:
        """See `KernelOwner`."""
        self._watchers[kernel_id] = watcher

    def detach(self, kernel_id: str) -> None:
        """The one kernel is gone: let go of the daemon, which then kills whatever is left."""
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
    """A client of a daemon whose engine works; raises HostError and DaemonUnavailable."""
    client = Client.connect(settings)
    handshake = client.send(calls.handshake())
    if not handshake.engine_available:
        client.close()
        raise HostError(handshake.reason, hint=handshake.hint)
    return client
