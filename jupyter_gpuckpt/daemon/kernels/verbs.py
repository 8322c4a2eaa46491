"""The verbs that clients request: launch, branch, save, suspend, resume, park, signal, kill.

`states.answer` alone decides what a verb does in a state; this module carries the answer out. It runs on the event loop's thread.
Only the engine's part (`jobs.py`) runs in a thread of its own, the same one from its first to its last step: ptrace ties a tracee to
the thread that attached to it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...engine.tree import outside_signals
from ...engine.tree.tree import Tree
from ...errors import (
    ConfigurationError,
    KernelBusy,
    KernelLost,
    KernelNotFound,
    KernelStateConflict,
    OperationCancelled,
    record_of,
)
from ...host import processes
from ...linux.ports import moved_connection
from ...wire.ids import is_id
from ...wire.manifest_records import LaunchSpec
from ...wire.place import Place
from ...wire.protocol import (
    BranchRequest,
    CopyRequest,
    Owner,
    ParkRequest,
    Result,
    ResumeRequest,
    SaveRequest,
)
from ...wire.states import GPU_AWAY, Answer, KernelState, Verb, answer
from .. import late_imports
from ..repeating import Tasks
from . import jobs, stopped_trees
from .jobs import Job
from .kernel_records import KernelRecord, Records
from .kernels import Kernels, ManagedKernel
from .machine import Machine
from .operations import Operations, RunningOperation
from .ready_copies import ReadyCopies
from .ready_trees import ReadyTree
from .recovered import as_before
from .whole_files import write_file

#: The number of concurrent operations; more wait for a thread. Each uses many threads of its own.
OPERATIONS_AT_ONCE = 4
#: How long the end of an operation waits until the kernel's record is on the disk. The record is in memory in any case.
_RECORD_SECONDS = 5.0
#: How soon a waiting operation notices that it was canceled, in seconds.
_LOOK_AGAIN = 0.2
#: The verbs that are allowed for a kernel that its user has shut down.
_OF_ENDED = {Verb.END, Verb.KILL}
#: A raw wait status (man 2 wait): ended by SIGKILL.
_KILLED = b"9"
_MAX_PORT, _MAX_UMASK = 65535, 0o777
#: MAX_ARG_STRLEN of Linux (include/uapi/linux/binfmts.h), its end included.
_MAX_STRING_BYTES = 128 << 10
#: The bytes of the pointer to each string, and those reserved for init's own arguments.
_POINTER_BYTES, _ROOM_BYTES = 8, 64 << 10

_log = logging.getLogger(__name__)


class _Started(NamedTuple):
    """The process tree of a kernel that was just started, and the ports on which a copy listens, by those of its snapshot."""

    tree: Tree
    moved_ports: dict[int, int]


class Verbs:
    """The entry points of the verbs, for all kernels. `on_end`: called at the end of each operation."""

    def __init__(
        self,
        place: Place,
        kernels: Kernels,
        operations: Operations,
        machine: Machine,
        records: Records,
        leases: jobs.Leases,
        ready: ReadyCopies,
        on_end: Callable[[Job, RunningOperation], None],
    ) -> None:
        self._leases, self._ready, self._on_end = leases, ready, on_end
        self._place, self._kernels, self._operations = place, kernels, operations
        self._machine, self._records = machine, records
        self._threads = ThreadPoolExecutor(OPERATIONS_AT_ONCE, thread_name_prefix="operation")
        self._tasks = Tasks()

    async def launch(self, owner: Owner, spec: LaunchSpec) -> ManagedKernel:
        """Start a kernel; return when its process exists.

        A lost kernel of the same id is replaced: that is a restart. Raises KernelStateConflict if the id is taken otherwise,
        and the error that prevents the engine from working here; then no kernel is left.
        """

        async def start(exit_path: Path) -> _Started:
            tree = await asyncio.to_thread(self._machine.launch, spec, exit_path, owner)
            return _Started(tree, {})

        return await self._start(owner, spec, start)

    async def copy(self, owner: Owner, request: CopyRequest) -> ManagedKernel:
        """Start a kernel as a copy of the process in a snapshot; return when it runs. After an error nothing is left of it."""
        manifest = await asyncio.to_thread(
            self._machine.copied_manifest, request.snapshot_id, request.store
        )
        made = manifest.launch
        if len(request.spec.own_ports) != len(made.own_ports) or made.own_sockets.names:
            raise ConfigurationError(
                f"A copy of snapshot {request.snapshot_id} would not listen on the ports of the new kernel."
            )
        # What the start of the process has decided.
        spec = msgspec.structs.replace(
            request.spec,
            private_shm=made.private_shm,
            io_uring=made.io_uring,
            gpu_copy=made.gpu_copy,
        )

        if (ready := self._ready.take(request)) is not None:
            return await self._begin_ready(owner, spec, ready)

        async def start(exit_path: Path) -> _Started:
            found = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._machine.copy, request, manifest, spec, exit_path, owner
            )
            own = zip(made.own_ports, spec.own_ports, strict=True)
            return _Started(found.tree, dict(own) | found.moved_ports)

        return await self._start(owner, spec, start)

    async def _begin_ready(self, owner: Owner, spec: LaunchSpec, ready: ReadyTree) -> ManagedKernel:
        """Let a ready copy be the new kernel of `spec`, on its own ports."""
        jupyter = dict(spec.jupyter)
        if connection := jupyter.get("connection_info"):
            jupyter["connection_info"] = moved_connection(connection, spec.own_ports, ready.ports)
        spec = msgspec.structs.replace(spec, own_ports=ready.ports, jupyter=jupyter)

        def begin() -> None:
            self._machine.install_secrets(ready.tree, spec)
            Path(ready.log_path).replace(spec.log_path)
            stopped_trees.go_on(ready.tree)

        async def start(exit_path: Path) -> _Started:
            await asyncio.to_thread(begin)
            return _Started(ready.tree, ready.moved_ports)

        try:
            return await self._start(owner, spec, start, Path(ready.tree.exit_path))
        except BaseException:
            await asyncio.to_thread(self._machine.kill, ready.tree)
            raise

    async def _start(
        self,
        owner: Owner,
        spec: LaunchSpec,
        start: Callable[[Path], Awaitable[_Started]],
        exit_path: Path | None = None,
    ) -> ManagedKernel:
        """Add a kernel whose process `start` starts, which is told the path of its exit file. `exit_path`: of a process that exists."""
        await asyncio.to_thread(_check, spec)
        await asyncio.to_thread(self._machine.require_engine)
        await asyncio.to_thread(late_imports.load)
        self._kernels.require_no_other_tree(spec.kernel_id)
        former = self._kernels.find(spec.kernel_id)
        if former and (former.doomed or former.state is not KernelState.LOST):
            raise KernelStateConflict(
                f"There is a kernel {spec.kernel_id} already; it is {former.state}.",
                hint="Kill or resume it, or choose another id.",
            )
        exit_path = exit_path or self._records.new_exit_path(spec.kernel_id)
        written = spec.written_down()
        record = KernelRecord(
            written, owner, self._place, jupyter=spec.jupyter, exit_path=str(exit_path)
        )
        kernel, tree = self._kernels.add(record), None
        try:
            await self._kernels.update(kernel)
            tree, moved_ports = await start(exit_path)
            await self._kernels.move(
                kernel, KernelState.RUNNING, tree=tree, moved_ports=moved_ports
            )
        except BaseException:
            if tree is not None:  # its record found no room: the next daemon would not know it
                kernel.doomed = True
                await asyncio.to_thread(self._machine.kill, tree)
            self._kernels.forget(kernel)
            raise
        finally:
            kernel.launched.set()
        return kernel

    async def branch(self, owner: Owner, request: BranchRequest) -> ManagedKernel:
        """Create a new suspended kernel from a snapshot of another one; on return its record is on disk.

        Raises SnapshotNotFound, and ConfigurationError if the number of ports differs from the snapshot's.
        """
        check_kernel_id(request.kernel_id)
        _check_ports(request.own_ports)
        _check_folder(request.sockets_folder)
        manifest = await asyncio.to_thread(self._machine.store.manifest, request.snapshot_id)
        if self._kernels.find(request.kernel_id):
            raise KernelStateConflict(f"There is a kernel {request.kernel_id} already.")
        launch = manifest.launch
        if len(request.own_ports) != len(launch.own_ports):
            raise ConfigurationError(
                f"The kernel of snapshot {request.snapshot_id} listens on {len(launch.own_ports)} ports of its own,"
                f" not on {len(request.own_ports)}."
            )
        spec = msgspec.structs.replace(
            launch,
            kernel_id=request.kernel_id,
            own_ports=request.own_ports,
            own_sockets=msgspec.structs.replace(launch.own_sockets, folder=request.sockets_folder),
            jupyter=request.jupyter,
        )
        record = KernelRecord(
            spec,
            owner,
            self._place,
            KernelState.SUSPENDED,
            name=request.name or manifest.info.name,
            jupyter=request.jupyter,
            snapshot_id=request.snapshot_id,
            number=manifest.info.number,
            # A forgotten kernel that is resumed under its own id has no parent.
            parent_snapshot_id=""
            if manifest.info.kernel_id == request.kernel_id
            else request.snapshot_id,
            sizes=manifest.info.sizes,
            saved_seconds=manifest.info.seconds,
            own_folder=self._machine.folders.of_branch(
                manifest, request.kernel_id, request.name or manifest.info.name
            ),
        )
        kernel = self._kernels.add(record)
        kernel.launched.set()
        try:
            await self._kernels.update(kernel)
        except BaseException:
            self._kernels.forget(kernel)
            raise
        return kernel

    def save(self, kernel_id: str, request: SaveRequest) -> RunningOperation:
        """Start taking a snapshot; the kernel runs on."""
        kernel = self._kernels.get(kernel_id)
        return self._begin(kernel, self._freeze(kernel, request, stop=False))

    def suspend(self, kernel_id: str, request: SaveRequest) -> RunningOperation:
        """Start taking a snapshot, after which the process ends; a running save is canceled for it."""
        kernel = self._kernels.get(kernel_id)
        return self._begin(kernel, self._freeze(kernel, request, stop=True))

    def resume(self, kernel_id: str, request: ResumeRequest) -> RunningOperation:
        """Start resuming a kernel, or unparking a parked one. After a failure it is suspended, parked or lost as before."""
        kernel = self._kernels.get(kernel_id)
        if kernel.state in GPU_AWAY:
            return self._begin(kernel, jobs.unpark(self._machine, kernel.record))
        self._kernels.require_no_other_tree(kernel_id)
        exit_path = self._records.new_exit_path(kernel_id)
        job = jobs.thaw(self._machine, kernel.record, request, exit_path, self._leases)
        return self._begin(kernel, job)

    def park(self, kernel_id: str, request: ParkRequest) -> RunningOperation:
        """Start moving a kernel's GPU memory into RAM; its process runs on, and its CUDA calls wait."""
        kernel = self._kernels.get(kernel_id)
        return self._begin(kernel, jobs.park(self._machine, kernel.record, request))

    async def signal(self, kernel_id: str, signum: int) -> bool:
        """Send a signal to the kernel's process group; return False if it will be delivered after the running operation."""
        if signum not in signal.valid_signals():
            raise ConfigurationError(f"There is no signal {signum}.")
        kernel = self._kernels.get(kernel_id)
        decision = self._decide(kernel, Verb.INTERRUPT)
        if decision is Answer.WAIT:
            self._tasks.start(self._signal_later(kernel, signum))
        elif decision is Answer.DO:
            await kernel.launched.wait()
            _send(kernel, signum)
        return decision is not Answer.WAIT

    async def kill(self, kernel_id: str, by_user: str = "") -> None:
        """Kill a kernel and forget it; its snapshots stay in the store. A running operation is canceled first.

        `by_user`, if it is not empty: its owner is not to start it again.

        Its exit file then records SIGKILL, so that its provisioner sees an ordinary end.
        """
        kernel = self._kernels.get(kernel_id)
        await self.when_free(kernel, Verb.KILL)
        if kernel.doomed or self._kernels.find(kernel_id) is not kernel:
            return  # it ended meanwhile, or another request is killing it
        kernel.doomed = True
        await asyncio.to_thread(self._kill, kernel.record)
        _log.info("killed kernel %s", kernel_id)
        self._kernels.forget(kernel, by_user=bool(by_user))

    async def when_free(self, kernel: ManagedKernel, verb: Verb) -> None:
        """Wait until `verb` may be done to the kernel; cancel the running operation if the table says so."""
        await kernel.launched.wait()
        while (decision := self._decide(kernel, verb)) is not Answer.DO:
            await self._give_way(kernel, decision)

    async def close(self) -> None:
        """End the ready copies and shut down the thread pool; no operation runs when the daemon exits."""
        await self._ready.close()
        await asyncio.to_thread(self._threads.shutdown)

    def _freeze(self, kernel: ManagedKernel, request: SaveRequest, *, stop: bool) -> Job:
        return jobs.freeze(self._machine, kernel.record, request, self._leases, stop=stop)

    def _decide(self, kernel: ManagedKernel, verb: Verb) -> Answer:
        """Return the table's answer, or raise its refusal."""
        if kernel.record.ends and verb not in _OF_ENDED:
            raise KernelStateConflict(
                "The kernel was shut down.", hint="Undo that first, while there is time."
            )
        decision = answer(kernel.state, verb)
        if decision is Answer.BUSY:
            raise KernelBusy(
                f"The kernel is {kernel.state} already.", hint="Wait for that operation to end."
            )
        if decision is Answer.CONFLICT:
            raise KernelStateConflict(f"A kernel that is {kernel.state} cannot {verb}.")
        return decision

    def _decide_job(self, kernel: ManagedKernel, job: Job) -> Answer:
        """Return the table's answer for a job. An explicit request never joins an automatic job, which may be refused; it waits."""
        decision = self._decide(kernel, job.verb)
        automatic = kernel.in_flight is not None and kernel.in_flight.is_automatic
        joins = decision is Answer.NOTHING and automatic and not job.is_automatic
        return Answer.WAIT if joins else decision

    def _begin(self, kernel: ManagedKernel, job: Job) -> RunningOperation:
        """Start an operation, or return the running one if it does the same. Raises a refusal; later ones are its error."""
        decision = self._decide_job(kernel, job)
        if decision is Answer.NOTHING and kernel.in_flight and kernel.in_flight.kind is job.kind:
            return kernel.in_flight
        operation = self._operations.add(job.kind, kernel, is_automatic=job.is_automatic)
        if decision is Answer.NOTHING:
            operation.succeed(Result(kernel.record.snapshot_id, 0.0))
        else:
            # The state is entered before any await, so that the next request finds the kernel in its new state.
            entered = self._enter(kernel, job, operation) if decision is Answer.DO else None
            self._tasks.start(self._carry_out(kernel, job, operation, entered))
        return operation

    def _enter(
        self, kernel: ManagedKernel, job: Job, operation: RunningOperation
    ) -> Awaitable[None]:
        kernel.operation = operation
        return self._kernels.move(kernel, job.state, **job.entering)

    async def _carry_out(
        self,
        kernel: ManagedKernel,
        job: Job,
        operation: RunningOperation,
        entered: Awaitable[None] | None,
    ) -> None:
        try:
            entered = entered or await self._enter_when_free(kernel, job, operation)
            if entered is None:
                operation.succeed(Result(kernel.record.snapshot_id, 0.0))
                return
            await entered  # the intent is on disk before the first step
            before = kernel.record.error
            loop = asyncio.get_running_loop()
            outcome = await loop.run_in_executor(self._threads, job.work, operation)
        except Exception as error:  # any exception is the operation's error and goes to its client
            await self._failed(kernel, job, operation, error)
        else:
            changes = dict(outcome.changes)
            if kernel.record.error is not before:
                # Another machine took over the session during the operation: the user must see this although the operation succeeded.
                changes.pop("error", None)
            written = asyncio.ensure_future(self._kernels.move(kernel, outcome.state, **changes))
            # Who hears of the success relies on it also if this daemon is killed then. A disk that does not answer delays nobody for long.
            await asyncio.wait({written}, timeout=_RECORD_SECONDS)
            if outcome.after and written.done() and written.exception() is None:
                await loop.run_in_executor(self._threads, outcome.after)
            operation.succeed(outcome.result)
        finally:
            self._on_end(job, operation)

    async def _enter_when_free(
        self, kernel: ManagedKernel, job: Job, operation: RunningOperation
    ) -> Awaitable[None] | None:
        """Wait until the verb may be done, then enter its state; return None if nothing remains to be done."""
        while True:
            operation.progress.check()
            if self._kernels.get(kernel.kernel_id) is not kernel:
                raise KernelNotFound("The kernel was replaced by a new one of the same id.")
            decision = self._decide_job(kernel, job)
            if decision is Answer.DO:
                return self._enter(kernel, job, operation)
            if decision is Answer.NOTHING:
                return None
            await self._give_way(kernel, decision)

    async def _give_way(self, kernel: ManagedKernel, decision: Answer) -> None:
        """Wait for or cancel the running operation; return after a moment in any case, so that the caller checks again."""
        if kernel.in_flight is None:
            raise KernelStateConflict(f"The kernel is {kernel.state}, but nothing is in flight.")
        if decision is Answer.PREEMPT:
            kernel.in_flight.cancel()
        await kernel.in_flight.until_ended(_LOOK_AGAIN)

    async def _failed(
        self, kernel: ManagedKernel, job: Job, operation: RunningOperation, error: Exception
    ) -> None:
        """Return the kernel to its previous state, unless it is gone, and end the operation with its error."""
        record, why = kernel.record, record_of(error)
        if kernel.operation is operation:  # else the operation never began
            changes = {} if isinstance(error, OperationCancelled) else {"error": why}
            if isinstance(error, KernelLost) and record.tree:
                # Processes of the lost kernel that may be left only hold memory.
                await asyncio.to_thread(self._machine.kill, record.tree)
            if job.state is KernelState.RESUMING:
                self._kernels.move(kernel, record.previous, **changes)
            elif not await self._kernels.reap_if_ended(kernel, why):
                self._kernels.move(kernel, as_before(record), **changes)
        operation.fail(error)

    async def _signal_later(self, kernel: ManagedKernel, signum: int) -> None:
        while answer(kernel.state, Verb.INTERRUPT) is Answer.WAIT:
            if kernel.in_flight:
                await kernel.in_flight.until_ended()
            elif self._kernels.find(kernel.kernel_id) is kernel:
                await asyncio.sleep(_LOOK_AGAIN)  # parked
            else:
                return
        if answer(kernel.state, Verb.INTERRUPT) is Answer.DO:
            with suppress(KernelNotFound):
                _send(kernel, signum)

    def _kill(self, record: KernelRecord) -> None:
        if record.tree:
            self._machine.kill(record.tree)
        # A branch has no process before its first resume.
        if record.exit_path and not (path := Path(record.exit_path)).exists():
            write_file(path, _KILLED)


