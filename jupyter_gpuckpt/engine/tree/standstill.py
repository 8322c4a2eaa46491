"""The standstill of a tree: all tasks are stopped by SIGSTOP, and every thread's registers recorded, before CRIU touches it.

CRIU's own stop is not enough: it traces the tasks and lets them execute code of its own, and when a tracer dies Linux
lets its tracees run on at once, wherever they are. A process whose tracer is killed in the middle of an injection then executes
CRIU's breakpoint and dies of SIGTRAP. A process in group-stop goes back into it instead (kernel/ptrace.c,
`__ptrace_unlink`), and can be repaired from the record. CRIU itself saves stopped tasks as stopped ones.

No record helps a task that has hit a breakpoint: its SIGTRAP is pending, and Linux delivers it if CRIU dies before it has
consumed the signal. So in our dumps CRIU's code has no breakpoints (engine/criu/injection.c).
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from ...errors import CheckpointError, FreezeFailed
from ...host import processes
from ...wire import decoding
from ...wire.manifest_records import SCRATCH
from ..injection import ptrace
from ..injection.call_tables import code_address
from ..injection.threads_held import ThreadsHeld
from ..injection.tracee import RegistersRecord, Tracee
from .endless_waits import restart_endless_wait
from .launch import pids, wait_until
from .tree import Tree
from .user_threads import UserThreads

logger = logging.getLogger(__name__)

_NR_CLOSE, _NR_MUNMAP, _NR_RT_SIGTIMEDWAIT = 3, 11, 128
_SIGTRAP_BIT = 1 << (signal.SIGTRAP - 1)
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.1
_JOURNAL = f"{SCRATCH}/standstill"
#: CRIU overwrites up to this many bytes at the start of the first executable area to make its calls (compel/src/lib/infect.c).
_CODE_BYTES = 64
#: The name of the memory that holds CRIU's code in a task (`PARASITE_MEMFD_NAME` and others).
_CRIU_MEMORY = "/memfd:CRIUMFD"
#: In which functions of Linux a thread waits whose control group is frozen (of version 1 or 2), and one until its child of a vfork
#: executes a program.
_FROZEN = {"__refrigerator", "do_freezer_trap", "get_signal"}
_STARTING = {"wait_for_vfork_done", "kernel_clone", "_do_fork"}


class TaskRecord(msgspec.Struct, frozen=True):
    """The record of a stopped process before CRIU touched it."""

    pid: int
    start_time: int
    threads: list[RegistersRecord]
    #: The vector registers of the same threads; CRIU's code may change them.
    extended: list[bytes]
    descriptors: list[int]
    code_address: int
    code: bytes


class _Journal(msgspec.Struct):
    """A standstill in the form that is written to the tree's scratch tmpfs, for recovery after this process was killed."""

    user_stopped: set[int]
    records: list[TaskRecord]
    #: Whether its end waits for another process that holds a task.
    ending: bool = False


class Guest(Protocol):
    """Work that is done to a tree while it stands still. It raises nothing."""

    def ask(self, held: ThreadsHeld) -> None:
        """Use the held threads of a process, whose registers are recorded."""

    def begin(self, descriptors: Mapping[int, Sequence[int]]) -> None:
        """Begin when all processes are stopped; these are their descriptors, before CRIU opens others in them."""

    def end(self) -> None:
        """End before any task runs on."""


