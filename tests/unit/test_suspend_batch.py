"""Many suspends against a deadline: what is begun when, what is canceled, what is said of each."""

import asyncio
import selectors
import time

import msgspec
import pytest

from jupyter_gpuckpt.batches import suspend_batch as batch
from jupyter_gpuckpt.errors import KernelNotCheckpointable, OperationCancelled, record_of
from jupyter_gpuckpt.wire.manifest_records import Sizes, SnapshotInfo
from jupyter_gpuckpt.wire.protocol import Kernel, Operation, OperationKind, OperationState, Result
from jupyter_gpuckpt.wire.states import KernelState

RUNNING, SUCCEEDED = OperationState.RUNNING, OperationState.SUCCEEDED
#: Longer than any test waits.
FOR_EVER = 1000.0


def operation(kernel_id):
    return Operation(f"op-{kernel_id}", OperationKind.SUSPEND, kernel_id, RUNNING)


class Daemon:
    """Operations that take as many seconds as the kernel's id says, then succeed, unless they are canceled before."""

    def __init__(self, *, undo=0.0, refused=()):
        self.begun, self.cancelled, self.most_at_once = [], [], 0
        self._undo, self._refused = undo, refused
        self._events, self._running = {}, set()

    async def begin(self, kernel_id):
        if kernel_id in self._refused:
            raise KernelNotCheckpointable("It holds something.", hint="Let go of it.")
        self.begun.append(kernel_id)
        self._running.add(kernel_id)
        self.most_at_once = max(self.most_at_once, len(self._running))
        self._events[f"op-{kernel_id}"] = asyncio.Event()
        return operation(kernel_id)

    async def finish(self, begun):
        kernel_id, cancelled = begun.kernel_id, self._events[begun.operation_id]
        try:
            async with asyncio.timeout(float(kernel_id.split("-")[0])):
                await cancelled.wait()
        except TimeoutError:
            self._running.discard(kernel_id)
            done = Result(f"snapshot-{kernel_id}", 1.0)
            return msgspec.structs.replace(begun, state=SUCCEEDED, result=done)
        await asyncio.sleep(self._undo)
        self._running.discard(kernel_id)
        return msgspec.structs.replace(
            begun,
            state=OperationState.CANCELLED,
            error=record_of(OperationCancelled("The operation was canceled.")),
        )

    async def cancel(self, begun):
        self.cancelled.append(begun.operation_id)
        self._events[begun.operation_id].set()


class SharedProcessors(Daemon):
    """Operations that need as many seconds of the whole machine as the kernel's id says, and share it with the others."""

    async def finish(self, begun):
        kernel_id, cancelled = begun.kernel_id, self._events[begun.operation_id]
        clock = asyncio.get_running_loop().time
        left, before = float(kernel_id.split("-")[0]), clock()
        while left > 0 and not cancelled.is_set():
            await asyncio.sleep(0.002)
            now = clock()
            left, before = left - (now - before) / len(self._running), now
        self._events[begun.operation_id].set()
        self._running.discard(kernel_id)
        if left > 0:
            return msgspec.structs.replace(
                begun,
                state=OperationState.CANCELLED,
                error=record_of(OperationCancelled("The operation was canceled.")),
            )
        done = Result(f"snapshot-{kernel_id}", 1.0)
        return msgspec.structs.replace(begun, state=SUCCEEDED, result=done)


def kernels(*ids):
    return [Kernel(one, KernelState.RUNNING, "owner", memory_bytes=3, gpu_bytes=4) for one in ids]


