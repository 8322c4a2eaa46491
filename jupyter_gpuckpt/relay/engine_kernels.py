"""The kernels of the relay at the daemon: start, suspend, resume, end. Every method blocks; each is called in a thread."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import zmq
from gpuckpt_provisioner import GpuCkptProvisioner
from gpuckpt_provisioner.owner import ScriptOwner
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.paths import jupyter_runtime_dir

from ..client import this_owner
from ..client.agent_code import IMPLEMENTATION, installation_request, take_over
from ..client.left_kernels import left_kernel
from ..client.reviving import bring_back
from ..errors import GpuCkptError, KernelError, KernelNotFound
from ..linux.ports import moved_connection
from ..wire import calls
from ..wire.daemon_settings import Settings
from ..wire.manager_secrets import joined
from ..wire.manifest_records import Cause
from ..wire.protocol import (
    ClaimRequest,
    EndRequest,
    Event,
    Kernel,
    OwnerKind,
    SaveRequest,
    SuspendedKernel,
)
from ..wire.snapshot_records import RetentionPolicy
from ..wire.states import ABSENT, KernelState
from .kept_records import KeptFolder, KeptRecord
from .kernel_requests import KernelRequests

if TYPE_CHECKING:
    from subprocess import Popen

    from jupyter_client.connect import KernelConnectionInfo

#: The timeouts of a kernel's start, of the agent's answers, of user functions, and of switching off peer access between GPUs.
_START_SECONDS, _ANSWER_SECONDS, _CALLS_SECONDS, _GPU_SECONDS = 60.0, 5.0, 12.0, 42.0
#: A new kernel is looked at so often while it does not answer.
_LOOK_SECONDS = 2.0
_KEEP_ONE = RetentionPolicy(keep_last=1)

_log = logging.getLogger(__name__)


class Start(msgspec.Struct):
    """What an editor's program says about the kernel that it wants."""

    kernelspec: dict[str, Any]
    resource_dir: str
    environment: dict[str, str]
    folder: str


class Reached(NamedTuple):
    """The facts of a kernel that answers: its connection, its description if it is new, and how many messages its last resume followed."""

    connection: dict[str, Any]
    info: dict[str, Any]
    has_agent: bool
    resumed_at: int
    plain_reason: str = ""
    #: The exit status of a kernel without the engine, None while it runs; None for others.
    poll: Callable[[], int | None] | None = None
    exit_path: str = ""


class RelayOwner(ScriptOwner):
    """The relay as the owner of all its kernels. They outlive it, and the next relay has the same id."""

    def __init__(
        self, settings: Settings, owner_id: str, folder: Path, on_event: Callable[[Event], None]
    ) -> None:
        owner = this_owner(OwnerKind.SERVER, root_dir=str(folder))
        super().__init__(settings, msgspec.structs.replace(owner, owner_id=owner_id))
        self._notify = on_event

    def launched(self, kernel_id: str, connection: KernelConnectionInfo) -> None:
        """Do nothing: the relay installs the agent itself."""

    def detach(self, kernel_id: str) -> None:
        """Forget a kernel; the connection to the daemon stays."""
        self._watchers.pop(kernel_id, None)

    def _on_event(self, event: Event) -> None:
        super()._on_event(event)
        self._notify(event)


class _Manager(AsyncKernelManager):
    """The manager of a kernel while it starts."""

    def __init__(self, owner: RelayOwner, kernel_id: str, start: Start) -> None:
        super().__init__()
        self.gpuckpt_owner, self.kernel_id = owner, kernel_id
        described = {**start.kernelspec, "metadata": {}}
        self.kernel_name = described.pop("name", "python3")
        self._kernel_spec = KernelSpec(resource_dir=start.resource_dir, **described)
        Path(jupyter_runtime_dir()).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.connection_file = str(Path(jupyter_runtime_dir(), f"kernel-{kernel_id}.json"))
        self.provisioner = GpuCkptProvisioner(
            kernel_id=kernel_id, kernel_spec=self._kernel_spec, parent=self
        )


