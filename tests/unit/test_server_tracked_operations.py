"""Tests of composed operations with composed steps. Example: the resume in a rollback may first make room on a GPU."""

import asyncio

import pytest

from jupyter_gpuckpt.errors import OperationCancelled, record_of
from jupyter_gpuckpt.server.kernels.tracked_operations import TrackedOperations
from jupyter_gpuckpt.wire.progress import ProgressRecord, Stage
from jupyter_gpuckpt.wire.protocol import Operation, OperationKind, OperationState, Result


class Daemon:
    """A daemon with one resume, which runs until it is canceled or `end` is called."""

    def __init__(self):
        self.tracked = TrackedOperations(lambda _: None, self.cancel)
        self.canceled, self.ended = [], asyncio.Event()
        self.resume = Operation("resume", OperationKind.RESUME, "kernel", OperationState.RUNNING)

    async def cancel(self, operation_id):
        self.canceled.append(operation_id)
        error = record_of(OperationCancelled("The operation was canceled."))
        self.end(OperationState.CANCELLED, error=error)

    def end(self, state=OperationState.SUCCEEDED, **fields):
        ended = Operation("resume", OperationKind.RESUME, "kernel", state, **fields)
        self.tracked.note("resume", ended)
        self.ended.set()

    def begin(self):
        async def follow():
            await self.ended.wait()

        self.tracked.track(self.resume, follow())
        return self.resume

    def roll_back(self, ready, **options):
        """Start a rollback. Its only step is a resume, which waits for `ready` and then runs the daemon's resume."""

        async def resume(steps):
            await ready.wait()
            return await steps.run(self.begin())

        async def work(steps):
            inner = self.tracked.compose(OperationKind.RESUME, "kernel", resume)
            return await steps.run(inner, **options)

        return self.tracked.compose(OperationKind.ROLL_BACK, "kernel", work)


async def a_while():
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_progress_of_the_innermost_step_is_that_of_the_outermost():
    async def main():
        daemon, ready = Daemon(), asyncio.Event()
        ready.set()
        outer = daemon.roll_back(ready)
        await a_while()
        assert daemon.tracked.composed("kernel") is None
        progress = ProgressRecord(Stage.CAPTURE)
        fields = {"progress": progress}
        running = Operation(
            "resume", OperationKind.RESUME, "kernel", OperationState.RUNNING, **fields
        )
        daemon.tracked.note("resume", running)
        shown = daemon.tracked.composed("kernel")
        assert (shown.operation_id, shown.progress) == (outer.operation_id, progress)
        daemon.end(result=Result("s", 0.0))
        assert (await daemon.tracked.result(outer)).snapshot_id == "s"

    asyncio.run(main())


@pytest.mark.parametrize("early", [True, False])
def test_a_cancellation_reaches_the_innermost_step_even_if_it_begins_later(early):
    async def main():
        daemon, ready = Daemon(), asyncio.Event()
        outer = daemon.roll_back(ready)
        await a_while()
        if early:
            await daemon.tracked.cancel(outer.operation_id)
        ready.set()
        await a_while()
        if not early:
            await daemon.tracked.cancel(outer.operation_id)
        ended = await daemon.tracked.finish(outer)
        assert (ended.state, daemon.canceled) == (OperationState.CANCELLED, ["resume"])

    asyncio.run(main())


def test_a_step_that_undoes_others_is_not_canceled():
    async def main():
        daemon, ready = Daemon(), asyncio.Event()
        ready.set()
        outer = daemon.roll_back(ready, can_cancel=False)
        await a_while()
        await daemon.tracked.cancel(outer.operation_id)
        assert not daemon.canceled
        daemon.end(result=Result("s", 0.0))
        assert (await daemon.tracked.finish(outer)).state is OperationState.SUCCEEDED

    asyncio.run(main())


def test_an_operation_ends_also_by_an_error_that_nobody_expected(caplog):
    async def work(steps):
        raise ValueError("unexpected")

    async def main():
        tracked = Daemon().tracked
        ended = await tracked.finish(tracked.compose(OperationKind.RESUME, "kernel", work))
        assert ended.state is OperationState.FAILED
        assert "ValueError: unexpected" in ended.error.message

    asyncio.run(main())
    assert "operation on kernel kernel failed" in caplog.text
