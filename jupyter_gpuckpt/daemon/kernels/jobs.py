"""The jobs of the operations: the work of each in its thread, and the changes of the kernel's record when it succeeds."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ...errors import KernelLost
from ...images import worker_processes
from ...wire.manifest_records import SaveOptions, Sizes
from ...wire.protocol import OperationKind, ParkRequest, Result, ResumeRequest, SaveRequest
from ...wire.snapshot_order import Making, next_number
from ...wire.snapshot_records import RetentionPolicy
from ...wire.states import KernelState, Verb
from .kernel_records import KernelRecord
from .machine import Machine
from .operations import RunningOperation
from .recovered import as_before
from .working_folders import new_restore


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a success: the next state, changed fields of the record, and the client's result."""

    state: KernelState
    changes: dict[str, Any]
    result: Result
    #: What is done in a thread when the changed record is on the disk.
    after: Callable[[], None] | None = None


class Job(msgspec.Struct, frozen=True):
    """A description of an operation, which `verbs.py` carries out.

    `state`: the kernel's while it runs; `entering`: fields of the record that change before it; `work` runs in a thread and may
    raise any of the engine's errors. `retention`: the policy to apply after it has made a snapshot.
    """

    verb: Verb
    kind: OperationKind
    state: KernelState
    work: Callable[[RunningOperation], Outcome]
    entering: dict[str, Any] = {}
    retention: RetentionPolicy | None = None
    #: Whether no user requested it; then it is refused where it would disturb a user's work.
    is_automatic: bool = False


class Leases(Protocol):
    """The provider of the leases that operations need (`leases.DaemonLeases`)."""

    def require(self, kernel_id: str, snapshot_id: str, *, take_over: bool) -> list[str]:
        """Get the leases of the kernel's remote sessions; return warnings. Raises SessionHeld."""

    def resumed(self, kernel_id: str) -> None:
        """Note that the kernel runs, so that its leases can be released as soon as it does not."""

    def highest_number(self, kernel_id: str) -> int:
        """Return the highest number of a kernel's snapshots that its remote sessions had when their leases were granted; never raises."""


def freeze(
    machine: Machine, record: KernelRecord, request: SaveRequest, leases: Leases, *, stop: bool
) -> Job:
    """Return the job of a save, or with `stop` of a suspend. Fields that `request` leaves out keep the kernel's values."""
    snapshot_id = uuid.uuid4().hex

    def work(operation: RunningOperation) -> Outcome:
        was_parked = record.previous is KernelState.PARKED
        name = request.name or record.name
        jupyter = record.jupyter if request.jupyter is None else request.jupyter
        if record.tree is None:
            raise KernelLost("The kernel has no process.")
        began = worker_processes.processor_seconds()
        saved = machine.save(
            record.tree,
            msgspec.structs.replace(record.spec, jupyter=jupyter),
            _options(record, request, stop=stop, name=name, parked=was_parked),
            Making(snapshot_id, max(record.number, leases.highest_number(record.kernel_id))),
            operation.progress,
        )
        info = saved.manifest.info
        changes = {
            "name": name,
            "snapshot_id": info.snapshot_id,
            "number": info.number,
            "sizes": info.sizes,
            "saved_seconds": info.seconds,
            "cause": request.cause,
            "error": None,
            "changed_at": 0.0,
            "listening": saved.listening,
        }
        return Outcome(
            KernelState.SUSPENDED if stop else as_before(record),
            changes | {"tree": None} if stop else changes,
            Result(
                info.snapshot_id,
                operation.progress.record().seconds,
                info.sizes,
                info.frozen_seconds,
                dict(operation.progress.seconds_by_stage),
                list(saved.warnings),
                notebook_modified=saved.manifest.notebook_modified,
                # Workers may have been lost meanwhile, and their times with them.
                processor_seconds=max(0.0, worker_processes.processor_seconds() - began),
            ),
        )

    what = (
        (Verb.SUSPEND, OperationKind.SUSPEND, KernelState.SUSPENDING)
        if stop
        else (Verb.SAVE, OperationKind.SAVE, KernelState.SAVING)
    )
    is_automatic = request.cause.spares_connections
    # The description is set at the start: a server that starts during the operation needs it to list the kernel.
    entering: dict[str, Any] = {} if request.jupyter is None else {"jupyter": request.jupyter}
    # If this daemon dies, the next one looks for exactly this snapshot.
    entering["making"] = snapshot_id
    return Job(*what, work, entering, request.retention, is_automatic)