class EngineKernels:
    """The relay's calls to the daemon and to kernels."""

    def __init__(self, owner: RelayOwner, context: zmq.Context[Any]) -> None:
        self._owner, self._context = owner, context

    # ---- start -------------------------------------------------------------------------------------------------------

    def launch(self, record: KeptRecord, folder: KeptFolder, start: Start) -> Reached:
        """Start a kernel; return when it answers and, if it is an IPython kernel, writes its journal. Raises KernelError."""
        manager = _Manager(self._owner, record.kernel_id, start)
        asyncio.run(
            manager._async_start_kernel(cwd=start.folder, env=_environment(start.environment))
        )
        provisioner = cast("GpuCkptProvisioner", manager.provisioner)
        connection = _plain(manager.get_connection_info())
        poll = lambda: asyncio.run(provisioner.poll())  # noqa: E731
        try:
            info, has_agent, resumed_at = self._greet(connection, folder, poll)
        except GpuCkptError:
            asyncio.run(manager._async_shutdown_kernel(now=True))
            raise
        if provisioner.plain_reason:
            reason = f"{provisioner.plain_reason} {provisioner.plain_hint}".strip()
            process = cast("Popen[bytes]", provisioner.process)
            return Reached(connection, info, has_agent, resumed_at, reason, process.poll)
        exit_path = provisioner.incarnation
        provisioner.release()
        return Reached(connection, info, has_agent, resumed_at, exit_path=exit_path)

    def _greet(
        self, connection: dict[str, Any], folder: KeptFolder, poll: Callable[[], int | None]
    ) -> tuple[dict[str, Any], bool, int]:
        """Wait until a new kernel answers, install the agent and open the journal; return its description and what `Reached` has."""
        deadline, info = time.monotonic() + _START_SECONDS, dict[str, Any]()
        with KernelRequests(self._context, connection) as requests:
            while not info:
                info = requests.ask("kernel_info_request", {}, _LOOK_SECONDS)
                if not info and (poll() is not None or time.monotonic() > deadline):
                    raise KernelError(
                        "The kernel ended while it started, or does not answer.",
                        hint="Start it with another client to see why: `jupyter console`.",
                    )
            if info.get("implementation") != IMPLEMENTATION:
                return info, False, 0
            requests.ask("execute_request", installation_request(), _START_SECONDS)
            opened = self._open_journal(requests, folder, 0)
            return info, bool(opened), opened.get("resumed_at", 0)

    def _open_journal(
        self, requests: KernelRequests, folder: KeptFolder, received: int
    ) -> dict[str, Any]:
        return requests.ask_agent(
            "journal", _ANSWER_SECONDS, path=str(folder.journal), received=received
        )

    def cut_journal(self, connection: dict[str, Any], folder: KeptFolder, received: int) -> None:
        """Let a kernel remove the messages up to a number from its journal."""
        with KernelRequests(self._context, connection) as requests:
            self._open_journal(requests, folder, received)

    # ---- suspend and resume ------------------------------------------------------------------------------------------

    def reach(self, record: KeptRecord, folder: KeptFolder) -> Reached:
        """Take a kernel of an earlier relay, or one that was suspended, over; return when it runs and answers."""
        saved = self.claimed(record.kernel_id)
        kernel = self._brought_back(saved.kernel)
        connection = joined(saved.jupyter, saved.secrets)["connection_info"]
        moved = {old: new for old, new in kernel.moved_ports.items() if old in connection.values()}
        connection = moved_connection(connection, list(moved), list(moved.values()))
        resumed_at = 0
        if record.has_agent:
            deadline = time.monotonic() + _START_SECONDS
            with KernelRequests(self._context, connection) as requests:
                while not (opened := self._open_journal(requests, folder, 0)):
                    if time.monotonic() > deadline:
                        raise KernelError("The kernel does not answer after its resume.")
                resumed_at = opened["resumed_at"]
                requests.ask_agent(
                    "resumed",
                    _ANSWER_SECONDS,
                    **take_over(os.environ, (), moved),
                    connection_file=str(
                        Path(jupyter_runtime_dir(), f"kernel-{record.kernel_id}.json")
                    ),
                    branched=False,
                    gpu_is_back=True,
                    journal=str(folder.journal),
                )
                if requests.ask_agent("count", _ANSWER_SECONDS).get("on_resume"):
                    requests.ask_agent("on_resume", _CALLS_SECONDS)
        return Reached(connection, {}, record.has_agent, resumed_at, exit_path=kernel.exit_path)

    def claimed(self, kernel_id: str) -> SuspendedKernel:
        """Return a kernel that is this relay's, or whose owner has ended. Raises KernelNotFound."""
        client = self._owner.client()
        found = client.send(calls.claim(self._owner.owner_id, ClaimRequest(kernel_id)))
        if not found:
            raise KernelNotFound(
                "The kernel has ended, or a Jupyter server has it now.",
                hint="`jupyter gpuckpt ps` lists all kernels.",
            )
        return found[0]

    def state_of(self, kernel_id: str) -> KernelState | None:
        """Return the state of a kernel of this relay; None if it has ended, or if a Jupyter server has it."""
        try:
            return self.claimed(kernel_id).kernel.state
        except KernelNotFound:
            # One that its client has shut down cannot be claimed while it waits for its end.
            kernels = self._owner.client().send(calls.kernels())
            ours = [one for one in kernels if one.owner_id == self._owner.owner_id]
            return next((one.state for one in ours if one.kernel_id == kernel_id), None)

    def left_by_server(self, path: str, known: Container[str]) -> tuple[str, bool]:
        """Return the id of the kernel that a server, which has ended, left for a notebook, and whether it has an agent; else empty.

        `known`: ids of kernels that do not count.
        """
        kernel_id = left_kernel(
            self._owner.settings.state, path.lstrip("/"), root="/", owner_id="", known=known
        )
        if not kernel_id:
            return "", False
        try:
            saved = self.claimed(kernel_id)
        except KernelNotFound:
            return "", False
        return kernel_id, bool(saved.jupyter.get("agent"))

    def _brought_back(self, kernel: Kernel) -> Kernel:
        def tell(warning: str) -> None:
            _log.warning("kernel %s: %s", kernel.kernel_id, warning)

        found = bring_back(self._owner.client(), kernel.kernel_id, tell)
        if found is None:
            raise KernelNotFound("The kernel was lost, and it has no snapshot.")
        return found

    def suspend(self, record: KeptRecord, connection: dict[str, Any], cause: Cause) -> None:
        """Suspend an idle kernel."""
        client, peer_access_off = self._owner.client(), False
        if record.has_agent:
            with KernelRequests(self._context, connection) as requests:
                if requests.ask_agent("count", _ANSWER_SECONDS).get("on_save"):
                    requests.ask_agent("on_save", _CALLS_SECONDS)
                peers = requests.ask_agent("peers_off", _GPU_SECONDS)
                peer_access_off = peers.get("peer_access") == "off"
        request = SaveRequest(cause=cause, peer_access_off=peer_access_off, retention=_KEEP_ONE)
        client.wait(client.send(calls.suspend(record.kernel_id, request)).operation_id)

    def offer(self, record: KeptRecord) -> None:
        """Let a Jupyter server take over a kernel."""
        self._owner.client().send(calls.leave(self._owner.owner_id, kernel_id=record.kernel_id))

    def describe(self, record: KeptRecord, info: dict[str, Any], *, is_listed: bool) -> None:
        """Tell the daemon the notebook of a kernel; with `is_listed` it is a session that a server may list."""
        saved = self.claimed(record.kernel_id)
        row = {
            "session_id": record.session_id,
            "path": record.path.lstrip("/"),
            "name": record.name,
            "type": "notebook",
            "kernel_id": record.kernel_id,
        }
        jupyter = {
            **saved.jupyter,
            "sessions": [row] if is_listed else [],
            "root": "/" if record.path else "",
            "agent": record.has_agent,
            "kernel_info": info,
            # What a server has said that had the kernel before.
            "output": {},
            "comms": {},
            "execution_state": "idle",
        }
        self._owner.client().send(
            calls.set_jupyter(record.kernel_id, record.path or record.kernel_name, jupyter)
        )

    # ---- the end -----------------------------------------------------------------------------------------------------

    def interrupt(self, kernel_id: str, signum: int) -> None:
        """Send a signal to a kernel."""
        self._owner.client().send(calls.signal(kernel_id, signum))

    def end(self, record: KeptRecord, after_seconds: float = 0.0) -> None:
        """End a kernel, now or after some seconds, in which `undo_end` brings it back; its automatic snapshots are deleted with it."""
        client = self._owner.client()
        if after_seconds:
            client.send(calls.end(record.kernel_id, EndRequest(after_seconds)))
            return
        if self.state_of(record.kernel_id) is None:
            return
        try:
            client.send(calls.kill(record.kernel_id))
        except KernelNotFound:
            _log.debug("kernel %s has ended already", record.kernel_id)
        for snapshot in client.send(calls.snapshots(record.kernel_id)):
            if snapshot.cause.automatic and not snapshot.pinned:
                client.send(calls.delete_snapshot(snapshot.snapshot_id, here_only=True))

    def undo_end(self, kernel_id: str) -> None:
        """Let a kernel run on that was to end."""
        self._owner.client().send(calls.undo_end(kernel_id))


def is_absent(kernel: Kernel) -> bool:
    """Return whether requests to a kernel would be lost."""
    return kernel.state in ABSENT or kernel.state is KernelState.SUSPENDING


def _environment(of_editor: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in of_editor.items() if name != "JPY_PARENT_PID"}


def _plain(info: Any) -> dict[str, Any]:  # noqa: ANN401 - jupyter_client's typed dictionary
    return {
        name: value.decode() if isinstance(value, bytes) else value for name, value in info.items()
    }
