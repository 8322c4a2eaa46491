"""The leases of this daemon. While a kernel runs here, the daemon has the lease of its far session: no other machine may run it.

A lease is requested before a session is fetched, before one of its kernels is resumed, and after a running kernel's first snapshot
was uploaded (`lease_renewal.py`). It is released when the kernel does not run and all its snapshots are uploaded. A remote that does
not answer delays no kernel: it runs without a lease. Its uploads are checked against its last known lease, and if another machine has
had the session since, the kernel becomes a branch (`lost_leases.py`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from ...errors import FarObjectMissing, GpuCkptError, SessionHeld
from ...remote.lease_objects import LIFE_SECONDS
from ...remote.remote_list import Remotes, state_folder
from ...wire.place import Place
from ...wire.remote_records import Remote
from ...wire.snapshot_order import next_number
from ...wire.states import ALIVE
from ..kernels import taken_over
from ..kernels.kernels import Kernels
from ..kernels.machine import Machine
from .kept_leases import Reservations
from .lease_file import KernelLease, LeaseFile
from .leases_at_remote import LeasesAtRemote, Waiting
from .upload_queue import read_uploaded, record_path

#: How long a resume from this machine's own store waits for the answer of a remote.
WAIT_SECONDS = 5.0
#: How long a lease is kept for a session that was fetched but not resumed yet.
KEEP_SECONDS = 900.0
#: The shortest time for which a lease is kept for a kernel that is about to run.
_BEGIN_SECONDS = 60.0

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class DaemonLeases:
    """The leases in all remotes, as far as fetches and resumes need them. Its methods may be called in any thread, except `wake`.

    `life_seconds`: how long a lease lasts after the last heartbeat.
    """

    def __init__(
        self,
        data_dir: Path,
        machine: Machine,
        kernels: Kernels,
        place: Place,
        *,
        life_seconds: float = LIFE_SECONDS,
    ) -> None:
        self._data_dir, self._machine, self._kernels = data_dir, machine, kernels
        self._place, self.life_seconds = place.key, life_seconds
        self.daemon_id, self._host_name = uuid.uuid4().hex, socket.gethostname()
        self._lock = threading.Lock()
        self._at: dict[str, LeasesAtRemote] = {}
        #: One thread for each remote: requests to one remote run one after the other, and delay no other remote.
        self._threads: dict[str, ThreadPoolExecutor] = {}
        #: Kernels that are being fetched or resumed.
        self.reserved = Reservations()
        self._is_over = threading.Event()
        #: Set when other leases may be needed than before.
        self.woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def are_in_use(self) -> bool:
        """Return whether a remote was asked for a lease, and may be asked again."""
        return bool(self._at) and not self._is_over.is_set()

    def wake(self) -> None:
        """Let the renewal check soon which leases are needed. On the event loop's thread."""
        self.woken.set()

    def close(self) -> None:
        """End all requests to remotes; a thread whose remote does not answer is not waited for."""
        self._is_over.set()
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    def claim_to_fetch(
        self, remote: Remote, kernel_id: str, session_id: str, *, take_over: bool
    ) -> list[str]:
        """Get the lease of a far session before it is fetched, and keep it until `fetched`; return warnings.

        If its kernel runs here, or goes on in another session, the lease is not requested now but before a resume. Raises
        SessionHeld, FarObjectMissing, and what `Bucket` raises.
        """
        known = LeaseFile(state_folder(self._data_dir, remote.name)).of(kernel_id)
        kernel = self._kernels.find(kernel_id)
        if kernel is not None and kernel.state in ALIVE:
            return []  # the renewal gets the lease of a running kernel, and a fetch does not change its session
        if known.session_id != session_id and self._machine.snapshots(kernel_id):
            return []  # the kernel stays in its other session until it is resumed from the fetched snapshot
        self.reserved.keep(kernel_id, float("inf"))
        # Another host with the same home may run a kernel that this daemon does not know. A former daemon of this place does not.
        if kernel is None and known.place != self._place:
            known = msgspec.structs.replace(known, is_held=False)
        try:
            asked = self.ask(
                remote, lambda at: at.claim(kernel_id, session_id, take_over, known, Waiting())
            )
            return asked.result()
        except BaseException:
            self.fetched(kernel_id, keep_seconds=0.0)
            raise

    def fetched(self, kernel_id: str, *, keep_seconds: float = KEEP_SECONDS) -> None:
        """Keep the lease of a fetched session for `keep_seconds`, or for as long as its kernel runs."""
        self.reserved.keep(kernel_id, keep_seconds)
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self.wake)

    def warning_of(self, remote: Remote, session_id: str) -> str:
        """Return a sentence that says who runs a far session now; empty if nobody else does. Raises what `Bucket` raises."""
        return self.ask(remote, lambda at: at.warning_of(session_id)).result()

    def require(self, kernel_id: str, snapshot_id: str, *, take_over: bool) -> list[str]:
        """Get the leases that a kernel needs to be resumed from a snapshot; return warnings. Raises SessionHeld.

        Remotes that do not answer within `WAIT_SECONDS` are not waited for.
        """
        warnings: list[str] = []
        remotes, ids = self._remotes_of(kernel_id)
        if remotes:
            # The lease file is read after this: a release that was decided before is recorded in it, and no later one is decided.
            self.reserved.keep_longer(kernel_id, _BEGIN_SECONDS)
        for remote in remotes:
            try:
                warnings += self._require_at(remote, kernel_id, snapshot_id, ids, take_over)
            except SessionHeld:
                raise
            except (TooLate, GpuCkptError) as error:
                why = error.message if isinstance(error, GpuCkptError) else "It does not answer."
                warnings.append(
                    f"Remote {remote.name} could not be asked whether another machine runs this session: {why}"
                    " If one does, what is saved here becomes a branch of it there."
                )
        if self._kernels.lost_notebooks.is_about(kernel_id) and self._has_back(kernel_id, remotes):
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._forget_lost, kernel_id)
        return warnings

    def highest_number(self, kernel_id: str) -> int:
        """Return the highest number of a kernel's snapshots that its far sessions had when their leases were granted; never raises."""
        highest = 0
        try:
            for remote in Remotes(self._data_dir).all():
                known = LeaseFile(state_folder(self._data_dir, remote.name)).of(kernel_id)
                highest = max(highest, known.highest)
        except GpuCkptError as error:
            _log.warning("the leases of kernel %s cannot be read: %s", kernel_id, error)
        return highest

    def next_number(self, kernel_id: str) -> int:
        """Return a number above those of all of a kernel's snapshots that are known; never raises."""
        return next_number(self.highest_here(kernel_id), self.highest_number(kernel_id))

    def highest_here(self, kernel_id: str) -> int:
        """Return the highest number of a kernel's snapshots that is known here; never raises."""
        kernel = self._kernels.find(kernel_id)
        known = [kernel.record.number] if kernel is not None else []
        # Where the list cannot be read, earlier snapshots count as made in the new term, which still comes after what others made.
        with suppress(GpuCkptError):
            known += [one.info.number for one in self._machine.store.listed(kernel_id)]
        return max(known, default=0)

    def resumed(self, kernel_id: str) -> None:
        """End the reservation of a kernel that `require` or a fetch made: the kernel runs, and that alone keeps its leases."""
        self.reserved.end(kernel_id)

    def _require_at(
        self,
        remote: Remote,
        kernel_id: str,
        snapshot_id: str,
        ids: set[str],
        take_over: bool,
    ) -> list[str]:
        file = LeaseFile(state_folder(self._data_dir, remote.name))
        known = file.of(kernel_id)
        # A branch begins with a snapshot of another kernel, which says nothing of its own session.
        session_id = file.session_to_go_on(kernel_id, snapshot_id if snapshot_id in ids else "")
        if self._is_sure(remote, known, session_id):
            return []
        file.begin(kernel_id, session_id, ids)
        waiting = Waiting()
        asked = self.ask(
            remote, lambda at: at.claim(kernel_id, session_id, take_over, known, waiting)
        )
        try:
            try:
                return asked.result(WAIT_SECONDS)
            except TooLate:
                if waiting.decide():
                    raise
                return asked.result()
        except SessionHeld:
            file.note(kernel_id, known)
            raise
        except FarObjectMissing:
            file.note(kernel_id, msgspec.structs.replace(known, is_held=False))
            return []

    def _has_back(self, kernel_id: str, remotes: list[Remote]) -> bool:
        """Return whether this daemon has the leases of a kernel's own far sessions, and not those of branches."""
        known = [LeaseFile(state_folder(self._data_dir, one.name)).of(kernel_id) for one in remotes]
        return bool(known) and all(
            one.is_held and (one.daemon_id, one.session_id) == (self.daemon_id, kernel_id)
            for one in known
        )

    def _forget_lost(self, kernel_id: str) -> None:
        kernel = self._kernels.find(kernel_id)
        if kernel is not None and not kernel.doomed:
            taken_over.forget(self._kernels, kernel)

    def _is_sure(self, remote: Remote, known: KernelLease, session_id: str) -> bool:
        """Return whether this daemon surely has the lease, so that the remote need not be asked."""
        with self._lock:
            at = self._at.get(remote.name)
        is_own = known.is_held and (known.daemon_id, known.session_id) == (
            self.daemon_id,
            session_id,
        )
        return is_own and at is not None and at.remote.place == remote.place and at.is_sure

    def _remotes_of(self, kernel_id: str) -> tuple[list[Remote], set[str]]:
        """Return the remotes in which a kernel has a far session, as far as this machine knows, and the ids of the kernel's snapshots."""
        try:
            remotes = Remotes(self._data_dir).all()
            if not remotes:
                return [], set()
            ids = {one.snapshot_id for one in self._machine.snapshots(kernel_id)}
        except GpuCkptError as error:
            _log.warning("kernel %s goes on without leases: %s", kernel_id, error)
            return [], set()
        return [one for one in remotes if self._is_there(one, kernel_id, ids)], ids

    def _is_there(self, remote: Remote, kernel_id: str, snapshot_ids: set[str]) -> bool:
        uploaded = read_uploaded(record_path(self._data_dir, remote.name)).snapshots
        with suppress(GpuCkptError):
            known = LeaseFile(state_folder(self._data_dir, remote.name)).of(kernel_id)
            return bool(known.term or snapshot_ids.intersection(uploaded))
        return True

    def ask(self, remote: Remote, question: Callable[[LeasesAtRemote], _Answer]) -> Future[_Answer]:
        """Call `question` in the remote's thread, after earlier questions."""
        with self._lock:
            at = self._at.get(remote.name)
            if at is None or at.remote != remote:
                at = self._at[remote.name] = LeasesAtRemote(
                    self._data_dir,
                    remote,
                    self.daemon_id,
                    self._host_name,
                    self.life_seconds,
                    self.reserved,
                    self._is_over,
                    self._place,
                    self.highest_here,
                )
            threads = self._threads.get(remote.name)
            if threads is None:
                threads = ThreadPoolExecutor(1, thread_name_prefix=f"leases {remote.name}")
                self._threads[remote.name] = threads
        return threads.submit(question, at)
