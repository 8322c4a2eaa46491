"""Moves of suspended kernels: the snapshot is uploaded, and its remote session is released and marked, so that others offer it first.

The kernel stays suspended here, and its record names the remote until it is resumed. The move ends with an error if that happens meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from ...errors import GpuCkptError, KernelStateConflict, RemoteNotFound, error_from
from ...remote.remote_list import Remotes, state_folder
from ...wire.progress import Stage
from ...wire.protocol import OperationKind, Result
from ...wire.remote_listings import MoveRequest
from ...wire.remote_records import Remote, chosen
from ...wire.snapshot_records import UploadRequest, UploadState
from ...wire.states import KernelState
from ..kernels.kernels import Kernels, ManagedKernel
from ..kernels.operations import Operations, RunningOperation
from ..kernels.streams import Streams
from ..repeating import Tasks
from .leases import DaemonLeases, LeaseFile
from .uploads import Uploads

#: The interval between two looks at the upload or at the remote session.
_LOOK_SECONDS, _ASK_SECONDS = 0.1, 0.5
#: How long a move waits, after the upload, until the remote no longer lists the session as run here.
RELEASE_SECONDS = 30.0

_STILL_LEASED = "The remote still lists it as run here; others can fetch it two minutes after this machine is closed."

_log = logging.getLogger(__name__)


class _MoveSubject:
    """The subject of a move: a kernel, whose state a move does not change."""

    def __init__(self, kernel: ManagedKernel, streams: Streams) -> None:
        self._kernel, self._streams = kernel, streams

    @property
    def kernel_id(self) -> str:
        """Return the kernel's id."""
        return self._kernel.kernel_id

    @property
    def owner_id(self) -> str:
        """Return the id of the kernel's owner."""
        return self._kernel.owner_id

    def on_operation(self, operation: RunningOperation) -> None:
        """Publish the progress of the move to the kernel's owner."""
        self._streams.publish_operation(operation.public(), self.owner_id)