def _send(kernel: ManagedKernel, signum: int) -> None:
    """Send a signal to the process group, as jupyter_client does, so that a cell's foreground processes get it, too."""
    tree = kernel.record.tree
    group = processes.process_group(tree.kernel_pid) if tree else None
    if not group or group == os.getpgrp():
        raise KernelNotFound(f"Kernel {kernel.kernel_id} has just ended.")
    try:
        outside_signals.send_to_group(group, signum)
    except ProcessLookupError as error:
        raise KernelNotFound(f"Kernel {kernel.kernel_id} has just ended.") from error


def _check(spec: LaunchSpec) -> None:
    """Raise ConfigurationError for a launch that cannot work: a system error in the middle of it would be unclear. It reads files."""
    check_kernel_id(spec.kernel_id)
    _check_ports(spec.own_ports)
    _check_folder(spec.own_sockets.folder)
    if problem := next(_problems(spec), ""):
        raise ConfigurationError(
            f"The kernel cannot be started: {problem}.", hint="Look at its kernelspec."
        )


def _check_ports(ports: list[int]) -> None:
    """Raise ConfigurationError for numbers that are not ports."""
    if any(not 0 < port <= _MAX_PORT for port in ports):
        raise ConfigurationError(
            "One of the kernel's ports is not a port number.",
            hint=f"Ports are numbers up to {_MAX_PORT}.",
        )


