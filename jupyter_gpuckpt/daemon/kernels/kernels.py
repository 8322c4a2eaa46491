"""The kernels that this daemon manages: their states, their records on disk, and the end of their processes.

Covers: which state may follow which, persistence, events to owners, the watch on every init. Does not cover: what a verb
does (`verbs.py`), what is on disk (`kernel_records.py`). Lives on the event loop's thread; only files are written elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from ...engine.tree.tree import Tree
from ...errors import (
    ErrorRecord,
    FreezeFailed,
    GpuCkptError,
    KernelNotFound,
    KernelStateConflict,
    StoreError,
    record_of,
)
from ...linux.ports import HeldPorts
from ...wire.deadlines import since_boot
from ...wire.manifest_records import SnapshotInfo
from ...wire.protocol import Event, Kernel
from ...wire.states import ABSENT, ALIVE, GPU_AWAY, KernelState, may_follow
from ..repeating import Tasks
from . import stopped_trees, tree_records
from .kernel_records import KernelRecord, Records
from .lost_notebooks import LostNotebooks
from .machine import Machine
from .operations import RunningOperation
from .recovered import enter, lost, recovered
from .resume_times import ResumeTimes
from .streams import Streams
from .tree_records import UnnamedTree
from .usage import Usage

#: How long to wait before a watch is tried again.
_RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)

#: States in which an operation on a running tree may have been interrupted.
_CUT_OFF = GPU_AWAY - {KernelState.PARKED} | {KernelState.SAVING, KernelState.SUSPENDING}


class ManagedKernel:
    """The state of one kernel. `operation`: the running one or the last one; `doomed`: the kernel is being killed."""

    def __init__(
        self,
        record: KernelRecord,
        announce: Callable[[ManagedKernel, RunningOperation], None],
        resume_times: ResumeTimes,
        streams: Streams,
    ) -> None:
        self.record, self._announce = record, announce
        self._resume_times, self._streams = resume_times, streams
        self.operation: RunningOperation | None = None
        self.doomed = False
        self.launched = asyncio.Event()
        #: The kernel's use of resources, and the last published value.
        self.usage, self.published_usage = Usage(), Usage()
        #: When that was measured, and when the kernel entered its state (`deadlines.since_boot`).
        self.measured_at, self.entered_at = 0.0, since_boot()
        # The ports are reserved until the kernel is forgotten, even while it is suspended: it is resumed on the same ports.
        self.ports = HeldPorts(record.spec.own_ports)

    def __repr__(self) -> str:
        return f"<kernel {self.kernel_id} {self.state}>"

    @property
    def kernel_id(self) -> str:
        """Return the kernel's id."""
        return self.record.kernel_id

    @property
    def owner_id(self) -> str:
        """Return the id of the kernel's owner."""
        return self.record.owner.owner_id

    @property
    def state(self) -> KernelState:
        """Return the kernel's state."""
        return self.record.state

    @property
    def in_flight(self) -> RunningOperation | None:
        """Return the running operation that has put the kernel into its state; None if there is none."""
        return self.operation if self.operation and not self.operation.ended else None

    def on_operation(self, operation: RunningOperation) -> None:
        """Publish that an operation on this kernel began, advanced or ended."""
        self._announce(self, operation)

    def public(self) -> Kernel:
        """Return the record that clients see."""
        record, tree = self.record, self.record.tree
        usage = self.usage if tree else Usage()
        return Kernel(
            kernel_id=self.kernel_id,
            state=record.state,
            owner_id=self.owner_id,
            pid=tree.kernel_pid if tree else 0,
            init_pid=tree.init_pid if tree else 0,
            exit_path=record.exit_path,
            name=record.name,
            snapshot_id=record.snapshot_id,
            error=record.error,
            operation=self.operation.public() if self.operation else None,
            memory_bytes=usage.memory_bytes,
            gpu_bytes=usage.gpu_bytes,
            ends_at=record.ends.at,
            parent_snapshot_id=record.parent_snapshot_id,
            moved_ports=record.moved_ports,
            since=record.since,
            failed_at=record.failed_at,
            moved_to=record.moved_to,
            gpu_utilization=usage.gpu_utilization,
            suspended_bytes=record.sizes.raw_bytes if record.state in ABSENT else 0,
            suspended_gpu_bytes=record.sizes.gpu_bytes if record.state in ABSENT else 0,
            cause=record.cause if record.state is KernelState.SUSPENDED else None,
            resume_seconds=self._resume_seconds(),
            taken_over=record.taken_over,
            changed_at=record.changed_at,
            listening=record.listening if record.state in ABSENT else [],
            autosave_seconds=record.autosave_seconds or record.owner.autosave_seconds,
            position=self._streams.position,
        )

    def _resume_seconds(self) -> float | None:
        """Estimate the seconds of a resume from earlier ones, else from its own save, which moved as many bytes."""
        if self.state not in ABSENT:
            return None
        estimate = self._resume_times.estimate(self.record.sizes)
        return self.record.saved_seconds or None if estimate is None else estimate


