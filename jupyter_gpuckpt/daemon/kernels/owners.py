"""Owners of kernels: their connections, what happens when one is lost, and claims by new servers."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from ...errors import ConfigurationError, KernelNotFound
from ...linux.ports import moved_connection
from ...wire.place import start_time
from ...wire.plurals import counted
from ...wire.protocol import (
    RESTART_SECONDS,
    Event,
    Kernel,
    Owner,
    OwnerKind,
    State,
    SuspendedKernel,
)
from ...wire.reclaim_records import Notice
from ...wire.states import KernelState
from ..repeating import Tasks
from . import taken_over
from .kernel_records import KernelRecord, Records
from .kernels import Kernels, ManagedKernel
from .machine import Machine
from .operations import Operations
from .ready_copies import ReadyCopies
from .streams import Stream, Streams
from .verbs import Verbs

#: The time within which an owner may reconnect without consequences.
GRACE_SECONDS = 2.0
#: How long a request in a newly started daemon waits for its owner to connect.
_ARRIVAL_SECONDS = 10.0

_log = logging.getLogger(__name__)


class Owners:
    """A table of the owners that are connected, or were within the grace period."""

    def __init__(
        self,
        streams: Streams,
        kernels: Kernels,
        operations: Operations,
        verbs: Verbs,
        records: Records,
        machine: Machine,
        ready: ReadyCopies,
        notices: Callable[[], list[Notice]],
    ) -> None:
        self._notices, self._ready = notices, ready
        self._streams, self._kernels, self._operations = streams, kernels, operations
        self._verbs, self._records, self._machine = verbs, records, machine
        self._known: dict[str, Owner] = {}
        #: The number of connections of each owner: a new one may come before the end of the old one is noticed.
        self._connections: Counter[str] = Counter()
        self._tasks = Tasks()
        self._arrived = asyncio.Event()
        self._began = time.monotonic()

    @contextmanager
    def connected(self, owner: Owner) -> Iterator[Stream]:
        """Register an owner's connection; yield the stream of its kernels and operations, of all changes of snapshots, and of notices."""
        owner_id = owner.owner_id
        self._known[owner_id] = owner
        self._connections[owner_id] += 1
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()
        try:
            with self._streams.opened(
                lambda: self._state(owner_id),
                lambda event, whose: (
                    whose == owner_id or event.snapshot is not None or event.notice is not None
                ),
            ) as stream:
                yield stream
        finally:
            self._connections[owner_id] -= 1
            if not self._connections[owner_id]:
                del self._connections[owner_id]
            self._tasks.start(self._expire(owner, GRACE_SECONDS))

    def _state(self, owner_id: str) -> Event:
        kernels = [kernel.public() for kernel in self._kernels.of_owner(owner_id)]
        operations = [one.public() for one in self._operations if one.kernel.owner_id == owner_id]
        return Event(self._streams.position, State(kernels, operations, self._notices()))

    def get(self, owner_id: str) -> Owner:
        """Return the owner of this id. Raises ConfigurationError if it is not connected."""
        if owner_id not in self._known:
            raise ConfigurationError(
                f"Owner {owner_id} is not connected.",
                hint="Hold POST /owners open for as long as the kernels are wanted.",
            )
        return self._known[owner_id]

    async def awaited(self, owner_id: str) -> Owner:
        """Return an owner as `get` does, but wait a moment for one that is just connecting, e.g. after a restart of the daemon."""
        with suppress(TimeoutError):
            is_young = time.monotonic() - self._began < RESTART_SECONDS
            async with asyncio.timeout(_ARRIVAL_SECONDS if is_young else GRACE_SECONDS):
                while owner_id not in self._known:
                    await self._arrived.wait()
        return self.get(owner_id)

    def expect_after_restart(self) -> None:
        """Give the owners of recovered kernels time to reconnect."""
        for owner in {kernel.record.owner for kernel in self._kernels}:
            self._tasks.start(self._expire(owner, RESTART_SECONDS))

    async def claim(self, owner_id: str) -> list[SuspendedKernel]:
        """Transfer to a server the kernels of dead servers that belong to it (see `belongs`), or to a batch run the kernels of that run.

        No two servers get the same kernel: other places' records are transferred under a lock, this place's on the event loop.
        """
        claimant = await self.awaited(owner_id)
        if claimant.kind is OwnerKind.SCRIPT:
            raise ConfigurationError("Only a server or a batch run can claim kernels.")
        wanted: Callable[[KernelRecord], bool] = lambda record: belongs(record, claimant)  # noqa: E731
        found = await asyncio.to_thread(self._records.take_over, wanted, self._machine.bring)
        await self._receive(found)
        taken = {record.kernel_id for record in found}
        claimed = []
        for kernel in list(self._kernels):
            record = kernel.record
            if belongs(record, claimant) and (
                record.kernel_id in taken
                or claimant.kind is OwnerKind.BATCH
                or self._is_dead(record.owner)
            ):
                await self._kernels.update(kernel, owner=claimant)
                if record.state is KernelState.SUSPENDED and not kernel.in_flight:
                    # While no daemon ran, nobody held its ports.
                    await self._replace_taken_ports(kernel)
                claimed.append(kernel)
                _log.info("owner %s claimed kernel %s", owner_id, kernel.kernel_id)
        return [await self._handed_over(kernel) for kernel in claimed]

    async def bring(self, kernel_id: str) -> None:
        """Take over a kernel that another machine with the same home has released, to resume it here. Raises SessionHeld."""
        await self._kernels.drop_moved()
        if self._kernels.find(kernel_id) is None:
            found = await asyncio.to_thread(self._records.take, kernel_id, self._machine.bring)
            await self._receive([found] if found else [])

    async def _receive(self, found: list[KernelRecord]) -> None:
        """Manage kernels that this place has just got, perhaps back from a machine that had taken them over."""
        for record in found:
            taken_over.note_received(self._kernels, record)
        await self._kernels.recover(found)
        for record in found:
            if (kernel := self._kernels.find(record.kernel_id)) is not None:
                await self._replace_taken_ports(kernel)

    async def _replace_taken_ports(self, kernel: ManagedKernel) -> None:
        """Replace the ports of a kernel without a process that could not be held or belong to other kernels. Never raises.

        No client knows its ports yet. If there are no others, the kernel can be resumed when its own are free.
        """
        record = kernel.record
        if record.tree is not None:
            return
        others = {port for one in self._kernels if one is not kernel for port in one.ports.ports}
        try:
            replaced = kernel.ports.replace_taken(others)
        except OSError as error:
            _log.warning("kernel %s keeps ports that are in use: %s", kernel.kernel_id, error)
            return
        if not replaced:
            return
        _log.info("kernel %s gets other ports: %s", kernel.kernel_id, replaced)
        jupyter = dict(record.jupyter)
        if connection := jupyter.get("connection_info"):
            jupyter["connection_info"] = moved_connection(
                connection, *zip(*replaced.items(), strict=True)
            )
        spec = msgspec.structs.replace(record.spec, own_ports=kernel.ports.ports, jupyter=jupyter)
        await self._kernels.update(kernel, spec=spec, jupyter=jupyter)

    async def _handed_over(self, kernel: ManagedKernel) -> SuspendedKernel:
        record = kernel.record
        secrets = await asyncio.to_thread(self._kernels.secrets, record)
        return SuspendedKernel(
            kernel.public(), record.jupyter, record.spec.cwd, record.cause, secrets
        )

    async def claimable(self, owner_id: str) -> list[Kernel]:
        """List the kernels that this owner could claim if their servers had ended."""
        claimant = self.get(owner_id)
        ours = [k for k in self._kernels if k.owner_id != owner_id]
        left = [kernel.public() for kernel in ours if belongs(kernel.record, claimant)]
        known = {kernel.kernel_id for kernel in left}
        for record in await asyncio.to_thread(self._records.of_others):
            if record.kernel_id not in known and belongs(record, claimant):
                kernel_id, owner = record.kernel_id, record.owner.owner_id
                left.append(Kernel(kernel_id, record.state, owner, name=record.name))
        return left

    async def leave(self, owner_id: str) -> None:
        """Let the next server claim this owner's kernels although its process may still run. This cannot be undone."""
        for kernel in self._kernels.of_owner(owner_id):
            left = msgspec.structs.replace(kernel.record.owner, pid=0, start_time=0.0)
            await self._kernels.update(kernel, owner=left)

    def _is_dead(self, owner: Owner) -> bool:
        if not owner.pid:
            return True
        return not self._connections[owner.owner_id] and start_time(owner.pid) != owner.start_time

    async def _expire(self, owner: Owner, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._connections[owner.owner_id]:
            return
        self._known.pop(owner.owner_id, None)
        await self._ready.forget(owner.owner_id)
        if owner.kind is not OwnerKind.SCRIPT:
            return
        kernels = self._kernels.of_owner(owner.owner_id)
        _log.info(
            "owner %s is gone; killing its %s", owner.owner_id, counted(len(kernels), "kernel")
        )
        await asyncio.gather(*map(self._kill, kernels))

    async def _kill(self, kernel: ManagedKernel) -> None:
        if kernel.state is KernelState.SUSPENDING and kernel.in_flight:
            # A running save is completed, because its snapshot can be resumed after the kernel is forgotten.
            await kernel.in_flight.until_ended()
        try:
            await self._verbs.kill(kernel.kernel_id)
        except KernelNotFound:
            _log.debug("kernel %s ended before it was killed", kernel.kernel_id)


def belongs(record: KernelRecord, claimant: Owner) -> bool:
    """Return whether `claimant` may take over a dead server's kernel: same hub server, notebook under its root_dir.

    Kernels of a batch run go only to the same run.

    `record.jupyter` holds `root` (the former server's root_dir) and `sessions`, whose `path` is relative to it. A kernel
    without a path belongs to a server of the same root_dir. No server may claim one that its user has shut down.
    """
    former = record.owner
    if record.ends:
        return False
    if OwnerKind.BATCH in {former.kind, claimant.kind}:
        return (former.kind, former.owner_id) == (claimant.kind, claimant.owner_id)
    if former.kind is not OwnerKind.SERVER or former.hub_server != claimant.hub_server:
        return False
    root = str(record.jupyter.get("root") or former.root_dir)
    paths = [path for session in _sessions(record) if (path := str(session.get("path") or ""))]
    if not paths:
        return os.path.normpath(former.root_dir) == os.path.normpath(claimant.root_dir)
    new_root = Path(os.path.normpath(claimant.root_dir))
    return any(Path(os.path.normpath(Path(root, path))).is_relative_to(new_root) for path in paths)


def _sessions(record: KernelRecord) -> list[dict[str, Any]]:
    sessions = record.jupyter.get("sessions")
    return [s for s in sessions if isinstance(s, dict)] if isinstance(sessions, list) else []