def _check_folder(folder: str) -> None:
    """Raise ConfigurationError for a text that is not the path of a folder for sockets; an empty one means that there is none."""
    if folder and (not folder.startswith("/") or ".." in folder.split("/") or "\0" in folder):
        raise ConfigurationError(
            "The folder of the kernel's own sockets is no absolute path.",
            hint="It begins with / and has no `..`.",
        )


def _problems(spec: LaunchSpec) -> Iterator[str]:
    """Yield the problems of a launch as texts, without values of the environment, which are secret."""
    if not spec.argv or not spec.argv[0]:
        yield "it has no program"
    settings = [f"{name}={value}" for name, value in spec.env.items()]
    strings = [os.fsencode(string) for string in (*spec.argv, *settings)]
    if any(b"\0" in string for string in strings) or "\0" in spec.cwd + spec.log_path:
        yield "it contains a zero byte"
    if any(not name or "=" in name for name in spec.env):
        yield "a variable of its environment has no name, or one with an equals sign"
    length = sum(len(string) + 1 + _POINTER_BYTES for string in strings) + _ROOM_BYTES
    if length > os.sysconf("SC_ARG_MAX") or max(map(len, strings)) >= _MAX_STRING_BYTES:
        yield "its command and environment are longer than the system allows"
    if not 0 <= spec.umask <= _MAX_UMASK:
        yield "its umask is invalid"
    if not Path(spec.cwd).is_dir():
        yield f"there is no folder {spec.cwd}"
    if not Path(spec.log_path).parent.is_dir() or Path(spec.log_path).is_dir():
        yield f"nothing can be written to {spec.log_path}"


def check_kernel_id(kernel_id: str) -> None:
    """Raise ConfigurationError for an id that cannot be the name of a directory."""
    if not is_id(kernel_id):
        raise ConfigurationError(
            f"Not a usable kernel id: {kernel_id!r}",
            hint="Use at most 128 letters, digits, '_', '-' and '.'; a UUID is best.",
        )