class Instant(selectors.DefaultSelector):
    """A selector that does not wait for a time, but counts it as `passed`."""

    passed = 0.0

    def select(self, timeout=None):
        self.passed += timeout or 0.0
        return super().select(timeout and 0)


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose clock goes on while there is nothing to do, and only then, so that no machine is too slow for it."""

    def __init__(self):
        self._instant = Instant()
        super().__init__(self._instant)

    def time(self):
        return self._instant.passed


def run(kernels, daemon, within, told=lambda outcome: None, **more):
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(batch.suspend_each(kernels, daemon, within, told, **more))


def test_all_are_suspended_in_order_a_few_at_a_time():
    ids = [f"0.02-{number}" for number in range(9)]
    daemon, told = Daemon(), []
    outcomes = run(kernels(*ids), daemon, None, told.append)
    assert daemon.begun == ids
    assert daemon.most_at_once == batch.AT_ONCE
    assert [outcome.kernel_id for outcome in outcomes] == ids
    assert all(outcome.saved and outcome.error is None for outcome in outcomes)
    assert outcomes[0].snapshot_id == "snapshot-0.02-0"
    assert outcomes[0].size_bytes == 7
    assert outcomes[0].seconds >= 0.02
    assert sorted(told, key=lambda one: one.kernel_id) == outcomes
    assert daemon.cancelled == []


def test_at_the_deadline_what_is_not_complete_is_cancelled_and_nothing_more_is_begun():
    ids = ["0.01", *(f"{FOR_EVER}-{number}" for number in range(6))]
    daemon = Daemon()
    outcomes = run(kernels(*ids), daemon, 1.7)
    assert [outcome.saved for outcome in outcomes] == [True] + [False] * 6
    assert daemon.begun == ids[:5]
    assert sorted(daemon.cancelled) == [f"op-{one}" for one in ids[1:5]]
    assert {outcome.error.code for outcome in outcomes[1:]} == {"operation_cancelled"}
    assert "undone" in outcomes[1].error.message
    assert "no time left" in outcomes[6].error.message


@pytest.mark.parametrize("rates", [[], [1e9, 40e9]], ids=["unknown", "measured"])
def test_no_more_are_begun_beside_each_other_than_can_end_in_time(rates):
    large = [
        msgspec.structs.replace(one, memory_bytes=400_000_000)
        for one in kernels(*(f"0.4-{number}" for number in range(4)))
    ]
    snapshots = [
        SnapshotInfo(f"s{rate}", "k", 0.0, "save", sizes=Sizes(raw_bytes=10**9), seconds=1e9 / rate)
        for rate in rates
    ]
    daemon = SharedProcessors()
    outcomes = run(large, daemon, 1.0, snapshots=snapshots)
    # All four at once would have needed 1.6 s, and none would have been saved.
    assert [outcome.saved for outcome in outcomes] == [True, True, False, False]
    assert daemon.begun[:2] == ["0.4-0", "0.4-1"]


def test_one_that_fits_is_begun_before_one_that_does_not():
    large, small = kernels("0.2-large", "0.2-small")
    large = msgspec.structs.replace(large, memory_bytes=10**12)
    daemon = SharedProcessors()
    outcomes = run([large, small], daemon, 1.0)
    assert daemon.begun == ["0.2-small", "0.2-large"]
    assert all(outcome.saved for outcome in outcomes)


def test_without_any_time_nothing_is_begun():
    daemon = Daemon()
    (outcome,) = run(kernels("0.01"), daemon, 0)
    assert not outcome.saved
    assert daemon.begun == []


def test_a_refusal_is_that_kernels_alone():
    daemon = Daemon(refused=["0.02"])
    refused, saved = run(kernels("0.02", "0.01"), daemon, 60)
    assert (refused.saved, refused.error.code) == (False, "kernel_not_checkpointable")
    assert refused.error.hint == "Let go of it."
    assert saved.saved


def test_a_defect_is_told_as_an_error_and_does_not_keep_the_others(monkeypatch):
    daemon = Daemon()
    finish = daemon.finish

    async def broken(begun):
        if begun.kernel_id == "0.02":
            raise ZeroDivisionError("division by zero")
        return await finish(begun)

    monkeypatch.setattr(daemon, "finish", broken)
    failed, saved = run(kernels("0.02", "0.01"), daemon, 60)
    assert failed.error.code == "internal"
    assert saved.saved


def test_one_that_cannot_be_undone_in_time_does_not_hold_up_the_report(monkeypatch):
    monkeypatch.setattr(batch, "UNDO_SECONDS", 0.2)
    daemon = Daemon(undo=FOR_EVER)
    began = time.monotonic()
    (outcome,) = run(kernels(f"{FOR_EVER}"), daemon, 0.1)
    assert time.monotonic() - began < FOR_EVER / 2
    assert (outcome.saved, outcome.error.code) == (False, "kernel_busy")
    assert daemon.cancelled == [f"op-{FOR_EVER}"]


def test_an_operation_that_somebody_else_began_is_not_cancelled():
    theirs = operation(f"{FOR_EVER}")
    kernel = msgspec.structs.replace(kernels(f"{FOR_EVER}")[0], operation=theirs)
    daemon = Daemon()
    (outcome,) = run([kernel], daemon, 0.1)
    assert not outcome.saved
    assert "Another client" in outcome.error.message
    assert daemon.cancelled == []


@pytest.mark.parametrize("within", [None, 5])
def test_nothing_to_do_is_no_error(within):
    assert run([], Daemon(), within) == []
