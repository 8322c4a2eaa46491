"""Which kernels count as idle, and what a cell cancels: against kernels and operations of this file. tests/server has the real ones."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from jupyter_gpuckpt.server.policies import idle
from jupyter_gpuckpt.server.policies.idle import IdleSuspends, idle_kernels
from jupyter_gpuckpt.wire.states import KernelState


@pytest.mark.parametrize(
    ("changes", "is_idle"),
    [
        ({}, True),
        # A cell is held for it, and it waits for the GPU, or is about to.
        ({"is_wanted": True}, False),
        ({"waits": "It waits for its turn on the GPU."}, False),
    ],
)
def test_a_parked_kernel_for_which_a_cell_is_held_is_not_idle(changes, is_idle):
    fields = {"is_wanted": False, "waits": "", "state": KernelState.PARKED}
    output = SimpleNamespace(runs_cell=False)
    served = SimpleNamespace(gate_is_open=False, output=output, **fields | changes)
    manager = SimpleNamespace(
        last_activity=datetime.now(UTC) - timedelta(hours=1), execution_state="idle"
    )
    kernels = SimpleNamespace(list_kernel_ids=lambda: ["k"], get_kernel=lambda _: manager)
    operations = SimpleNamespace(served=lambda _: served)
    found = idle_kernels(kernels, operations, after_seconds=5, parked_too=True)
    assert found == (["k"] if is_idle else [])


@pytest.mark.parametrize(
    ("seconds_ago", "is_idle"),
    [(4.0, False), (6.0, True), (-4.0, False), (-3600.0, True), (0.0, False)],
)
def test_a_kernel_that_was_used_in_the_future_is_idle(seconds_ago, is_idle):
    """The clock was set back; memory that is short must not wait until the clock has caught up."""
    served = SimpleNamespace(
        gate_is_open=True,
        output=SimpleNamespace(runs_cell=False),
        is_wanted=False,
        waits="",
        state=KernelState.RUNNING,
    )
    used = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    manager = SimpleNamespace(last_activity=used, execution_state="idle")
    kernels = SimpleNamespace(list_kernel_ids=lambda: ["k"], get_kernel=lambda _: manager)
    operations = SimpleNamespace(served=lambda _: served)
    found = idle_kernels(kernels, operations, after_seconds=5)
    assert found == (["k"] if is_idle else [])


class Operations:
    """Suspends that end when they are told to."""

    def __init__(self):
        self.ends, self.cancelled = {}, []

    def served(self, kernel_id):
        return SimpleNamespace(output=SimpleNamespace(runs_cell=False))

    async def suspend(self, kernel_id, *, cause, check):
        self.ends[cause] = asyncio.Event()
        return SimpleNamespace(operation_id=cause)

    async def finish(self, operation):
        await self.ends[operation.operation_id].wait()
        return SimpleNamespace(error=None)

    async def cancel(self, operation_id):
        self.cancelled.append(operation_id)

    def spawn(self, work):
        self.spawned = asyncio.ensure_future(work)


@pytest.mark.parametrize(("ended", "left"), [("first", "second"), ("second", "first")])
def test_a_cell_cancels_the_suspend_that_is_left_of_two(ended, left):
    async def main():
        operations = Operations()
        suspends = IdleSuspends(operations)
        tasks = {}
        for cause in ("first", "second"):
            tasks[cause] = asyncio.create_task(suspends.suspend("k", cause))
            while cause not in operations.ends:  # noqa: ASYNC110
                await asyncio.sleep(0)
        operations.ends[ended].set()
        await tasks[ended]
        suspends.kernel_wanted(SimpleNamespace(kernel_id="k"))
        await operations.spawned
        assert operations.cancelled == [left]
        operations.ends[left].set()
        await tasks[left]

    asyncio.run(main())


class Noticed:
    """A kernel whose page is told when it will be suspended."""

    def __init__(self):
        self.kernel_id, self.connections, self.absent, self.suspends_at = "k", 1, False, None
        self.output = SimpleNamespace(changes=0, runs_cell=False)

    def announce_suspend(self, at):
        self.suspends_at = at


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_notice_lasts_as_long_as_was_said_when_the_clock_is_set(monkeypatch, step):
    """Its user has all the time to say no, and the suspend comes."""
    wall = SimpleNamespace(at=1e9)
    monkeypatch.setattr(time, "time", lambda: wall.at)
    monkeypatch.setattr(idle, "_LOOK_SECONDS", 0.01)
    noticed, suspended = Noticed(), asyncio.Event()

    class Suspends:
        async def suspend(self, kernel_id, cause, *, busy_too):
            suspended.set()

    async def told():
        operations = Operations()
        operations.served = lambda kernel_id: noticed
        culled = idle.IdleSuspension(None, operations, Suspends(), notice_seconds=0.2, log=None)
        begun = time.monotonic()
        await culled.kernel_idle("k")
        while noticed.suspends_at is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        wall.at += step
        await asyncio.wait_for(suspended.wait(), 60)
        assert time.monotonic() - begun >= 0.2

    asyncio.run(told())
