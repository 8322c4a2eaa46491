"""The server's view of one kernel under the engine: its state, and the gate that holds requests.

The gate is shut while the kernel cannot answer: from just before a suspend until this server is connected to it again after
the resume. The daemon decides the states and reports them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import ErrorRecord
from ...wire.progress import Stage
from ...wire.protocol import Kernel, Operation, OperationKind, Position
from ...wire.states import ABSENT, GPU_AWAY, KernelState
from . import routing_ids
from .comms import SavedComms
from .output import Client, KernelOutput

if TYPE_CHECKING:
    from jupyter_client.manager import KernelManager

_OPEN = frozenset({KernelState.STARTING, KernelState.RUNNING})
#: Stages of a save during which the kernel runs again already.
_AFTER_FREEZE = frozenset({Stage.STORE, Stage.REHEARSAL, Stage.COMMIT})


class Provisioner(Protocol):
    """The part of a kernel's provisioner that this server uses; it holds the daemon's record of the kernel."""

    kernel: Kernel | None

    def note(self, kernel: Kernel) -> None:
        """Apply a record of the kernel that the daemon has sent."""

    def note_gone(self, position: Position) -> None:
        """Record that the kernel was gone at this position of the daemon's stream."""

    @property
    def incarnation(self) -> str:
        """Return an id that distinguishes this start of the kernel from earlier ones."""

    def set_aside(self) -> None:
        """Forget the kernel's process, which the daemon keeps for an undo of the restart that follows."""

    def come_back(self, kernel: Kernel) -> None:
        """Take over the process that was set aside."""

    def release(self) -> None:
        """Release the kernel to the daemon and a later server."""

    def described_manager(self) -> dict[str, Any]:
        """Return the description for the manager of a later server: kernelspec, connection and so on."""


class Holder(Protocol):
    """What holds requests to the kernel while the gate is shut."""

    #: The sockets to the kernel, by name.
    channels: dict[str, Any]

    @property
    def client_session(self) -> str:
        """Return the session id under which the kernel knows its sockets."""

    def on_gate(self) -> None:
        """Handle a change of gate or state: send held requests if the gate is open."""

    def refuse_held(self, error: ErrorRecord) -> None:
        """Answer held requests with the reason why the kernel cannot be resumed."""

    def drop_held(self) -> None:
        """Drop held requests: the kernel for which they were meant is gone."""


class Connection(Holder, Protocol):
    """A page's websocket to the kernel (`gate.py`)."""

    #: The key of kernel and page; it is the same when the page connects again.
    session_key: str

    def show_status(self) -> None:
        """Tell the page whether a cell runs, if the kernel does not say that itself."""

    def take_over(self, previous: Any) -> Any:
        """Take over the requests that an earlier connection of the page held; return its unsent messages."""


class HoldingClient(Client, Holder, Protocol):
    """A client of other code in this server (`client_relay.py`)."""


class LeftPage(Connection, Protocol):
    """A connection whose page disconnected while it held requests, which are still delivered."""

    #: The kernel's replies meanwhile, as pairs of channel and message.
    unreceived: list[tuple[str, list[bytes]]]

    def close_channels(self) -> None:
        """Close the channels to a kernel that is gone."""


class GateListener(Protocol):
    """The part of `kernels.KernelListener` that the gate calls."""

    def kernel_changed(self, kernel_id: str) -> None:
        """Handle a change of the state or the gate."""

    def kernel_wanted(self, served: ServedKernel) -> None:
        """Handle a cell that was sent to a kernel that cannot run it now."""

    def cell_sent(self, served: ServedKernel, client: tuple[str, str]) -> None:
        """Handle a cell that was sent to a kernel, before the kernel gets it."""


#: A function that reconnects this server to a kernel after a resume, whichever client requested it.
Reconnect = Callable[["ServedKernel"], Coroutine[Any, Any, None]]


