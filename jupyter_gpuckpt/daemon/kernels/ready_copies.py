"""Ready copies: kernels of templates that servers want to have waiting, so that the next start of one takes some milliseconds.

A ready copy is resumed and stopped at once. The kernel that is started next from the same snapshot becomes its owner's
(`Verbs.copy`), and another copy is made. Those of a server that is gone end, as all do when memory is short and with the daemon; those
of a killed daemon end when the next one starts (`tree_records.adopt`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from ...errors import GpuCkptError, HostIncompatible
from ...host import processes
from ...host.memory_use import is_short, memory_uses
from ...linux.disk_reserve import with_room
from ...linux.ports import HeldPorts
from ...wire.manifest_records import LaunchSpec
from ...wire.protocol import CopyRequest, Owner, WantedCopies
from . import stopped_trees
from .kernel_records import Records
from .machine import Machine
from .ready_trees import ReadyTree, ReadyTrees, prefix

_log = logging.getLogger(__name__)

#: The interval of looks at the memory and at what is wanted.
_LOOK_SECONDS = 1.0
#: How long no other copy of a snapshot is made after an attempt that failed.
_RETRY_SECONDS = 30.0
#: A copy is made only if so many times its memory is free.
_TIMES_FREE = 3


class ReadyCopies:
    """The upkeep of the ready copies that owners want. On the event loop's thread. `logs`: the folder of kernels' logs."""

    def __init__(self, machine: Machine, records: Records, ready: ReadyTrees, logs: Path) -> None:
        self._machine, self._records, self._ready, self._logs = machine, records, ready, logs
        self._wanted = dict[str, tuple[Owner, list[WantedCopies]]]()
        self._failed = dict[WantedCopies, float]()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ready copies")
        self._task: asyncio.Task[None] | None = None
        self._look = asyncio.Event()

    async def want(self, owner: Owner, wanted: list[WantedCopies]) -> None:
        """Keep these copies ready for an owner, and no others."""
        known = self._wanted.get(owner.owner_id, (owner, []))[1]
        self._wanted[owner.owner_id] = owner, wanted
        if known != wanted:
            await self._end_unwanted()
            self._look.set()
        if wanted and self._task is None:
            self._task = asyncio.create_task(self._keep())

    async def forget(self, owner_id: str) -> None:
        """End the copies of an owner that is gone."""
        if self._wanted.pop(owner_id, None) is not None:
            await self._end_unwanted()

    def take(self, request: CopyRequest) -> ReadyTree | None:
        """Return a copy for a kernel that is started, which is the caller's then; None if there is none."""
        if not request.may_be_ready:
            return None
        key = (request.owner_id, request.snapshot_id, request.store, request.visible_gpus)
        found = self._ready.take(
            lambda one: (
                (one.owner_id, one.wanted.snapshot_id, one.wanted.store, one.wanted.visible_gpus)
                == key
            )
        )
        self._look.set()
        return found

    async def close(self) -> None:
        """End all copies."""
        self._wanted.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await asyncio.to_thread(self._thread.shutdown)
        await self._end_unwanted()

    async def _end_unwanted(self) -> None:
        wanted = {(owner, one) for owner, (_, all_) in self._wanted.items() for one in all_}
        await asyncio.to_thread(
            self._ready.end, lambda one: (one.owner_id, one.wanted) not in wanted
        )

    async def _keep(self) -> None:
        for left in self._logs.glob(f"{prefix(self._records.place)}*"):  # by a killed daemon
            left.unlink(missing_ok=True)
        while True:
            try:
                await self._adjust()
            except Exception:  # nothing that it meets once may end it
                _log.exception("the ready copies were not adjusted")
            self._look.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._look.wait()

    async def _adjust(self) -> None:
        """Give the copies up if memory is short, else make those that are missing."""
        while True:
            if is_short(await asyncio.to_thread(memory_uses)):
                await asyncio.to_thread(self._ready.give_up)
                return
            if (missing := self._missing()) is None:
                return
            await self._make(*missing)

    def _missing(self) -> tuple[Owner, WantedCopies] | None:
        now = asyncio.get_running_loop().time()
        for owner, all_ in self._wanted.values() if self._ready.may_grow else ():
            for one in all_:
                is_due = now - self._failed.get(one, -_RETRY_SECONDS) >= _RETRY_SECONDS
                if is_due and self._ready.count(owner.owner_id, one) < one.count:
                    return owner, one
        return None

    async def _make(self, owner: Owner, wanted: WantedCopies) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._made, owner, wanted)
        except Exception as error:
            self._failed[wanted] = loop.time()
            text = error.message if isinstance(error, GpuCkptError) else repr(error)
            _log.warning("no copy of snapshot %s is ready: %s", wanted.snapshot_id, text)
            return
        self._failed.pop(wanted, None)
        await self._end_unwanted()  # it may have become so meanwhile

    def _made(self, owner: Owner, wanted: WantedCopies) -> None:
        manifest = self._machine.copied_manifest(wanted.snapshot_id, wanted.store)
        if _TIMES_FREE * manifest.info.sizes.raw_bytes > processes.mem_available():
            raise HostIncompatible("There is not enough free memory.")
        name = f"{prefix(self._records.place)}{secrets.token_hex(8)}"
        log = self._logs / f"{name}.log"
        with_room(log, lambda: log.parent.mkdir(mode=0o700, parents=True, exist_ok=True))
        ports = HeldPorts.free(len(manifest.launch.own_ports))
        spec = LaunchSpec(name, [], {}, "/", str(log), own_ports=ports.ports)
        request = CopyRequest(
            owner.owner_id, wanted.snapshot_id, spec, wanted.visible_gpus, wanted.store
        )
        exit_path = self._records.new_exit_path(name)
        try:
            found = self._machine.copy(request, manifest, spec, exit_path, owner, is_ready=True)
            try:
                stopped_trees.stop(found.tree)
            except BaseException:
                self._machine.kill(found.tree)
                raise
        finally:
            ports.release()
        own = dict(zip(manifest.launch.own_ports, ports.ports, strict=True))
        self._ready.add(
            ReadyTree(
                owner.owner_id,
                wanted,
                found.tree,
                ports.ports,
                own | found.moved_ports,
                str(log),
            )
        )
        _log.info(
            "a copy of snapshot %s is ready as process %d", wanted.snapshot_id, found.tree.init_pid
        )
