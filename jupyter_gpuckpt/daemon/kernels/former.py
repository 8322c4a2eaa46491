"""Former processes: what kernels were before their last restart, kept stopped until they are saved, so that the restart can be undone.

A restart does not wait for a save. The old process is set aside: it stands still and gives its ports to the new one
(`stopped_trees.py`), is saved meanwhile, and ends when the snapshot is complete. Until then an undo lets it run on in place of the new
one; afterwards the kernel can be resumed from the snapshot. A record on disk, written before anything else, tells the next daemon
what to do with it:

- The kernel's own record names the same process: the restart was not complete, or its undo was. The process runs on.
- Else, an undo had begun: it is completed.
- Else the process is kept and saved again.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...engine.tree.tree import Tree
from ...errors import GpuCkptError, KernelNotFound, KernelStateConflict, OperationCancelled
from ...host.memory_use import is_short, memory_uses
from ...store.faults import store_errors
from ...wire import decoding
from ...wire.place import Place
from ...wire.progress import Progress
from ...wire.protocol import SaveRequest
from ...wire.snapshot_order import Making
from ...wire.states import KernelState, Verb
from . import stopped_trees
from .kernel_records import KernelRecord
from .kernels import Kernels, ManagedKernel
from .machine import Machine
from .verbs import Verbs
from .whole_files import write_file

_log = logging.getLogger(__name__)

#: The interval at which the memory is checked while a process is kept that could not be saved.
_LOOK_SECONDS = 0.25


class FormerRecord(msgspec.Struct):
    """The record of a former process on disk: the kernel's own one, how it is to be saved, and how long it is kept if that fails."""

    kernel: KernelRecord
    request: SaveRequest
    keep_seconds: float
    #: The number of its snapshot; those of the new process have higher ones.
    number: int
    #: Whether it is to take the place of the new process.
    is_returning: bool = False


class _Former:
    """A former process whose save has begun."""

    def __init__(self, record: FormerRecord, tree: Tree) -> None:
        self.record, self.tree = record, tree
        self.progress = Progress()