def _options(
    record: KernelRecord, request: SaveRequest, *, stop: bool, name: str, parked: bool
) -> SaveOptions:
    """Return the options of a save: those of the request, and where the kernel comes from. The files of a branch's own folder are saved."""
    options = request.options(stop=stop, name=name, parked=parked)
    has_own = bool(record.own_folder)
    return msgspec.structs.replace(
        options,
        has_files=options.has_files or has_own,
        parent_snapshot_id=record.parent_snapshot_id,
        has_own_folder=has_own,
    )


def park(machine: Machine, record: KernelRecord, request: ParkRequest) -> Job:
    """Return the job that moves a kernel's GPU memory into RAM; if it is parked already, what is left of it on the GPU."""

    def work(operation: RunningOperation) -> Outcome:
        if record.tree is None:
            raise KernelLost("The kernel has no process.")
        is_parked = record.previous is KernelState.PARKED
        moved = machine.park(record.tree, operation.progress, request, is_parked=is_parked)
        result = _moved(record, operation, Sizes(gpu_bytes=moved))
        return Outcome(KernelState.PARKED, {"error": None}, result)

    return Job(Verb.PARK, OperationKind.PARK, KernelState.PARKING, work)


def unpark(machine: Machine, record: KernelRecord) -> Job:
    """Return the job that moves a kernel's GPU memory back to the GPU."""

    def work(operation: RunningOperation) -> Outcome:
        if record.tree is None:
            raise KernelLost("The kernel has no process.")
        machine.unpark(record.tree, operation.progress)
        return Outcome(KernelState.RUNNING, {"error": None}, _moved(record, operation, Sizes()))

    return Job(Verb.RESUME, OperationKind.UNPARK, KernelState.UNPARKING, work)


def _moved(record: KernelRecord, operation: RunningOperation, sizes: Sizes) -> Result:
    progress = operation.progress
    spent = dict(progress.seconds_by_stage)
    return Result(record.snapshot_id, progress.record().seconds, sizes, seconds_by_stage=spent)


def thaw(
    machine: Machine,
    record: KernelRecord,
    request: ResumeRequest,
    exit_path: Path,
    leases: Leases,
) -> Job:
    """Return the job of a resume from the snapshot that `request` names, or from the latest one."""
    # A kernel that never had a process was branched from another's snapshot.
    is_branch = not record.exit_path

    def work(operation: RunningOperation) -> Outcome:
        try:
            return resumed(operation)
        except BaseException:
            machine.kill_strays(str(exit_path))  # nobody would know a tree that runs all the same
            raise

    def resumed(operation: RunningOperation) -> Outcome:
        manifest = machine.manifest(record, request.snapshot_id or record.snapshot_id)
        warnings = leases.require(
            record.kernel_id, manifest.info.snapshot_id, take_over=request.take_over
        )
        info = manifest.info
        chosen = info.snapshot_id
        is_other = info.kernel_id != record.kernel_id or chosen != record.snapshot_id
        numbers = record.number, *(one.number for one in machine.snapshots(record.kernel_id))
        making = Making(uuid.uuid4().hex, number=next_number(*numbers))
        with machine.files_put_back(
            manifest, record, request.files, making, operation.progress
        ) as told:
            found = machine.resume(
                manifest,
                record,
                exit_path,
                operation.progress,
                request=request,
                is_copy=is_branch or is_other,
            )
        leases.resumed(record.kernel_id)
        own = zip(manifest.launch.own_ports, record.spec.own_ports, strict=True)
        moved = {before: after for before, after in own if before != after}
        return Outcome(
            KernelState.RUNNING,
            {
                "tree": found.tree,
                "snapshot_id": chosen,
                "number": max(record.number, info.number, making.number if request.files else 0),
                "sizes": info.sizes,
                "saved_seconds": info.seconds,
                "error": None,
                "moved_to": "",
                "moved_ports": moved | found.moved_ports,
            },
            Result(
                chosen,
                operation.progress.record().seconds,
                info.sizes,
                seconds_by_stage=dict(operation.progress.seconds_by_stage),
                warnings=[*warnings, *told, *found.warnings],
                moved_ports=found.moved_ports,
            ),
            partial(machine.folders.finish, record) if request.files else None,
        )

    kind = OperationKind.BRANCH if is_branch else OperationKind.RESUME
    # If this daemon dies, the next one looks for the former files there.
    restoring = new_restore() if request.files else ""
    entering = {"exit_path": str(exit_path), "restoring": restoring}
    return Job(Verb.RESUME, kind, KernelState.RESUMING, work, entering)