class Kernels:
    """A table of the kernels, by id."""

    def __init__(self, records: Records, machine: Machine, streams: Streams) -> None:
        self._records, self._machine, self._streams = records, machine, streams
        self._kernels: dict[str, ManagedKernel] = {}
        self._watch = _TreeWatch(machine, self._ended)
        #: Living trees of this place that are not managed, because no record names them.
        self._unnamed: list[UnnamedTree] = []
        self.lost_notebooks = LostNotebooks(records.state_dir)
        # With one thread, records are written in the order of their changes.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="records")

    def __iter__(self) -> Iterator[ManagedKernel]:
        return iter([kernel for kernel in self._kernels.values() if not kernel.doomed])

    def find(self, kernel_id: str) -> ManagedKernel | None:
        """Return the kernel of this id, even if it is being killed; None if there is none."""
        return self._kernels.get(kernel_id)

    def get(self, kernel_id: str) -> ManagedKernel:
        """Return the kernel of this id; raise KernelNotFound."""
        kernel = self._kernels.get(kernel_id)
        if kernel is None or kernel.doomed:
            raise KernelNotFound(f"There is no kernel {kernel_id}.")
        return kernel

    def of_owner(self, owner_id: str) -> list[ManagedKernel]:
        """List an owner's kernels."""
        return [kernel for kernel in self if kernel.owner_id == owner_id]

    @property
    def any_alive(self) -> bool:
        """Return whether a process would be lost with this daemon; suspended kernels have none."""
        return any(kernel.state in ALIVE for kernel in self._kernels.values())

    def add(self, record: KernelRecord) -> ManagedKernel:
        """Add a kernel to the table; `update` writes its record."""
        record.since = record.since or time.time()
        record.taken_over = record.taken_over or self.lost_notebooks.of(record)
        kernel = self._kernels[record.kernel_id] = ManagedKernel(
            record, self.announce, self._machine.resume_times, self._streams
        )
        kernel.ports.hold()
        return kernel

    def move(self, kernel: ManagedKernel, state: KernelState, **changes: Any) -> Awaitable[None]:
        """Change the state and other fields of the record now; the awaitable ends when they are on disk."""
        record = kernel.record
        if not may_follow(record.state, state):
            raise AssertionError(f"{kernel} may not become {state}")
        enter(record, state)
        kernel.entered_at = since_boot()
        if state is KernelState.SUSPENDED:
            kernel.ports.hold()  # a recovered kernel listened on them itself until now
        return self.update(kernel, **changes)

    def update(self, kernel: ManagedKernel, **changes: Any) -> Awaitable[None]:
        """Change fields of the record now; the awaitable ends when they are on disk."""
        if "error" in changes:
            changes["failed_at"] = time.time() if changes["error"] else 0.0
        for field, value in changes.items():
            setattr(kernel.record, field, value)
        written = self._written(kernel)
        self.announce(kernel)
        if kernel.record.tree:
            self._watch.add(kernel, kernel.record.tree)
        return written

    def forget(self, kernel: ManagedKernel, *, by_user: bool = False) -> None:
        """Remove the record of a kernel that has ended, and publish that. Its snapshots stay."""
        if self._drop(kernel, by_user=by_user):
            self._writer.submit(self._records.forget, kernel.kernel_id)
            self._writer.submit(self._machine.folders.remove, kernel.record)

    def set_aside(self, kernel: ManagedKernel, tree: Tree) -> Awaitable[None]:
        """Remove a kernel and its record, and publish that it is gone; its process stays, and is no longer watched."""
        self._watch.remove(tree)
        self._drop(kernel)
        written = self._writer.submit(self._records.forget, kernel.kernel_id)
        return asyncio.wrap_future(written)

    async def replace(self, fresh: ManagedKernel | None, record: KernelRecord) -> None:
        """Manage the process of `record` from now on, and no longer that of `fresh`, a kernel of the same id."""
        if fresh is not None:
            if fresh.record.tree:
                self._watch.remove(fresh.record.tree)
            fresh.ports.release()
        kernel = self.add(record)
        kernel.launched.set()
        await self.update(kernel)

    def _drop(self, kernel: ManagedKernel, *, by_user: bool = False) -> bool:
        kernel.ports.release()
        if self._kernels.get(kernel.kernel_id) is not kernel:
            return False
        del self._kernels[kernel.kernel_id]
        event = Event(self._streams.advance(), gone=kernel.kernel_id, by_user=by_user)
        self._streams.publish(event, kernel.owner_id)
        return True

    async def drop_moved(self) -> None:
        """Remove from the table the suspended kernels that another daemon has taken over."""
        for kernel_id in await asyncio.to_thread(self._records.moved):
            if (kernel := self._kernels.get(kernel_id)) is not None and kernel.state in ABSENT:
                _log.info("kernel %s went to another machine", kernel_id)
                self._drop(kernel)

    def announce(self, kernel: ManagedKernel, operation: RunningOperation | None = None) -> None:
        """Publish the records of a kernel and an operation to the owner. A slow reader may miss progress, but never an end."""
        is_listed = not kernel.doomed and self._kernels.get(kernel.kernel_id) is kernel
        if not is_listed and operation is None:
            return
        kernel.published_usage = kernel.usage
        event = Event(
            self._streams.advance(),
            kernel=kernel.public() if is_listed else None,
            operation=operation.public() if operation else None,
        )
        droppable = operation is not None and not operation.ended
        self._streams.publish(event, kernel.owner_id, droppable=droppable)

    async def protect_servers(self) -> None:
        """Protect the info files of servers that were started after the kernels."""
        running = [(k.record.tree, k.record.owner) for k in self if k.state is KernelState.RUNNING]
        for tree, owner in running:
            if tree is not None and owner.jupyter_runtime_dir:
                await asyncio.to_thread(self._machine.protect_servers, tree, owner)

    async def learn_programs(self) -> None:
        """Compute the digests of running kernels' programs and libraries in the background."""
        for kernel in list(self):
            if kernel.state is KernelState.RUNNING and (tree := kernel.record.tree) is not None:
                await asyncio.to_thread(self._machine.learn_programs, tree)

    def require_no_other_tree(self, kernel_id: str) -> None:
        """Raise KernelStateConflict if a tree of this kernel runs that no record names: a second one would write the same files."""
        for tree in self._unnamed:
            if tree.kernel_id == kernel_id and tree.alive:
                raise KernelStateConflict(
                    f"Kernel {kernel_id} still runs as process {tree.init_pid}, but its record is lost.",
                    hint=f"End that process (`kill -9 {tree.init_pid}`); what the kernel did since its last snapshot is lost then.",
                )

    async def recover_all(self, found: list[KernelRecord], others: Collection[Tree]) -> None:
        """Manage the kernels of the last daemon of this place, also those whose record is missing. Only for a daemon's start.

        `others`: the living trees that belong to no record, such as those of former processes.
        """
        found, self._unnamed = await asyncio.to_thread(
            tree_records.adopt, self._records, found, others
        )
        await self.recover(found)

    async def recover(self, found: list[KernelRecord]) -> None:
        """Manage kernels that another daemon left, each in the state that `recovered.recovered` returns."""
        for record in found:
            try:
                await self._recover(record)
            except StoreError as error:  # the kernel is managed; its next change writes the record
                _log.error("kernel %s: %s", record.kernel_id, error)
            except Exception:  # an invalid record must not affect other kernels
                _log.exception("kernel %s cannot be recovered", record.kernel_id)
                self._kernels.pop(record.kernel_id, None)

    async def _recover(self, record: KernelRecord) -> None:
        kept = await asyncio.to_thread(self._recover_record, record)
        if kept is None:
            _log.info("kernel %s ended while no daemon ran", record.kernel_id)
            await asyncio.to_thread(self._records.forget, record.kernel_id)
            return
        kernel = self.add(kept)
        kernel.launched.set()
        await self.update(kernel)
        _log.info("recovered kernel %s, which is %s", kernel.kernel_id, kernel.state)

    async def reap_if_ended(self, kernel: ManagedKernel, error: ErrorRecord | None = None) -> bool:
        """Forget a kernel that ended, or mark it as lost if init left no exit status; return False if it still runs."""
        tree = kernel.record.tree
        if tree is None or await asyncio.to_thread(self._machine.alive, tree):
            return False
        await asyncio.to_thread(self._machine.kill, tree)  # reaps it
        if kernel.doomed or kernel.record.tree is not tree:
            return True
        if await asyncio.to_thread(Path(kernel.record.exit_path).exists):
            _log.info("kernel %s ended by itself", kernel.kernel_id)
            self.forget(kernel)
        elif may_follow(kernel.state, KernelState.LOST):
            _log.error("kernel %s is lost: init is gone without an exit status", kernel.kernel_id)
            await self.move(kernel, KernelState.LOST, tree=None, error=error or record_of(lost()))
        return True

    def secrets(self, record: KernelRecord) -> dict[str, Any]:
        """Return the secrets that the next server needs and that records do not hold; never raises."""
        try:
            return self._machine.secrets(record)
        except GpuCkptError as error:
            _log.error("the key of kernel %s is not known: %s", record.kernel_id, error)
            return {}

    async def close(self) -> None:
        """Stop watching processes and finish writing records."""
        self._watch.close()
        for kernel in self._kernels.values():
            kernel.ports.release()
        await asyncio.to_thread(self._writer.shutdown)

    def _recover_record(self, record: KernelRecord) -> KernelRecord | None:
        tree, exit_path = record.tree, record.exit_path
        alive = tree is not None and self._machine.alive(tree)
        was = record.state  # `recovered` changes the state
        kept = recovered(record, alive=alive, snapshots=self._committed(record))
        if tree and alive and (kept is None or kept.tree is None):
            self._machine.kill(tree)  # the last step of a suspend whose snapshot is complete
        elif tree and alive and was in _CUT_OFF:
            self._machine.recover(tree)
        elif tree and alive and not record.ends:
            # Its user may just have undone the shutdown, or its restart may not have been complete.
            try:
                stopped_trees.go_on(tree, record.spec.own_ports)
            except FreezeFailed as error:
                _log.error("kernel %s stands still: %s %s", record.kernel_id, error, error.hint)
        elif tree is None:
            self._machine.kill_strays(exit_path)
        if was is KernelState.RESUMING:
            try:
                self._machine.remove_links_of_resume(record)
            except StoreError as error:
                _log.warning("files of a resume of %s may be left: %s", record.kernel_id, error)
            self._machine.folders.undo(record)
        elif was is not KernelState.SUSPENDED:  # else its last resume failed, and maybe its undoing
            self._machine.folders.finish(record)
        if kept is not None and kept.state in ABSENT:
            self._machine.expect(kept.sizes.raw_bytes)
        return kept

    def _committed(self, record: KernelRecord) -> list[SnapshotInfo]:
        """Return the snapshots that the interrupted operation may have made."""
        if record.state not in {KernelState.SAVING, KernelState.SUSPENDING}:
            return []
        try:
            return self._machine.snapshots(record.kernel_id)
        except StoreError as error:
            _log.error("the snapshots of kernel %s could not be read: %s", record.kernel_id, error)
            return []

    def _written(self, kernel: ManagedKernel) -> Awaitable[None]:
        encoded = msgspec.json.encode(record := kernel.record)
        tree = record.tree

        def write() -> None:
            if tree is not None:
                tree_records.write(tree, encoded)
            self._records.write(record.kernel_id, encoded, state)

        state = record.state
        written = self._writer.submit(write)
        future = asyncio.wrap_future(written)
        # Not every caller awaits the write, so its error is logged here; the change is in memory in any case.
        future.add_done_callback(_log_failure)
        return future

    async def _ended(self, kernel: ManagedKernel, tree: Tree) -> None:
        # During an operation the end of init may be intended: a suspend leaves no tree.
        while kernel.in_flight:
            await kernel.in_flight.until_ended()
        if kernel.record.tree is tree and not kernel.doomed:
            await self.reap_if_ended(kernel)