class FormerProcesses:
    """The former processes of this daemon's kernels, at most one for each. `folder`: where their records lie."""

    def __init__(
        self,
        folder: Path,
        place: Place,
        kernels: Kernels,
        verbs: Verbs,
        machine: Machine,
        next_number: Callable[[str], int],
    ) -> None:
        self._folder, self._next_number = folder / place.key, next_number
        self._kernels, self._verbs, self._machine = kernels, verbs, machine
        self._kept: dict[str, _Former] = {}
        self._saves: dict[str, asyncio.Task[None]] = {}
        #: Those whose kernels are recovered.
        self._returned: list[str] = []

    @property
    def any_kept(self) -> bool:
        """Return whether a process would be lost with this daemon."""
        return bool(self._kept)

    @property
    def trees(self) -> list[Tree]:
        """The trees of the processes that are kept."""
        return [former.tree for former in self._kept.values()]

    async def set_aside(self, kernel_id: str, request: SaveRequest, keep_seconds: float) -> None:
        """Set a kernel's process aside and forget the kernel, so that a new one of the same id can be launched on its ports.

        An operation in flight is canceled or waited for. Raises KernelStateConflict if it has no process that could be kept, and
        FreezeFailed if that cannot be stopped; then the kernel runs on.
        """
        kernel = self._kernels.get(kernel_id)
        await self._verbs.when_free(kernel, Verb.END)
        tree = kernel.record.tree
        kept_states = {KernelState.RUNNING, KernelState.PARKED}
        if tree is None or kernel.state not in kept_states or kernel.record.ends:
            raise KernelStateConflict(f"A kernel that is {kernel.state} cannot be set aside.")
        kernel.doomed = True  # nothing else is begun with it
        try:
            await self._drop(kernel_id)
            number = await asyncio.to_thread(self._next_number, kernel_id)
            former = _Former(FormerRecord(kernel.record, request, keep_seconds, number), tree)
            await self._write(former.record)
            await asyncio.to_thread(stopped_trees.set_aside, tree)
        except BaseException:
            kernel.doomed = False
            self._forget(kernel_id)
            raise
        try:
            await self._kernels.set_aside(kernel, tree)
        except Exception:  # the process is kept in any case
            _log.exception("the record of kernel %s may be left", kernel_id)
        _log.info("the process of kernel %s is set aside for a restart", kernel_id)
        self._keep(former)

    async def undo(self, kernel_id: str) -> ManagedKernel:
        """Let the former process run on in place of the new one, which is killed.

        Raises KernelNotFound if there is none: it may be saved and ended. If its ports cannot be had both stay as they were, and
        FreezeFailed is raised.
        """
        former, fresh = self._kept.get(kernel_id), self._kernels.find(kernel_id)
        if former is None:
            raise _gone(kernel_id)
        if fresh is not None:
            await self._verbs.when_free(fresh, Verb.KILL)
            fresh.doomed = True
        try:
            await self._stop_saving(kernel_id)
            if self._kept.get(kernel_id) is not former or not self._machine.alive(former.tree):
                raise _gone(kernel_id)
            await self._bring_back(former, fresh)
        except BaseException:
            if fresh is not None:
                fresh.doomed = False
            if self._kept.get(kernel_id) is former:
                self._keep(_Former(former.record, former.tree))
            raise
        record = former.record.kernel
        if fresh is not None:
            record.owner = fresh.record.owner
        await self._kernels.replace(fresh, record)
        del self._kept[kernel_id]
        if fresh is not None and fresh.record.tree:
            await asyncio.to_thread(self._machine.kill, fresh.record.tree)
        self._forget(kernel_id)
        _log.info("the restart of kernel %s is undone", kernel_id)
        return self._kernels.get(kernel_id)

    async def recover(self, found: list[KernelRecord]) -> list[KernelRecord]:
        """Take over the former processes that another daemon left; return the records of the kernels that are to be recovered."""
        for former in await asyncio.to_thread(self._read):
            kernel_id, tree = former.kernel.kernel_id, former.kernel.tree
            now = next((record for record in found if record.kernel_id == kernel_id), None)
            if tree is None or not await asyncio.to_thread(self._machine.alive, tree):
                self._forget(kernel_id)
            elif now is not None and now.tree == tree:
                self._returned.append(kernel_id)
            elif former.is_returning:
                if now is not None:
                    former.kernel.owner = now.owner
                    found.remove(now)
                    if now.tree is not None:
                        await asyncio.to_thread(self._machine.kill, now.tree)
                found.append(former.kernel)
                self._returned.append(kernel_id)
            else:
                await asyncio.to_thread(self._machine.recover, tree, stands_still=True)
                self._kept[kernel_id] = _Former(former, tree)
        return found

    def start(self) -> None:
        """Save the processes that were taken over; the kernels are recovered."""
        for kernel_id in self._returned:
            self._forget(kernel_id)
        for former in list(self._kept.values()):
            self._keep(former)

    async def close(self) -> None:
        """Cancel the saves; the processes stay for the next daemon."""
        for kernel_id in list(self._saves):
            await self._stop_saving(kernel_id)

    async def _bring_back(self, former: _Former, fresh: ManagedKernel | None) -> None:
        record = former.record
        own_ports = record.kernel.spec.own_ports
        new_tree = fresh.record.tree if fresh is not None else None
        try:
            record.is_returning = True
            await self._write(record)
            if new_tree is not None:
                await asyncio.to_thread(stopped_trees.set_aside, new_tree)
            try:
                await asyncio.to_thread(stopped_trees.go_on, former.tree, own_ports)
            except BaseException:
                if new_tree is not None:
                    await asyncio.to_thread(stopped_trees.go_on, new_tree, own_ports)
                raise
        except BaseException:
            record.is_returning = False
            await self._write(record)
            raise

    def _keep(self, former: _Former) -> None:
        kernel_id = former.record.kernel.kernel_id
        self._kept[kernel_id] = former
        self._machine.reserved_numbers[kernel_id] = former.record.number
        self._saves[kernel_id] = asyncio.create_task(self._save_and_end(former))

    async def _save_and_end(self, former: _Former) -> None:
        """Save a former process, which ends it. If that fails, end it when its time is over, or when memory is short."""
        kernel_id = former.record.kernel.kernel_id
        try:
            await asyncio.to_thread(self._save, former)
            _log.info("kernel %s as it was before its restart is saved", kernel_id)
        except OperationCancelled:
            return
        except Exception as error:
            hint = error.hint if isinstance(error, GpuCkptError) else ""
            _log.warning(
                "kernel %s as it was before its restart cannot be saved: %s %s",
                kernel_id,
                error,
                hint,
                exc_info=not hint,
            )
            await self._until_over(former)
            if former.progress.cancelled.is_set():
                return
            _log.warning("what kernel %s was before its restart is gone", kernel_id)
        await self._end(kernel_id, former)

    def _save(self, former: _Former) -> None:
        record, request = former.record.kernel, former.record.request
        jupyter = record.jupyter if request.jupyter is None else request.jupyter
        parked = record.state is KernelState.PARKED
        options = request.options(stop=True, name=record.name, parked=parked)
        self._machine.save(
            former.tree,
            msgspec.structs.replace(record.spec, jupyter=jupyter),
            msgspec.structs.replace(options, stands_still=True),
            Making(uuid.uuid4().hex, record.number, former.record.number),
            former.progress,
        )

    async def _until_over(self, former: _Former) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + former.record.keep_seconds
        while loop.time() < deadline and self._machine.alive(former.tree):
            if former.progress.cancelled.is_set():
                return
            uses = await asyncio.to_thread(memory_uses)
            if is_short(uses):
                _log.warning("memory is short")
                return
            await asyncio.sleep(min(_LOOK_SECONDS, max(0.0, deadline - loop.time())))

    async def _stop_saving(self, kernel_id: str) -> None:
        if (former := self._kept.get(kernel_id)) is not None:
            former.progress.cancel()
        if (task := self._saves.pop(kernel_id, None)) is not None:
            await asyncio.wait({task})

    async def _drop(self, kernel_id: str) -> None:
        """End the process that was kept for an earlier restart."""
        await self._stop_saving(kernel_id)
        if (former := self._kept.get(kernel_id)) is not None:
            await self._end(kernel_id, former)

    async def _end(self, kernel_id: str, former: _Former) -> None:
        await asyncio.to_thread(self._machine.kill, former.tree)
        if self._kept.get(kernel_id) is former:
            del self._kept[kernel_id]
            self._forget(kernel_id)

    async def _write(self, former: FormerRecord) -> None:
        path = self._path(former.kernel.kernel_id)
        encoded = msgspec.json.encode(former)

        def write() -> None:
            with store_errors(path.parent):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_file(path, encoded)

        await asyncio.to_thread(write)

    def _forget(self, kernel_id: str) -> None:
        self._machine.reserved_numbers.pop(kernel_id, None)
        self._path(kernel_id).unlink(missing_ok=True)

    def _read(self) -> list[FormerRecord]:
        found = list[FormerRecord]()
        for path in self._folder.glob("*.json"):
            try:
                found.append(decoding.from_json(path.read_bytes(), FormerRecord))
            except (OSError, msgspec.DecodeError) as error:
                _log.error("the record %s cannot be read: %s", path, error)
        return found

    def _path(self, kernel_id: str) -> Path:
        return self._folder / f"{kernel_id}.json"


def _gone(kernel_id: str) -> KernelNotFound:
    return KernelNotFound(
        f"There is no restart of kernel {kernel_id} that can be undone with its former process.",
        hint="Restore the snapshot that was taken at the restart, if there is one.",
    )
