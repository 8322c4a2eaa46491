"""The daemon's reaction when this machine goes: it tells its servers, and suspends the kernels that none of them suspends.

A notice is published when it comes. If there is time, kernels are saved for it and run on (`Timing`). It is due when little time
is left: then they are suspended. Servers do both for their kernels, because they know the messages between kernel and pages. The
daemon does it for the kernels of scripts, and of servers that do not start. If the disk does not survive, snapshots are uploaded at
full rate meanwhile. No kernel is killed without a snapshot: a suspend that is not complete at the deadline is undone. The withdrawal
of a notice cancels the suspends that have not begun.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from ...batches.save_rates import measured_rates
from ...batches.suspend_batch import suspend_each
from ...batches.triage import UPLOAD_BYTES_PER_SECOND, measured_upload_rate, most_at_stake_first
from ...errors import GpuCkptError
from ...wire.manifest_records import Cause, SnapshotInfo
from ...wire.protocol import Event, Operation, OperationKind, OwnerKind, ResumeRequest, SaveRequest
from ...wire.reclaim_records import (
    MAX_NOTICES,
    Notice,
    NoticeKind,
    NoticeRequest,
    NoticesReport,
    now,
)
from ...wire.states import ABSENT, ALIVE, KernelState
from ..kernels.kernels import Kernels, ManagedKernel
from ..kernels.machine import Machine
from ..kernels.measuring import Measuring
from ..kernels.operations import Operations
from ..kernels.streams import Streams
from ..kernels.verbs import Verbs
from ..remotes.uploads import Uploads
from .first_saves import GRACE_SECONDS, FirstSaves, is_at_work
from .risks import Risks

#: The rate of suspends that is expected before any was measured.
_CAREFUL_BYTES_PER_SECOND = 50e6
#: The largest part of the remaining time that a server may take to begin suspending.
_GRACE_PART = 0.2
#: How long a kernel that was resumed meanwhile runs before it is suspended again, and how often its suspend is tried.
_AGAIN_SECONDS, _MAX_TRIES = 10.0, 2
#: A machine that still runs so long after the deadline is considered to stay.
STAYS_SECONDS = 300.0
_LOOK_SECONDS = 0.5
#: How long the list of snapshots may take, from which the rate of earlier saves is known, and the list of uploads and of remotes.
_MEASURE_SECONDS, _UPLOADS_SECONDS = 2.0, 1.0
_BEING_DONE = frozenset({KernelState.STARTING, KernelState.SUSPENDING, *ABSENT})
#: A notice is acted on when less than this time is left, or earlier if the suspends take long.
LEAD_SECONDS = 300.0
#: Kernels are saved first if at least this time is left, and suspended at the latest when that time is left.
FIRST_SECONDS, LAST_SECONDS = 60.0, 30.0
#: How much longer than all suspends the time must be for saving kernels first (see `Timing`), and how much longer it is when that begins.
_TIMES, _LEAD_TIMES = 3.0, 4.0

_log = logging.getLogger(__name__)


class AsDaemon:
    """A `Suspender` that suspends without a server. `begun`: the ids of these suspends are added to it."""

    def __init__(self, verbs: Verbs, operations: Operations, begun: set[str]) -> None:
        self._verbs, self._operations, self._begun = verbs, operations, begun

    async def begin(self, kernel_id: str) -> Operation:
        """Start the suspend of a kernel; raise GpuCkptError if it is refused."""
        operation = self._verbs.suspend(kernel_id, SaveRequest(cause=Cause.RECLAIM))
        self._begun.add(operation.operation_id)
        return operation.public()

    async def finish(self, operation: Operation) -> Operation:
        """Wait for the end of the operation and return it."""
        running = self._operations.get(operation.operation_id)
        await running.until_ended()
        return running.public()

    async def cancel(self, operation: Operation) -> None:
        """Ask the operation to stop and undo its work."""
        self._operations.get(operation.operation_id).cancel()


class Reaction:
    """The standing notices, and the task that acts on them. On the event loop's thread.

    `acknowledge`: called with a notice when every kernel is safe from it.
    """

    def __init__(
        self,
        streams: Streams,
        kernels: Kernels,
        operations: Operations,
        verbs: Verbs,
        measuring: Measuring,
        machine: Machine,
        uploads: Uploads,
        acknowledge: Callable[[Notice], Awaitable[None]],
    ) -> None:
        self._streams, self._kernels, self._operations = streams, kernels, operations
        self._verbs, self._measuring, self._machine = verbs, measuring, machine
        self._uploads, self._acknowledge = uploads, acknowledge
        self._risks = Risks(kernels, uploads)
        self._standing: dict[str, Notice] = {}
        self._woken = asyncio.Event()
        self._timing, self._first_saves = Timing(), FirstSaves(kernels, operations, verbs, uploads)
        self._bytes_per_second = 0.0
        #: The deadline, whether the disk survives, and whether kernels are being suspended, not saved; None: nothing is done.
        self._acts_on: tuple[float, bool, bool] | None = None
        self._act: asyncio.Task[None] | None = None
        self._resumes: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._tries: Counter[str] = Counter()
        #: Kernels of scripts and batch runs that this daemon suspended, and that nobody else would resume.
        self._of_scripts: set[str] = set()
        self._told: set[str] = set()
        #: The suspends that this daemon began for due notices.
        self._begun: set[str] = set()
        #: When the first of the due notices became due, and until when servers may take to begin (by `now`); 0: none is due.
        self._due_since = self._grace_until = 0.0

    def start(self) -> None:
        """Start acting on notices."""
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Stop acting."""
        tasks = {task for task in (self._task, self._act, self._resumes) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def standing(self) -> list[Notice]:
        """Return the notices that stand."""
        return list(self._standing.values())

    def report(self) -> NoticesReport:
        """Return the notices that stand, and the kernels that are not safe yet."""
        survives = all(notice.disk_survives for notice in self._standing.values())
        unsafe = self._risks.unsafe(disk_survives=survives)
        return NoticesReport(self.standing(), unsafe, self._uploads.is_anywhere)

    def request(self, request: NoticeRequest) -> None:
        """Handle the notice of a hook."""
        self.take(
            Notice(
                f"requested:{request.name}",
                NoticeKind.REQUESTED,
                now() + request.within_seconds,
                request.disk_survives,
                request.withdrawn,
                # The hook waits until all kernels are safe, and the machine waits for the hook.
                ends_early=True,
            )
        )

    def take(self, notice: Notice) -> None:
        """Handle a notice, a change of one, or its withdrawal."""
        known = self._standing.get(notice.id)
        if notice.withdrawn:
            if known is None:
                return
            del self._standing[notice.id]
            _log.warning("notice %r is withdrawn: this machine stays", notice.id)
        elif known is None and len(self._standing) >= MAX_NOTICES:
            _log.warning("notice %r is left out: there are %d already", notice.id, MAX_NOTICES)
            return
        else:
            if known is not None:
                flags = {"is_due": known.is_due, "is_saving": known.is_saving}
                notice = msgspec.structs.replace(notice, **flags)
                if _is_later(notice.deadline, known.deadline):
                    notice = self._timing.put_off(notice, self._need_seconds())
            if notice == known:
                return
            self._standing[notice.id] = notice
            left = notice.seconds_left
            when = "perhaps soon" if left is None else f"in {left:.0f} s"
            survives = "survives" if notice.disk_survives else "may not survive"
            _log.warning("notice %r: this machine goes %s; its disk %s", notice.id, when, survives)
        self._publish(notice)
        self._told.discard(notice.id)
        self._woken.set()

    def _publish(self, notice: Notice) -> None:
        self._streams.publish(Event(self._streams.advance(), notice=notice))

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                if self._standing and not self._bytes_per_second and any(self._kernels):
                    self._bytes_per_second = await self._measured_rate()
                self._look()
            except Exception:  # the next look tries again
                _log.exception("the reaction to notices that this machine goes failed")
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS if self._standing else None):
                    await self._woken.wait()

    def _look(self) -> None:
        for notice in self.standing():
            if notice.deadline is None:
                continue
            if now() > notice.deadline + STAYS_SECONDS:
                self.take(msgspec.structs.replace(notice, withdrawn=True))
                continue
            changed = self._timing.applied(notice, self._need_seconds())
            if changed != notice:
                self._standing[notice.id] = changed
                self._publish(changed)
        due = [one for one in self._standing.values() if one.is_due]
        acted_on = due or [one for one in self._standing.values() if one.is_saving]
        acts_on = None
        if acted_on:
            first = min(one.deadline for one in acted_on if one.deadline is not None)
            acts_on = (first, all(one.disk_survives for one in acted_on), bool(due))
        if acts_on == self._acts_on:
            return
        was_due = self._acts_on is not None and self._acts_on[2]
        self._acts_on = acts_on
        if self._act is not None:
            self._act.cancel()  # what has begun goes on
        if was_due and not due:
            self._end_suspends()
        if acts_on is None:
            self._end()
        elif due:
            if self._resumes is not None:
                self._resumes.cancel()
            self._act = asyncio.ensure_future(self._suspend_all(*acts_on[:2]))
        else:
            self._act = asyncio.ensure_future(self._save_all(disk_survives=acts_on[1]))

    async def _measured_rate(self) -> float:
        """Return the lowest rate of earlier saves, which kernels' suspends are expected to have."""
        try:
            async with asyncio.timeout(_MEASURE_SECONDS):
                snapshots = await asyncio.to_thread(self._machine.snapshots, None)
        except Exception:  # kernels must be suspended in any case
            _log.warning("the rate of earlier saves is not known", exc_info=True)
            return _CAREFUL_BYTES_PER_SECOND
        return min(measured_rates(snapshots), default=_CAREFUL_BYTES_PER_SECOND)

    def _need_seconds(self) -> float:
        """Return how long the suspends of all kernels are expected to take."""
        alive = [kernel.usage for kernel in self._kernels if kernel.state in ALIVE]
        count_bytes = sum(usage.memory_bytes + usage.gpu_bytes for usage in alive)
        return count_bytes / (self._bytes_per_second or _CAREFUL_BYTES_PER_SECOND)

    def _end(self) -> None:
        """Return to normal operation, because nothing is done for any notice."""
        self._uploads.hurry(on=False)
        self._timing = Timing()
        self._first_saves.end()
        self._bytes_per_second = 0.0

    def _end_suspends(self) -> None:
        """Let kernels run again, because no notice is due any more; they may still be saved for one."""
        self._tries.clear()
        self._begun.clear()
        self._due_since = self._grace_until = 0.0
        self._resumes = asyncio.ensure_future(self._resume_scripts())

    async def _save_all(self, *, disk_survives: bool) -> None:
        """Save and upload the kernels, which run on, until all of them are safe or a notice is due."""
        self._timing.begin()
        self._first_saves.begin()
        self._uploads.hurry(on=not disk_survives)
        if not disk_survives:
            await self._look_for_remotes()
        while not self._first_saves.are_complete(disk_survives=disk_survives):
            try:
                await self._first_saves.save_left_over()
            except Exception:  # the suspends follow in any case
                _log.exception("kernels are not saved first")
                return
            await asyncio.sleep(_LOOK_SECONDS)
        self._timing.complete()

    async def _suspend_all(self, deadline: float, disk_survives: bool) -> None:
        total = deadline - now()
        grace_until = now() + min(GRACE_SECONDS, _GRACE_PART * total)
        # A second notice with an earlier deadline must not begin a new grace period.
        self._due_since = self._due_since or now()
        self._grace_until = min(self._grace_until or grace_until, grace_until)
        half_time = now() + total / 2
        self._uploads.hurry(on=not disk_survives)
        if not disk_survives:
            await self._look_for_remotes()
            self._risks.begin()
        while now() < deadline:
            try:
                if kernels := self._left_over(
                    self._due_since, grace_is_over=now() >= self._grace_until
                ):
                    await self._suspend(kernels, deadline)
                await self._acknowledge_if_safe(disk_survives=disk_survives)
            except GpuCkptError as error:
                _log.warning("kernels are suspended later: %s", error)
            except Exception:  # the others, and the next round, must go on
                _log.exception("kernels are suspended later")
            if not disk_survives and now() >= half_time:
                self._risks.foresee(deadline - now())
                half_time = deadline
            await asyncio.sleep(max(0.0, min(_LOOK_SECONDS, deadline - now())))
        self._undo()
        self._risks.say_lost(disk_survives=disk_survives)

    def _undo(self) -> None:
        """Undo the suspends that are not complete at the deadline; their kernels run on."""
        for operation in self._operations:
            if operation.operation_id in self._begun:
                operation.cancel()
        self._begun.clear()

    def _left_over(self, began: float, *, grace_is_over: bool) -> list[ManagedKernel]:
        """Return the kernels that nobody else suspends."""
        left = []
        for kernel in self._kernels:
            record = kernel.record
            if kernel.state in _BEING_DONE or record.ends:
                continue
            if self._tries[kernel.kernel_id] >= _MAX_TRIES:
                continue
            if began < kernel.entered_at and now() < kernel.entered_at + _AGAIN_SECONDS:
                continue
            is_servers = record.owner.kind is OwnerKind.SERVER
            if is_servers and (
                not grace_is_over
                or is_at_work(self._operations, OperationKind.SUSPEND, kernel.owner_id)
            ):
                continue
            left.append(kernel)
        return left

    async def _suspend(self, kernels: list[ManagedKernel], deadline: float) -> None:
        await self._measuring.measure(kernels, exactly=False)
        first_to_last, snapshots = [kernel.public() for kernel in kernels], list[SnapshotInfo]()
        rate = await self._upload_rate()
        try:
            async with asyncio.timeout(_MEASURE_SECONDS):
                snapshots = await asyncio.to_thread(self._machine.snapshots, None)
            is_lost = self._acts_on is not None and not self._acts_on[1]
            first_to_last = most_at_stake_first(
                first_to_last,
                snapshots,
                max(0.0, deadline - now()),
                now=time.time(),
                is_in_remote=(lambda info: self._uploads.has(info.snapshot_id))
                if is_lost
                else None,
                upload_bytes_per_second=rate,
            )
        except Exception:  # they must be suspended in any case
            _log.warning("kernels are suspended in any order", exc_info=True)
        for kernel in kernels:
            self._tries[kernel.kernel_id] += 1
            if kernel.record.owner.kind is not OwnerKind.SERVER:
                self._of_scripts.add(kernel.kernel_id)
        asked = AsDaemon(self._verbs, self._operations, self._begun)
        left = max(0.0, deadline - now())
        for outcome in await suspend_each(first_to_last, asked, left, snapshots=snapshots):
            if outcome.saved:
                del self._tries[outcome.kernel_id]
            elif outcome.error is not None:
                self._risks.say_not_suspended(outcome.kernel_id, outcome.error.message)

    async def _upload_rate(self) -> float:
        try:
            async with asyncio.timeout(_UPLOADS_SECONDS):
                return measured_upload_rate(await self._uploads.views())
        except Exception:  # kernels must be suspended in any case
            _log.warning("the rate of uploads is not known", exc_info=True)
            return UPLOAD_BYTES_PER_SECOND

    async def _look_for_remotes(self) -> None:
        """Apply a remote that was added just now, unless that takes long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_UPLOADS_SECONDS):
                await self._uploads.look()

    async def _acknowledge_if_safe(self, *, disk_survives: bool) -> None:
        is_lost = not disk_survives and not self._uploads.is_anywhere
        if self._risks.unsafe(disk_survives=disk_survives) or (is_lost and any(self._kernels)):
            return
        for notice in self.standing():
            if notice.is_due and notice.id not in self._told:
                self._told.add(notice.id)
                await self._acknowledge(notice)

    async def _resume_scripts(self) -> None:
        """Resume the kernels of scripts, because the scripts would wait for ever.

        A cancelled call leaves the others suspended, until again no notice is due.
        """
        for kernel_id in list(self._of_scripts):
            kernel = self._kernels.find(kernel_id)
            if kernel is not None and kernel.in_flight:
                await kernel.in_flight.until_ended()
            self._of_scripts.discard(kernel_id)
            if kernel is not None and kernel.state is KernelState.SUSPENDED:
                try:
                    self._verbs.resume(kernel_id, ResumeRequest())
                except GpuCkptError as error:
                    _log.warning("kernel %s stays suspended: %s", kernel_id, error)


def _is_later(deadline: float | None, known: float | None) -> bool:
    return known is not None and (deadline is None or deadline > known)


class Timing:
    """The times of one reaction, from the first notice that is acted on until none is.

    If there is time, every kernel is saved and uploaded first, while it runs on. The suspends follow shortly before the deadline and
    store and send only what has changed since. They take no longer than those first saves, so they begin when twice the time is left
    that the first saves and uploads have taken. This holds while these have not ended either: then a third of the time was theirs.

    What is done for a notice goes on until it is withdrawn or put off, although less remains to be done the more kernels are suspended.
    """

    def __init__(self) -> None:
        #: When the first saves began, and how long they took with their uploads.
        self._began: float | None = None
        self._took: float | None = None
        #: The longest expected time of the suspends of all kernels since something is done.
        self._need_seconds = 0.0

    def begin(self) -> None:
        """Note that the first saves begin, unless they have begun before."""
        if self._began is None:
            self._began = now()

    def complete(self) -> None:
        """Note that all first saves are uploaded."""
        if self._began is not None and self._took is None:
            self._took = now() - self._began

    def applied(self, notice: Notice, need_seconds: float) -> Notice:
        """Return a notice with what is done for it now. `need_seconds`: the expected time of the suspends of all kernels."""
        left = notice.seconds_left
        if left is None:
            return msgspec.structs.replace(notice, is_saving=False, is_due=False)
        # It becomes less with every kernel that is suspended.
        need_seconds = max(need_seconds, self._need_seconds)
        saves_first = not notice.ends_early
        lead = max(LEAD_SECONDS, need_seconds * (_LEAD_TIMES if saves_first else 1.0))
        if left > lead and not (notice.is_saving or notice.is_due):
            return notice
        self._need_seconds = need_seconds
        is_due = notice.is_due or not saves_first or self._must_suspend(left, need_seconds)
        return msgspec.structs.replace(notice, is_saving=not is_due, is_due=is_due)

    def put_off(self, notice: Notice, need_seconds: float) -> Notice:
        """Return a notice whose deadline is later than before with what is done for it now; parameters as of `applied`."""
        undecided = msgspec.structs.replace(notice, is_saving=False, is_due=False)
        return self.applied(undecided, need_seconds)

    def _must_suspend(self, left: float, need_seconds: float) -> bool:
        if self._began is None:
            return left < max(FIRST_SECONDS, _TIMES * need_seconds)
        spent = now() - self._began if self._took is None else self._took
        return left <= max(LAST_SECONDS, need_seconds, 2.0 * spent)
