"""The server's part of save, suspend and resume, around the daemon's operations.

Covers: the description that is sent with a kernel, the gate before a freeze, the subscribers after a resume; an operation is over
only when daemon and server are done. Does not cover: REST (`rest/`), states (the daemon's).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from ...errors import (
    GpuCkptError,
    KernelNotFound,
    KernelNotManaged,
    KernelStateConflict,
)
from ...wire import calls
from ...wire.manifest_records import Cause, Variables
from ...wire.protocol import (
    FilesChoice,
    Kernel,
    Operation,
    OperationKind,
    OperationState,
    SaveRequest,
)
from ...wire.states import ABSENT, KernelState
from ..messages.probe import drained, ensure_known_info, wait_until_connected
from ..messages.served_kernel import ServedKernel, is_past_freeze, not_managed
from . import agent_calls
from .kernel_listener import KernelListener
from .notebook_sessions import manager_of
from .peer_access_hold import PeerAccessSwitch
from .reconnector import RECONNECT_SECONDS
from .tracked_operations import TrackedOperations
from .variables import variables_of

if TYPE_CHECKING:
    import logging

    from jupyter_server.services.kernels.kernelmanager import (
        AsyncMappingKernelManager,
        ServerKernelManager,
    )

    from ...wire.snapshot_records import RetentionPolicy, Snapshot
    from .daemon_link import DaemonLink
    from .descriptions import KernelDescriptions
    from .kernel_manager import GpuCkptKernels

_DRAIN_SECONDS = 10.0
#: How long a save or suspend waits for a restart of the kernel.
_RESTART_SECONDS = 10.0
_PRESENT = frozenset(KernelState) - ABSENT
#: How long a save computes fingerprints of variables, for later comparisons, while cells wait; less if time may be short, or if
#: no user requested the save.
_FINGERPRINT_SECONDS = {Cause.AUTOSAVE: 0.3, Cause.TOOL: 0.3} | dict.fromkeys(
    (Cause.MEMORY, Cause.RECLAIM, Cause.SHUTDOWN), 0.1
)
_MAX_FINGERPRINT_SECONDS = 1.0
#: The causes of snapshots before which a kernel frees unused memory, with the time for collecting garbage.
_TRIM_SECONDS = {Cause.IDLE: 2.0, Cause.MEMORY: 0.5, Cause.AUTOSAVE: 0.5, Cause.SHUTDOWN: 0.1}

Release = Callable[[], None]


class Resume(Protocol):
    """The type of `GpuRoom.resume`. An empty snapshot id means the latest one."""

    def __call__(
        self,
        kernel_id: str,
        snapshot_id: str,
        *,
        take_over: bool = False,
        force: bool = False,
        files: FilesChoice = "",
    ) -> Awaitable[Operation]:
        """Start a resume."""


class ServerOperations(KernelListener):
    """The operations on this server's kernels: the daemon's, with the server's work before and after them."""

    def __init__(
        self,
        link: DaemonLink,
        kernels: AsyncMappingKernelManager,
        *,
        descriptions: KernelDescriptions,
        peer_access: PeerAccessSwitch,
        listener: KernelListener,
        retention: RetentionPolicy,
        trims: bool,
        log: logging.Logger,
    ) -> None:
        self._link, self._kernels, self._descriptions = link, kernels, descriptions
        self._peer_access, self._listener = peer_access, listener
        self.retention, self._trims = retention, trims
        self._log = log
        self.tracked = TrackedOperations(listener.kernel_changed, self._send_cancel)
        self._background: set[asyncio.Task[None]] = set()
        #: True once the server stops: kernels that it suspends then stay suspended.
        self.stopping = False

    def served(self, kernel_id: str) -> ServedKernel:
        """Return a kernel under the engine; raise KernelNotFound, KernelNotManaged, or KernelStateConflict while it is being started."""
        if kernel_id not in self._kernels:
            raise KernelNotFound(f"This server has no kernel {kernel_id}.")
        served = self._link.served.get(kernel_id)
        if served is None:
            reason, hint = not_managed(self._manager(kernel_id))
            raise KernelNotManaged(f"The kernel cannot be saved. {reason}", hint=hint)
        if served.kernel is None:
            raise KernelStateConflict("Please wait: this kernel is being started.")
        return served

    async def save(
        self, kernel_id: str, name: str = "", *, cause: Cause = Cause.MANUAL
    ) -> Operation:
        """Start taking a snapshot; the kernel runs on."""
        return await self._freeze(OperationKind.SAVE, kernel_id, name, cause)

    async def suspend(
        self,
        kernel_id: str,
        name: str = "",
        *,
        cause: Cause = Cause.MANUAL,
        check: Callable[[], None] = lambda: None,
        removes: bool = True,
        with_files: bool = False,
    ) -> Operation:
        """Start taking a snapshot, after which the kernel's process ends; the kernel stays in the list.

        An idle kernel (`Cause.spares_connections`) is left alone if that would cut its network connections. `check`: raises an error
        if the suspend is unwanted now that no cell can begin unnoticed. `removes`: whether retention runs afterwards. `with_files`: as in
        `SaveRequest.files`.
        """
        return await self._freeze(
            OperationKind.SUSPEND,
            kernel_id,
            name,
            cause,
            check,
            removes=removes,
            with_files=with_files,
        )

    async def resume(
        self,
        kernel_id: str,
        snapshot_id: str = "",
        *,
        take_over: bool = False,
        force: bool = False,
        files: FilesChoice = "",
    ) -> Operation:
        """Start resuming a suspended kernel, by default from its latest snapshot, whether or not the GPU has room for it.

        `take_over`: even if another machine runs its session. `force`: although its files changed (`FilesChanged`). `files`: as in
        `wire.protocol.ResumeRequest`.
        Everything but `policies/gpu_room.py` calls `GpuRoom.resume` instead.
        """
        served = self.served(kernel_id)
        call = calls.resume(kernel_id, snapshot_id, take_over=take_over, force=force, files=files)
        operation = await self._link.daemon.send(call)
        return self._track(served, operation, lambda: None)

    async def park(
        self, kernel_id: str, *, keep_contexts: bool = False, is_automatic: bool = False
    ) -> Operation:
        """Start moving the kernel's GPU memory into RAM; the next cell moves it back. `keep_contexts`: see `ParkRequest`.

        `is_automatic`: no user requested it.
        """
        served = self.served(kernel_id)
        release = served.hold()
        try:
            is_off = await self._peer_access.switch_off(served)
            call = calls.park(kernel_id, peer_access_off=is_off, keep_contexts=keep_contexts)
            operation = await self._link.daemon.send(call)
        except BaseException:
            self.spawn(self._peer_access.switch_on_and(served, release))
            raise
        served.is_parked_automatically = is_automatic
        if not served.peer_access_is_off:
            release()
            return self._track(served, operation, lambda: None)
        # After a failed park the kernel runs, so peer access must be on again.
        end = partial(self._peer_access.switch_on_and, served, release)
        return self._track(served, operation, lambda: self.spawn(end()))

    async def move(self, kernel_id: str, remote: str) -> Operation:
        """Start uploading a suspended kernel to a remote and releasing its session; `session_moves.py` suspends it first."""
        served = self.served(kernel_id)
        operation = await self._link.daemon.send(calls.move(kernel_id, remote))
        return self._track(served, operation, lambda: None)

    async def variables(self, kernel_id: str, fingerprint_seconds: float = 0) -> Variables:
        """Return the current variables of an idle kernel. Raises as `variables.variables_of` does."""
        served = self.served(kernel_id)
        return await variables_of(self._manager(kernel_id), served, fingerprint_seconds)

    async def wait(self, operation_id: str, timeout_seconds: float) -> Operation:
        """Wait up to `timeout_seconds` for the end of an operation and return it; raise OperationNotFound."""
        if ours := await self.tracked.wait(operation_id, timeout_seconds):
            return ours
        # Another client, for instance the command line, started it.
        daemon = self._link.daemon
        operation = await daemon.send(calls.operation(operation_id))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                return await daemon.finish(operation_id)
        return operation

    async def finish(self, operation: Operation) -> Operation:
        """Wait until an operation is over, however long it takes, and return it."""
        return await self.tracked.finish(operation)

    async def cancel(self, operation_id: str) -> None:
        """Ask an operation to stop and undo its work; this has no effect after its point of no return."""
        await self.tracked.cancel(operation_id)

    async def note_changed(self, kernel_id: str, at: float, autosave_seconds: float) -> None:
        """Tell the daemon since when a kernel may have changed after its last snapshot, and how soon it is saved. Never raises."""
        try:
            await self._link.daemon.send(calls.changed(kernel_id, at, autosave_seconds))
        except GpuCkptError as error:
            self._log.debug("kernel %s: its change was not recorded: %s", kernel_id, error)

    async def keep_saving(self, kernel_id: str) -> None:
        """Note that a user has chosen to save a kernel's notebook here although another machine has taken its session over."""
        served = self.served(kernel_id)
        told = await self._link.daemon.send(calls.forget_taken_over(kernel_id))
        # The stream may have told something newer meanwhile.
        if (newest := self._link.mirror.expect(told)) is not None:
            served.apply(newest)

    async def require_answer(self) -> None:
        """Raise DaemonUnavailable if the daemon does not answer."""
        await self._link.require_answer()

    async def measured(self) -> list[Kernel]:
        """Return the daemon's records of all kernels, with their use of resources measured now."""
        return await self._link.daemon.send(calls.kernels())

    async def snapshots(self) -> list[Snapshot]:
        """List all snapshots, newest first."""
        return await self._link.daemon.send(calls.snapshots())

    def report_sessions(self, kernel_id: str) -> None:
        """Send the daemon a kernel's sessions now, because this server may be killed before its end."""
        if kernel_id in self._kernels and kernel_id in self._link.served and self._link.ready:
            self.spawn(self._report(kernel_id))

    def kernel_suspended(self, kernel: Kernel) -> None:
        """Send the daemon the description of a kernel that another client suspended: for instance, whether a cell runs."""
        ours = kernel.operation is not None and kernel.operation.operation_id in self.tracked
        if not ours:
            self.report_sessions(kernel.kernel_id)

    async def described(self, kernel_id: str) -> tuple[str, dict[str, Any]]:
        """Return a kernel's name for users, and its description for a later server."""
        manager = self._manager(kernel_id)
        served = self.served(kernel_id)
        described = self._descriptions.describe(manager, served)
        name = described["path"] or manager.kernel_name
        return name, {**served.provisioner.described_manager(), **described}

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task in the background until the server ends; asyncio itself keeps only a weak reference to it."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Cancel the background tasks at the server's end. Operations continue in the daemon."""
        left = {task for task in self._background if not task.done()} | self.tracked.running()
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def _send_cancel(self, operation_id: str) -> None:
        await self._link.daemon.send(calls.cancel(operation_id))

    def _manager(self, kernel_id: str) -> ServerKernelManager:
        return manager_of(self._kernels, kernel_id)

    async def _report(self, kernel_id: str) -> None:
        try:
            name, jupyter = await self.described(kernel_id)
            await self._link.daemon.send(calls.set_jupyter(kernel_id, name, jupyter))
        except GpuCkptError as error:
            self._log.warning("kernel %s: its sessions were not recorded: %s", kernel_id, error)

    async def _freeze(
        self,
        kind: OperationKind,
        kernel_id: str,
        name: str,
        cause: Cause,
        check: Callable[[], None] = lambda: None,
        *,
        removes: bool = True,
        with_files: bool = False,
    ) -> Operation:
        """Start a save or suspend; if the kernel is being restarted, of the new process."""
        restarts = cast("GpuCkptKernels", self._kernels).gpuckpt_restarts
        while True:
            if restart := restarts.get(kernel_id):
                _, running = await asyncio.wait({restart}, timeout=_RESTART_SECONDS)
                if running:
                    raise KernelStateConflict("Please wait: this kernel is being restarted.")
            try:
                return await self._freeze_now(
                    kind, kernel_id, name, cause, check, removes=removes, with_files=with_files
                )
            except (KernelNotFound, KernelStateConflict):
                if kernel_id not in restarts:  # else a restart has begun meanwhile
                    raise

    async def _freeze_now(
        self,
        kind: OperationKind,
        kernel_id: str,
        name: str,
        cause: Cause,
        check: Callable[[], None],
        *,
        removes: bool,
        with_files: bool,
    ) -> Operation:
        if cause is not Cause.AUTOSAVE:
            await self._listener.before_freeze(kernel_id)
        served = self.served(kernel_id)
        daemon = self._link.daemon
        release = served.hold()
        variables, peer_access_off, found = None, False, None
        try:
            manager = self._manager(kernel_id)
            while served.is_reconnecting:
                await served.change()  # its messages would be lost now
            if served.state in {KernelState.RUNNING, KernelState.PARKED}:
                await ensure_known_info(manager)
                served.freezes += 1
                if served.has_agent:
                    found = await agent_calls.state(manager, answers=served.answers)
                    served.answers = found is not None
                    called = found is not None and await agent_calls.call_on_save(manager, found)
                    if found is not None:  # else the agent does not answer
                        variables = await agent_calls.variables(
                            manager, _FINGERPRINT_SECONDS.get(cause, _MAX_FINGERPRINT_SECONDS)
                        )
                        await self._trim(served, cause)
                    # An agent that has not answered in time may still read the request later, so it must be flushed in any case.
                    runs = served.state is KernelState.RUNNING
                    release = self._thawing(served, release, called=called, gpu_is_back=runs)
                    if found is not None:
                        peer_access_off = await self._peer_access.switch_off(served, found)
                    comms = await agent_calls.prepare(manager, answers=found is not None)
                    served.comms = comms or served.comms.without_states()
                    if comms:
                        # All earlier messages have reached the pages then.
                        await wait_until_connected(manager, served, _DRAIN_SECONDS)
                await drained(manager.ports, _DRAIN_SECONDS)
            check()  # the gate is shut, and all that the kernel has published has arrived
            changes = served.output.changes
            notebook, jupyter = await self.described(kernel_id)
            call = calls.save if kind is OperationKind.SAVE else calls.suspend
            request = SaveRequest(
                notebook,
                jupyter,
                cause,
                pinned=bool(name) and cause is not Cause.TOOL,
                retention=self.retention if removes else None,
                title=name,
                variables=variables,
                peer_access_off=peer_access_off,
                cell=found.cell if found else 0,
                in_cell=served.output.is_in_cell,
                files=with_files,
            )
            operation = await daemon.send(call(kernel_id, request))
        except BaseException:
            release()
            raise
        return self._track(served, operation, release, changes)

    async def _trim(self, served: ServedKernel, cause: Cause) -> None:
        # GPU calls of a parked kernel would block, and a running cell must not be delayed.
        idle = served.state is KernelState.RUNNING and not served.output.runs_cell
        if self._trims and idle and cause in _TRIM_SECONDS:
            trimmed = await agent_calls.trim(self._manager(served.kernel_id), _TRIM_SECONDS[cause])
            self._log.debug("kernel %s freed %s bytes", served.kernel_id, trimmed)

    def _thawing(
        self, served: ServedKernel, release: Release, *, called: bool, gpu_is_back: bool
    ) -> Release:
        """Return a `release` that also makes the kernel publish its output again; a suspended kernel does so at its resume.

        `called`: functions for `on_save` were called, so those for `on_resume` come before the next cell. `gpu_is_back`: the
        kernel is not parked, neither before nor after.
        """
        released, freezes = False, served.freezes

        async def thaw() -> None:
            try:
                if served.kernel_id in self._kernels:  # else it was shut down meanwhile
                    manager = self._manager(served.kernel_id)
                    if gpu_is_back:
                        await self._peer_access.switch_on(served)
                    await agent_calls.flush(
                        manager, lambda: served.freezes == freezes and not served.absent
                    )
                    if called:
                        await agent_calls.call_on_resume(manager)
            finally:
                release()

        def thaw_and_release() -> None:
            nonlocal released
            if released:
                return
            released = True
            if served.absent or served.is_held_by_others:
                release()  # a later suspend that replaced this one makes the kernel buffer its output
                return
            # User functions and peer access between GPUs come before the next cell.
            first = called or (gpu_is_back and served.peer_access_is_off)
            self.spawn(thaw())
            if not first:
                release()

        return thaw_and_release

    def _track(
        self, served: ServedKernel, operation: Operation, release: Release, changes: int = 0
    ) -> Operation:
        """Follow an operation to its end, beside the request that started it. `changes`: the kernel's when it began."""
        self.tracked.track(operation, self._follow(served, operation, release, changes))
        return operation

    async def _follow(
        self, served: ServedKernel, started: Operation, release: Release, changes: int
    ) -> None:
        try:
            async for operation in self._link.mirror.follow(started):
                self.tracked.note(started.operation_id, operation)
                if is_past_freeze(operation):
                    release()
            await self._wait_until_back(served, self.tracked.latest(started.operation_id), changes)
        finally:
            release()

    async def _wait_until_back(
        self, served: ServedKernel, operation: Operation, changes: int
    ) -> None:
        """Wait until the pages of a resumed kernel are connected. Its state came before the operation's end."""
        if operation.state is not OperationState.SUCCEEDED:
            return
        if operation.kind in {OperationKind.SAVE, OperationKind.SUSPEND}:
            served.note_saved(changes)
        if operation.kind in {OperationKind.RESUME, OperationKind.BRANCH, OperationKind.UNPARK}:
            await served.reaches(_PRESENT, RECONNECT_SECONDS)