def _log_failure(written: asyncio.Future[None]) -> None:
    if not written.cancelled() and (error := written.exception()):
        _log.error("a kernel's record could not be written: %s", error)


class _TreeWatch:
    """The watched trees, each with its kernel. `on_end` is called once for each whose init ends. Used on the event loop only."""

    def __init__(
        self, machine: Machine, on_end: Callable[[ManagedKernel, Tree], Coroutine[Any, Any, None]]
    ) -> None:
        self._machine, self._on_end = machine, on_end
        self._watched: dict[int, tuple[ManagedKernel, Tree]] = {}
        self._tasks = Tasks()

    def add(self, kernel: ManagedKernel, tree: Tree) -> None:
        """Watch the init of a tree: a pidfd becomes readable when its process ends (man pidfd_open)."""
        if any(watched == tree for _, watched in self._watched.values()):
            return
        try:
            pidfd = self._machine.watch(tree)
        except OSError:  # no file can be opened, for which no operation must fail
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self.add, kernel, tree)
            return
        if pidfd is None:
            self._tasks.start(self._on_end(kernel, tree))
            return
        self._watched[pidfd] = (kernel, tree)
        asyncio.get_running_loop().add_reader(pidfd, self._on_readable, pidfd)

    def remove(self, tree: Tree) -> None:
        """Stop watching a tree."""
        for pidfd, (_, watched) in list(self._watched.items()):
            if watched == tree:
                self._unwatch(pidfd)

    def close(self) -> None:
        """Stop watching all trees."""
        for pidfd in list(self._watched):
            self._unwatch(pidfd)

    def _on_readable(self, pidfd: int) -> None:
        self._tasks.start(self._on_end(*self._unwatch(pidfd)))

    def _unwatch(self, pidfd: int) -> tuple[ManagedKernel, Tree]:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        return self._watched.pop(pidfd)