class Standstill:
    """One standstill of `tree`, from `begin()` to `end()`; call `repair()` if CRIU failed. Not thread-safe.

    Tasks that the user had stopped stay stopped. Meanwhile a journal lies on the tree's scratch tmpfs. If this process is killed,
    `found` recreates the standstill from it in another process.
    """

    def __init__(self, tree: Tree, guest: Guest | None = None) -> None:
        self._tree, self._guest = tree, guest
        self._records: list[TaskRecord] = []
        self._stopped: list[int] = []
        #: Host pids of processes that the user had stopped.
        self.user_stopped: set[int] = set()
        #: time.monotonic() when it began.
        self.began = 0.0
        #: Whether the tree goes on standing still after `end`.
        self._lasts = False

    @classmethod
    def of(cls, tree: Tree, guest: Guest, *, lasts: bool) -> Standstill:
        """Return a new standstill with a guest; with `lasts` that in which the tree is already, and in which it stays."""
        found = cls.found(tree, lasts=True) if lasts else None
        standstill = found or cls(tree)
        standstill._guest = guest
        return standstill

    @classmethod
    def found(cls, tree: Tree, *, lasts: bool = False) -> Standstill | None:
        """Return the standstill that another process, or an earlier step, had begun and not ended; None if there is none.

        `lasts`: `end` does nothing, so that the tree goes on standing still.
        """
        journal = _journal(tree)
        if journal is None:
            return None
        standstill = cls(tree)
        standstill._lasts = lasts
        standstill.user_stopped, standstill._records = journal.user_stopped, journal.records
        standstill._stopped = [pid for pid in pids(tree) if pid not in journal.user_stopped]
        return standstill

    @property
    def pids(self) -> list[int]:
        """Host pids of the processes that stand still; zombies are not among them."""
        return [record.pid for record in self._records]

    def begin(self) -> None:
        """Stop every process, and record all that CRIU might leave changed.

        Parents are stopped first, so that no shell sees a stopped child, and no process creates a child that is missed. Raises
        FreezeFailed when a process cannot be stopped; `end()` then lets the others run on.
        """
        self._records = []
        self._look()
        with ExitStack() as holds:
            held, waiting = list[ThreadsHeld](), [self._tree.keeper_pid]
            while waiting:
                pid = waiting.pop()
                held += self._stop(pid, holds)
                waiting += processes.children(pid)
                waiting = waiting or self._missed()
            self._write()  # what the guest does to threads can be undone from the journal
            for one in held:
                if self._guest is not None:
                    self._guest.ask(one)
        # Wait until all are stopped again: CRIU expects two stops of a stopped task (compel's `skip_sigstop`), and would see one
        # if it attached just before. It would then let the task run and wait for ten seconds.
        for record in self._records:
            wait_until(lambda pid=record.pid: all_stopped(pid), timeout=_STOP_SECONDS)  # type: ignore[misc]
        if self._guest is not None:
            self._guest.begin({record.pid: record.descriptors for record in self._records})

    def _missed(self) -> list[int]:
        """Return the processes that do not stand still: children of one that ended before it was stopped have another parent now.

        Raises FreezeFailed if there are always new ones.
        """
        recorded = set(self.pids)
        missed = [
            pid
            for pid in pids(self._tree)
            if pid not in recorded and processes.state(pid) not in (None, "Z", "X")
        ]
        if missed and time.monotonic() > self.began + _STOP_SECONDS:
            raise FreezeFailed(
                f"The kernel cannot be stopped: {processes.name(missed[0])} starts processes all the time.",
                hint="Wait until it is done, or end it, then try again.",
                details=f"processes {missed[:20]} were not stopped",
            )
        return missed

    def begin_with(self, held: UserThreads) -> None:
        """Stop the processes whose threads are held, and their ancestors, before all others.

        None of the threads executes an instruction in between. `begin` stops the others. Raises FreezeFailed as `begin` does.
        """
        if not held.pids:
            return
        self.began = held.began
        self._look(stopped={pid for pid in held.pids if held.was_stopped(pid)})
        first = {above for pid in held.pids for above in (pid, *processes.ancestors(pid))}
        waiting = [self._tree.keeper_pid]
        while waiting:
            pid = waiting.pop()
            if pid in held.pids and pid not in self.user_stopped:
                self._stopped.append(pid)
                held.stop(pid)
            elif pid in held.pids:
                held.release(pid)
            elif pid not in self.user_stopped:
                self._halt(pid)
            waiting += [child for child in processes.children(pid) if child in first]

    def _look(self, stopped: AbstractSet[int] = frozenset()) -> None:
        """Record the processes that the user has stopped: those already stopped, but not by this standstill, and `stopped`."""
        self.began = self.began or time.monotonic()
        found = {pid for pid in pids(self._tree) if processes.state(pid) == "T"}
        self.user_stopped |= (found | stopped) - set(self._stopped)
        self._write()

    def end(self) -> None:
        """Let every task run on, deepest first, except those that the user had stopped.

        The order matters: a shell that runs before its child would see the child stopped, report that, and no longer wait for it.
        Raises FreezeFailed if another process (a CRIU that Linux does not end) holds a task; a thread then lets it run on as soon
        as that process has ended.
        """
        if self._guest is not None:
            self._guest.end()
        if self._lasts:
            return
        held = self._let_run()
        if not held:
            return
        pid, tracer = held[0]
        with suppress(OSError):
            self._write(ending=True)
        threading.Thread(target=self._end_later, name="let-run", daemon=True).start()
        raise FreezeFailed(
            f"The kernel stands still: its process {processes.name(pid)} is held by {processes.name(tracer)} (process {tracer}),"
            " which waits for a device or a file system and cannot be ended.",
            hint="The kernel runs on as soon as that answers. Make it available again, or unmount it by force.",
            details=", ".join(
                f"process {pid} is traced by process {tracer}" for pid, tracer in held
            ),
        )

    def _let_run(self) -> list[tuple[int, int]]:
        """Send SIGCONT to the stopped processes; return those that another process holds, and that process."""
        for pid in reversed(self._stopped):
            with suppress(
                OSError
            ):  # it has ended, or no file can be opened: the next one must run in any case
                os.kill(pid, signal.SIGCONT)
                wait_until(lambda pid=pid: processes.state(pid) != "T", timeout=1.0)  # type: ignore[misc]
        held: list[tuple[int, int]] = []
        with suppress(OSError):
            held += [(pid, tracer) for pid in self._stopped if (tracer := _holder(pid))]
        if not held:
            self._stopped.clear()
            with suppress(OSError):  # the tree, and its scratch with it, may be gone
                self._tree.inside(_JOURNAL).unlink(missing_ok=True)
        return held

    def _end_later(self) -> None:
        """Wait until no other process holds a task, then repair all tasks and let them run on."""
        holders = set[int]()
        while holding := set(map(_holder, self._stopped)) - {0}:
            holders |= holding
            time.sleep(_LOOK_SECONDS)
        for pid in holders:
            with suppress(ChildProcessError):  # ours if its parent was killed before it
                os.waitpid(pid, 0)
        self.repair()
        self._let_run()
        logger.warning("the processes of tree %d run on", self._tree.init_pid)

    def _write(self, *, ending: bool = False) -> None:
        encoded = msgspec.msgpack.encode(_Journal(self.user_stopped, self._records, ending))
        path = self._tree.inside(_JOURNAL)
        path.with_suffix(".new").write_bytes(encoded)
        path.with_suffix(".new").replace(path)

    def repair(self) -> None:
        """Undo the changes that a killed or failed CRIU left in the tasks, which must still be stopped.

        If CRIU has cleaned up itself, nothing is changed.
        """
        there = [r for r in self._records if processes.start_time(r.pid) == r.start_time]
        wait_until(lambda: all(all_stopped(r.pid) for r in there), timeout=_STOP_SECONDS)
        for record in there:
            try:
                _repair(record)
            except (OSError, CheckpointError):
                logger.exception("process %d could not be repaired after CRIU's end", record.pid)

    def _stop(self, pid: int, holds: ExitStack) -> list[ThreadsHeld]:
        """Stop a process and record it; return the hold of its threads, until `holds` ends it. There is none if it has ended."""
        state = processes.state(pid)
        if state in (None, "Z", "X"):
            return []
        if tracer := _tracer(pid):
            raise FreezeFailed(
                f"A process of the kernel is being traced by a debugger or strace: {processes.name(pid)}, by {processes.name(tracer)}.",
                hint="Detach it and try again.",
                details=f"process {pid} ({processes.name(pid)}) is traced by process {tracer}",
            )
        if pid not in self.user_stopped:
            self._halt(pid)
        held = holds.enter_context(ThreadsHeld(pid))
        try:
            self._records.append(_record(held))
        except ProcessLookupError:
            return []
        return [held]

    def _halt(self, pid: int) -> None:
        if pid not in self._stopped:
            self._stopped.append(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        if not wait_until(lambda: all_stopped(pid), timeout=_STOP_SECONDS):
            raise FreezeFailed(
                f"A process of the kernel cannot be stopped: {_obstacle_to_stop(pid)}.",
                hint="Try again when it runs again.",
                details=f"process {pid} ({processes.name(pid)})",
            )


def refuse_unended(tree: Tree) -> None:
    """Raise FreezeFailed if the end of an earlier standstill waits for another process."""
    journal = _journal(tree)
    if journal is not None and journal.ending:
        raise FreezeFailed(
            "The kernel still stands still after an earlier save: CRIU waits for a device or a file system and cannot be ended.",
            hint="The kernel runs on as soon as that answers. Make it available again, or unmount it by force.",
            details=f"the journal of an unended standstill is in {tree.inside(_JOURNAL)}",
        )


def _journal(tree: Tree) -> _Journal | None:
    try:
        return decoding.from_msgpack(tree.inside(_JOURNAL).read_bytes(), _Journal)
    except (OSError, msgspec.DecodeError):
        return None


def _tracer(pid: int) -> int:
    """Return the thread that traces a thread; 0 if none does."""
    return int(processes.status(pid).get("TracerPid", "0"))


def _holder(pid: int) -> int:
    """Return the thread that keeps one of a process in a stop by tracing it; 0 if none does. This process's own do not count."""
    ours = {0, *processes.threads(os.getpid())}
    tracers = (_tracer(tid) for tid in processes.threads(pid) if processes.state(tid) == "t")
    return next((tracer for tracer in tracers if tracer not in ours), 0)


def _obstacle_to_stop(pid: int) -> str:
    """Return in words what a process waits for that does not stop."""
    places = {place for tid in processes.threads(pid) for place in _waits_in(tid)}
    if places & _FROZEN:
        return "its control group is frozen (docker pause, a batch system)"
    if places & _STARTING:
        return f"{processes.name(pid)} is starting a program (vfork), and that has not begun"
    return "it waits for a device or a network file system"


def _waits_in(tid: int) -> list[str]:
    """Return the function of Linux in which a thread waits; nothing where that may not be read."""
    try:
        return [Path(f"/proc/{tid}/wchan").read_text()]
    except OSError:
        return []


def all_stopped(pid: int) -> bool:
    """Return whether no thread of a process runs any more; also True if the process has ended."""
    return all(processes.state(tid) in ("T", "Z", "X", None) for tid in processes.threads(pid))


def _record(held: ThreadsHeld) -> TaskRecord:
    if not held.tids:
        raise ProcessLookupError(errno.ESRCH, f"process {held.pid} has ended")
    for tracee in held.tracees():
        restart_endless_wait(tracee)
    # The code that CRIU overwrites while it makes calls there.
    address = code_address(held.pid)
    code = held.tracee().read(address, _CODE_BYTES) if address else b""
    return TaskRecord(
        held.pid,
        processes.start_time(held.pid) or 0,
        [tracee.record() for tracee in held.tracees()],
        [ptrace.extended_registers(tid) for tid in held.tids],
        sorted(processes.descriptors(held.pid)),
        address,
        code,
    )


def _repair(record: TaskRecord) -> None:
    with ThreadsHeld(record.pid) as held:
        tracees = {tracee.tid: tracee for tracee in held.tracees()}
        if not tracees:
            return
        tracee = held.tracee()
        areas = [area for area in processes.maps(record.pid) if area.path.startswith(_CRIU_MEMORY)]
        foreign = [range(area.start, area.end) for area in areas]
        foreign.append(range(record.code_address, record.code_address + len(record.code)))
        went_on = [
            not _put_back(tracees[thread.tid], thread, extended, foreign)
            for thread, extended in zip(record.threads, record.extended, strict=True)
            if thread.tid in tracees
        ]
        if record.code and tracee.read(record.code_address, len(record.code)) != record.code:
            tracee.write(record.code_address, record.code)
        for area in areas:
            tracee.syscall(_NR_MUNMAP, area.start, area.end - area.start)
        # If CRIU's code ended by itself, it has closed its socket, and new descriptors are the program's own.
        if not any(went_on):
            for descriptor in set(processes.descriptors(record.pid)) - set(record.descriptors):
                tracee.syscall(_NR_CLOSE, descriptor)
    if areas:
        logger.warning("process %d was cleared of CRIU's code", record.pid)


def _put_back(
    tracee: Tracee, record: RegistersRecord, extended: bytes, foreign: list[range]
) -> bool:
    """Restore a thread, even from an injected call of ours (a ghost's); return False if it already went on by itself.

    CRIU's code in the task returns to the program when its socket closes. A dying CRIU closes it shortly before its tracees
    are detached and stop again (kernel/exit.c: `exit_files` comes before `exit_notify`).
    """
    here = tracee.record()
    inside = any(here.instruction_pointer in area for area in foreign)
    if here.registers != record.registers and not inside and not here.in_injection:
        return False
    if tracee.put_back(record):
        ptrace.set_extended_registers(tracee.tid, extended)
        _take_trap(tracee)
    return True


def _take_trap(tracee: Tracee) -> None:
    """Consume a pending SIGTRAP of CRIU's breakpoint, which would kill the program if delivered."""
    pending = processes.status(tracee.tid).get("SigPnd", "0")
    if int(pending, 16) & _SIGTRAP_BIT:
        # sigtimedwait for SIGTRAP alone, with a timeout of zero, consumes a pending signal and does not wait.
        with (
            tracee.borrowed(struct.pack("<QQQ", _SIGTRAP_BIT, 0, 0)) as address,
            suppress(BlockingIOError),
        ):
            tracee.syscall(_NR_RT_SIGTIMEDWAIT, address, 0, address + 8, 8)