class ServedKernel:
    """The state of one kernel under the engine, and the gate that holds its requests. Used on the event loop only."""

    def __init__(
        self,
        kernel_id: str,
        provisioner: Provisioner,
        output: KernelOutput,
        reconnect: Reconnect,
        listener: GateListener,
    ) -> None:
        self.kernel_id = kernel_id
        self.provisioner = provisioner
        self.output = output
        self._reconnect, self._listener = reconnect, listener
        self.connections: set[Connection] = set()
        #: Pages that disconnected while requests of theirs were held, by `session_key`.
        self.left_pages: dict[str, LeftPage] = {}
        self._clients: list[HoldingClient] = []
        #: Whether the agent runs in the kernel.
        self.has_agent = False
        #: The number of saves and suspends that were begun: the kernel buffers its output for the latest only.
        self.freezes = 0
        #: Whether the agent answered the last request.
        self.answers = True
        #: Its comms and widgets as they were when it was last frozen.
        self.comms = SavedComms()
        #: The number of snapshots that this server has taken of it, and `output.changes` at the last one.
        self.saves = self._saved_changes = 0
        #: Whether it was just branched from a snapshot of a kernel that may still run.
        self.is_new_branch = False
        #: Whether it is being rolled back: a cell then waits for the end and does not resume the kernel.
        self.is_rolling_back = False
        #: Whether a cell waits until the state before it is saved.
        self.is_saved_first = False
        #: Whether this server may have switched off peer access between its GPUs; it must be on before the next cell.
        self.peer_access_is_off = False
        #: Whether this server parked it although no user requested that; True only while it is parked.
        self.is_parked_automatically = False
        #: The reason, for users, why its resume waits; empty if it does not wait.
        self.waits = ""
        #: Whether it is being resumed or unparked for a cell that was sent to it.
        self.is_wanted = False
        #: When it will be suspended because it is idle, in seconds since the epoch; None: not soon.
        self.suspends_at: float | None = None
        #: The snapshot with its state before its last restart; empty if there is none.
        self.before_restart = ""
        #: The snapshot with its state before a tool restored an older one; empty if a user has restored one since, or no tool did.
        self.before_tool = ""
        #: Whether the process before its last restart is kept, so that it can run on.
        self.is_former_kept = False
        #: Why its last restart cannot be undone; empty if it can, or if nothing was lost.
        self.restart_lost = ""
        self._holds = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._reconnecting: asyncio.Task[None] | None = None
        #: True after a resume, False after a fresh start: for users a resume ends when this server is connected again.
        self._came_back = False
        self._changed = asyncio.Event()

    @property
    def kernel(self) -> Kernel | None:
        """Return the daemon's record; None before the launch is complete."""
        return self.provisioner.kernel

    @property
    def state(self) -> KernelState:
        """Return the state that users see: `resuming` lasts until this server is connected to the kernel again."""
        if self.kernel is None:
            return KernelState.STARTING
        return KernelState.RESUMING if self.is_reconnecting else self.kernel.state

    @property
    def is_reconnecting(self) -> bool:
        """Return whether the kernel runs after a resume, but still buffers its output."""
        return self._reconnecting is not None and self._came_back

    @property
    def absent(self) -> bool:
        """Return whether the kernel has no process that could answer."""
        return self.state in ABSENT

    @property
    def is_left_alone(self) -> bool:
        """Return whether the kernel has no process, and nothing is about to give it one."""
        waits = self._holds or self.is_wanted or self.is_rolling_back
        return not waits and self.state in {KernelState.SUSPENDED, KernelState.LOST}

    @property
    def gate_is_open(self) -> bool:
        """Return whether requests are sent to the kernel."""
        if self._holds or self._reconnecting or self.is_rolling_back or self.is_saved_first:
            return False
        if self.state is KernelState.SAVING:
            operation = self.kernel.operation if self.kernel else None
            return operation is not None and is_past_freeze(operation)
        return self.state in _OPEN

    @property
    def is_held_by_others(self) -> bool:
        """Return whether more than one operation holds the gate shut."""
        return self._holds > 1

    @property
    def is_parked(self) -> bool:
        """Return whether the kernel answers requests, but must be unparked before a cell runs."""
        return not (self._holds or self.is_rolling_back) and self.state in GPU_AWAY

    @property
    def changed(self) -> bool:
        """Return whether a cell runs, or the kernel may have changed since this server's last snapshot."""
        return self.output.runs_cell or self.output.changes != self._saved_changes

    def add_client(self, client: HoldingClient) -> None:
        """Serve a client of other code in this server."""
        self._clients.append(client)
        self.output.clients.append(client)

    def remove_client(self, client: HoldingClient) -> None:
        """Stop serving a client; do nothing if it is not served."""
        for clients in (self._clients, self.output.clients):
            if client in clients:
                clients.remove(client)

    def note_saved(self, changes: int) -> None:
        """Record that a snapshot was taken when `output.changes` had this value."""
        self.saves += 1
        self._saved_changes = changes

    def hold(self) -> Callable[[], None]:
        """Shut the gate until the returned function is called; calling it again does nothing."""
        held = True

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self._holds -= 1
                self._notify()

        self._holds += 1
        return release

    def roll_back(self) -> Callable[[], None]:
        """Keep the gate shut, and prevent the kernel from being woken, until the returned function is called."""

        def end() -> None:
            self.is_rolling_back = False
            self._notify()

        self.is_rolling_back = True
        return end

    def save_first(self) -> Callable[[], None]:
        """Let cells wait until the returned function is called."""

        def end() -> None:
            self.is_saved_first = False
            self._notify()

        self.is_saved_first = True
        return end

    def wait_for(self, why: str) -> None:
        """Set the reason, for users, why its resume waits; empty: it no longer waits."""
        if why != self.waits:
            self.waits = why
            self._notify()

    def announce_suspend(self, at: float | None) -> None:
        """Set when the kernel will be suspended because it is idle; None: not soon."""
        if at != self.suspends_at:
            self.suspends_at = at
            self._notify()

    def apply(self, kernel: Kernel) -> None:
        """Apply a record of the kernel that the daemon has sent."""
        before = self.kernel.state if self.kernel else KernelState.STARTING
        self.provisioner.note(kernel)
        if before in ABSENT and self.kernel is not None and self.kernel.state not in ABSENT:
            self._start_reconnecting(came_back=True)
        elif before in GPU_AWAY and self.peer_access_is_off and self.state is KernelState.RUNNING:
            self._start_reconnecting(came_back=False)
        if before in GPU_AWAY and self.state not in GPU_AWAY:
            self.is_parked_automatically = False
        self._notify()

    async def reaches(self, states: Collection[KernelState], timeout_seconds: float) -> bool:
        """Wait until the user-visible state is one of `states`; return whether that was so in time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.state not in states:
                    await self.change()
        except TimeoutError:
            return False
        return True

    def wake(self) -> None:
        """Request a resume of the kernel if it is suspended, now or as soon as it is."""
        self._listener.kernel_wanted(self)

    def note_cell(self, client: tuple[str, str]) -> None:
        """Tell of a cell before it is sent to the kernel; it may have to wait then."""
        self._listener.cell_sent(self, client)

    def refuse_held(self, error: ErrorRecord) -> None:
        """Answer all held requests with an error."""
        for connection in self._all_connections():
            connection.refuse_held(error)

    def drop_held(self) -> None:
        """Drop all held requests: the kernel for which they were meant is gone."""
        for connection in self._all_connections():
            connection.drop_held()

    async def change(self) -> None:
        """Wait for the next change of state or gate."""
        await self._changed.wait()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a background task on the kernel, until it is done or the kernel is gone."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def end(self) -> set[asyncio.Task[None]]:
        """Cancel the spawned tasks, because the kernel is gone or no longer this server's; return them, as they may take a moment."""
        for task in self._tasks:
            task.cancel()
        while self.left_pages:
            self.left_pages.popitem()[1].close_channels()
        return set(self._tasks)

    def reset(self) -> None:
        """Prepare for a fresh kernel that is being launched under this id, on the sockets to which pages are connected."""
        self.end()
        self._reconnecting = None
        self.output.forget()
        self.has_agent, self.answers, self.comms = False, True, SavedComms()
        self._saved_changes, self.peer_access_is_off = 0, False
        self.drop_held()
        self._start_reconnecting(came_back=False)

    def come_back(
        self, kernel: Kernel, described: dict[str, Any], *, has_agent: bool, comms: SavedComms
    ) -> None:
        """Serve the process that was set aside before the last restart, in place of the one since.

        `described`: its output then (`KernelOutput.description`).
        """
        self.drop_held()
        self.output.forget()
        self.provisioner.come_back(kernel)
        self.has_agent, self.answers, self.comms = has_agent, True, comms
        self.output.changes += 1  # it is not what the last snapshot has
        self.output.follow(described)
        self._start_reconnecting(came_back=True)
        for connection in self.connections:
            connection.show_status()

    def renew_routing_ids(self) -> None:
        """Connect the sockets of all pages to the kernel under new routing ids."""
        self.output.renewals += 1
        for connection in self._all_connections():
            routing_ids.renew(connection.channels, self.routing_id(connection.client_session))

    def routing_id(self, client_session: str) -> bytes:
        """Return the routing id by which the kernel knows the sockets of a page now."""
        return routing_ids.routing_id(client_session, self.output.renewals)

    def _all_connections(self) -> list[Holder]:
        return [*self.left_pages.values(), *self.connections, *self._clients]

    def _start_reconnecting(self, *, came_back: bool) -> None:
        if self._reconnecting is not None:
            return
        self._came_back = came_back
        self._reconnecting = self.spawn(self._run_reconnect())

    async def _run_reconnect(self) -> None:
        try:
            await self._reconnect(self)
        finally:
            if self._reconnecting is asyncio.current_task():  # else a reset came between
                self._reconnecting = None
            self._notify()

    def _notify(self) -> None:
        # This wakes all present waiters; later ones wait for the next change.
        self._changed.set()
        self._changed = asyncio.Event()
        for connection in self._all_connections():
            connection.on_gate()
        self._listener.kernel_changed(self.kernel_id)


def is_past_freeze(operation: Operation) -> bool:
    """Return whether the kernel of a save runs again, while its memory is still being written."""
    return operation.kind is OperationKind.SAVE and operation.progress.stage in _AFTER_FREEZE


def not_managed(manager: KernelManager) -> tuple[str, str]:
    """Return the reason why a kernel does not run under the engine, and a hint."""
    provisioner = getattr(manager, "provisioner", None)
    if provisioner is None:
        return "Its manager uses no provisioner.", "Kernels behind a gateway cannot be saved."
    reason = getattr(provisioner, "plain_reason", "")
    if reason:
        return reason, getattr(provisioner, "plain_hint", "")
    return (
        f"It uses {type(provisioner).__name__}.",
        "Start it with the provisioner gpuckpt-provisioner.",
    )
