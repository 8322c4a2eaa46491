"""The renewal of leases: the background task that gets, keeps and releases the leases in all remotes as the kernels need them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from ...errors import GpuCkptError
from ...remote.remote_list import Remotes
from ...wire.manifest_records import SnapshotInfo
from ...wire.states import ALIVE, KernelState
from ..kernels.kernels import Kernels
from .leases import DaemonLeases
from .leases_at_remote import LeasesAtRemote, Needs, OnLost
from .uploads import Uploads

#: The number of heartbeats within a lease's life.
_BEATS = 4
#: The time limit for the last releases when the daemon exits.
_LEAVE_SECONDS = 5.0

_log = logging.getLogger(__name__)


class LeaseRenewal:
    """The task that renews leases. On the event loop's thread.

    `on_lost`: called in a thread for a kernel whose far session another machine has taken over.
    """

    def __init__(
        self,
        data_dir: Path,
        kernels: Kernels,
        uploads: Uploads,
        leases: DaemonLeases,
        on_lost: OnLost,
    ) -> None:
        self._data_dir, self._kernels, self._uploads = data_dir, kernels, uploads
        self._leases, self._on_lost = leases, on_lost
        #: The needs that each remote was told last.
        self._told: dict[str, Needs] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start renewing leases, also for kernels that run already."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Release the leases that are not needed; return soon even if a remote does not answer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._leases.are_in_use:
            self._leases.reserved.clear()
            with suppress(TimeoutError, GpuCkptError):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await self._look(is_due=True)

    async def _run(self) -> None:
        due = time.monotonic()
        while True:
            self._leases.woken.clear()
            now = time.monotonic()
            is_due = now >= due
            if is_due:
                due = now + self._leases.life_seconds / _BEATS
            try:
                await self._look(is_due=is_due)
            except GpuCkptError as error:
                _log.warning("leases were not updated: %s", error)
            except Exception:
                _log.exception("leases were not updated")
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - time.monotonic())):
                    await self._leases.woken.wait()

    async def _look(self, *, is_due: bool) -> None:
        """Renew, claim and release leases in all remotes at once; without `is_due` only in those where the needs have changed."""
        remotes = await asyncio.to_thread(Remotes(self._data_dir).all)
        if not remotes:
            return
        found = await self._uploads.by_remote()
        asked = []
        for remote in remotes:
            needs = self._needs(found.get(remote.name, {}))
            if is_due or needs != self._told.get(remote.name):
                self._told[remote.name] = needs
                tend = partial(LeasesAtRemote.tend, needs=needs, on_lost=self._on_lost)
                one = asyncio.wrap_future(self._leases.ask(remote, tend))
                one.add_done_callback(partial(self._note_failure, remote.name))
                asked.append(one)
        if not asked:
            return
        # A remote that does not answer gets its next request after the answer, because its thread does one after the other.
        await asyncio.wait(asked, timeout=self._leases.life_seconds / _BEATS)

    def _note_failure(self, remote: str, one: asyncio.Future[None]) -> None:
        """Log the error of a renewal, which may come long after `_look` has returned, and let the next `_look` ask again."""
        if not one.cancelled() and (error := one.exception()):
            _log.warning("leases in remote %s were not renewed: %s", remote, error)
            self._told.pop(remote, None)

    def _needs(self, uploads: Mapping[str, tuple[SnapshotInfo, bool]]) -> Needs:
        """Return which kernels need or keep a lease in a remote. `uploads`: each snapshot, and whether the remote has it."""
        has = {info.kernel_id for info, there in uploads.values() if there}
        waits = {info.kernel_id for info, there in uploads.values() if not there}
        running, keeping = set(), set(waits)
        for kernel in self._kernels:
            state, snapshot_id = kernel.state, kernel.record.snapshot_id
            if state in ALIVE or state is KernelState.RESUMING:
                running.add(kernel.kernel_id)
            elif snapshot_id and not uploads.get(snapshot_id, (None, False))[1]:
                keeping.add(kernel.kernel_id)
        keeping |= self._leases.reserved.all()
        return Needs(frozenset(running), frozenset(running & has), frozenset(keeping))