class Moves:
    """The moves that run. On the event loop's thread."""

    def __init__(
        self,
        data_dir: Path,
        kernels: Kernels,
        operations: Operations,
        streams: Streams,
        uploads: Uploads,
        leases: DaemonLeases,
    ) -> None:
        self._data_dir, self._kernels = data_dir, kernels
        self._operations, self._streams = operations, streams
        self._uploads, self._leases = uploads, leases
        #: The running moves and their remotes, by the kernel's id.
        self._running: dict[str, tuple[str, RunningOperation]] = {}
        self._tasks = Tasks()

    async def move(self, kernel_id: str, request: MoveRequest) -> RunningOperation:
        """Start moving a suspended kernel to a remote, or return the operation that does so already.

        Raises KernelNotFound, KernelStateConflict, RemoteNotFound, ConfigurationError, SnapshotNotFound.
        """
        kernel = self._kernels.get(kernel_id)
        _require_suspended(kernel)
        remotes = {one.name: one for one in await asyncio.to_thread(Remotes(self._data_dir).all)}
        remote = remotes[chosen(request.remote, list(remotes))]
        if running := self._running.get(kernel_id):
            return _same(running, kernel_id, remote.name)
        snapshot_id = kernel.record.snapshot_id
        uploads = (await self._uploads.by_remote()).get(remote.name, {})
        if not uploads.get(snapshot_id, (None, False))[1]:
            await self._uploads.ask(UploadRequest(remote.name, [snapshot_id]))
        # Another client may have started the same move meanwhile.
        if running := self._running.get(kernel_id):
            return _same(running, kernel_id, remote.name)
        subject = _MoveSubject(kernel, self._streams)
        operation = self._operations.add(OperationKind.MOVE, subject)
        self._running[kernel_id] = remote.name, operation
        self._tasks.start(self._run(operation, kernel, remote, snapshot_id))
        return operation

    async def close(self) -> None:
        """Cancel the running moves. Their uploads continue with the next daemon."""
        for _, operation in self._running.values():
            operation.cancel()
        await self._tasks.wait()

    async def _run(
        self, operation: RunningOperation, kernel: ManagedKernel, remote: Remote, snapshot_id: str
    ) -> None:
        began = time.monotonic()
        try:
            await self._upload(operation, kernel, remote.name, snapshot_id)
            is_released = await self._release(operation, kernel, remote, snapshot_id)
        except Exception as error:  # whatever happened, it is the operation's error
            operation.fail(error)
        else:
            self._note(kernel, remote.name, snapshot_id)
            warnings = [] if is_released else [_STILL_LEASED]
            spent = operation.progress.seconds_by_stage
            seconds = time.monotonic() - began
            operation.succeed(
                Result(snapshot_id, seconds, seconds_by_stage=dict(spent), warnings=warnings)
            )
        finally:
            del self._running[kernel.kernel_id]

    def _note(self, kernel: ManagedKernel, remote: str, snapshot_id: str) -> None:
        """Record that a kernel was moved, unless it has been resumed meanwhile."""
        is_suspended = not kernel.doomed and kernel.state is KernelState.SUSPENDED
        if is_suspended and kernel.record.snapshot_id == snapshot_id:
            self._kernels.update(kernel, moved_to=remote)

    async def _upload(
        self, operation: RunningOperation, kernel: ManagedKernel, remote: str, snapshot_id: str
    ) -> None:
        """Wait until the remote has the snapshot. Raises the error of the upload's last attempt."""
        progress = operation.progress
        with progress.stage(Stage.UPLOAD):
            while not self._is_there(remote, snapshot_id):
                _require_suspended(kernel)
                upload = self._uploads.upload_to(remote, snapshot_id)
                if upload is None:
                    raise RemoteNotFound(
                        f"Remote {remote} or the snapshot was removed meanwhile.",
                        command="`jupyter gpuckpt remote list` lists the remotes.",
                    )
                if upload.error is not None:
                    raise error_from(upload.error)
                if upload.state is UploadState.UPLOADING:
                    done = min(upload.done_bytes, upload.total_bytes)
                    progress.reach(done, upload.total_bytes)
                else:
                    progress.check()
                await asyncio.sleep(_LOOK_SECONDS)

    async def _release(
        self, operation: RunningOperation, kernel: ManagedKernel, remote: Remote, snapshot_id: str
    ) -> bool:
        """Wait until this daemon has no lease of the remote session, and mark it; return whether that was so in time."""
        progress = operation.progress
        file = LeaseFile(state_folder(self._data_dir, remote.name))
        session_id = await asyncio.to_thread(file.session_to_go_on, kernel.kernel_id, snapshot_id)
        deadline = time.monotonic() + RELEASE_SECONDS
        with progress.stage(Stage.RELEASE):
            while time.monotonic() < deadline:
                _require_suspended(kernel)
                progress.check()
                self._leases.wake()
                if await self._offer(remote, session_id, deadline):
                    return True
                await asyncio.sleep(_ASK_SECONDS)
        return False

    async def _offer(self, remote: Remote, session_id: str, deadline: float) -> bool:
        """Mark the remote session, once it is released. The upload is complete whatever the remote says now."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await asyncio.wrap_future(
                    self._leases.ask(remote, lambda at: at.offer(session_id))
                )
        except (GpuCkptError, TimeoutError) as error:
            _log.warning("remote %s: session %s is not marked: %s", remote.name, session_id, error)
            return False

    def _is_there(self, remote: str, snapshot_id: str) -> bool:
        upload = self._uploads.upload_to(remote, snapshot_id)
        return upload is not None and upload.state is UploadState.UPLOADED


def _require_suspended(kernel: ManagedKernel) -> None:
    """Raise KernelStateConflict if a kernel is not suspended, so that its snapshot is not all of it."""
    if kernel.doomed or kernel.state is not KernelState.SUSPENDED:
        raise KernelStateConflict(
            f"Kernel {kernel.kernel_id} is {kernel.state.value}, so it cannot be moved.",
            hint="Only a suspended kernel is moved: its last snapshot is all of it.",
        )


def _same(running: tuple[str, RunningOperation], kernel_id: str, remote: str) -> RunningOperation:
    """Return a move that runs already. Raises KernelStateConflict if it goes to another remote."""
    there, operation = running
    if there != remote:
        raise KernelStateConflict(
            f"Kernel {kernel_id} is being moved to remote {there} already.",
            hint="Wait until that is done, or cancel it.",
        )
    return operation
