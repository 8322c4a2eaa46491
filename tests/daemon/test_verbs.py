"""What a kernel's record says of errors after its operations: the daemon's parts without a socket and without a kernel's process."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from jupyter_gpuckpt.daemon.kernels.jobs import Job, Outcome
from jupyter_gpuckpt.daemon.kernels.kernel_records import KernelRecord, Records
from jupyter_gpuckpt.daemon.kernels.kernels import Kernels
from jupyter_gpuckpt.daemon.kernels.machine import Machine
from jupyter_gpuckpt.daemon.kernels.operations import Operations
from jupyter_gpuckpt.daemon.kernels.streams import Streams
from jupyter_gpuckpt.daemon.kernels.verbs import Verbs
from jupyter_gpuckpt.daemon.remotes.remote_copies import local_chunks
from jupyter_gpuckpt.errors import SessionLost, StoreFull, record_of
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from jupyter_gpuckpt.wire.place import this_place
from jupyter_gpuckpt.wire.protocol import OperationKind, Owner, OwnerKind, Result
from jupyter_gpuckpt.wire.states import KernelState, Verb
from tests.conftest import PATIENCE

FORMER, LOST = record_of(StoreFull("no room")), record_of(SessionLost("taken over"))


class Parts:
    """A daemon's parts with one running kernel. `ended`: the jobs that have ended, with their operations."""

    def __init__(self, settings, folder, records=Records):
        place, streams = this_place(settings.data), Streams()
        self.records, machine = (
            records(folder, place),
            Machine(settings, place, local_chunks=local_chunks),
        )
        self.kernels = Kernels(self.records, machine, streams)
        self.ended = []
        self.verbs = Verbs(
            place,
            self.kernels,
            Operations(streams),
            machine,
            self.records,
            None,
            None,
            lambda *told: self.ended.append(told),
        )
        spec = LaunchSpec("k", ["true"], {}, "/", "/x")
        owner = Owner("o", OwnerKind.SERVER, 1, 1.0)
        record = KernelRecord(spec, owner, place, state=KernelState.RUNNING)
        record.error = FORMER
        self.kernel = self.kernels.add(record)


class SlowRecords(Records):
    """Records of which those of running kernels are written when the test says so."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.may_write, self.asked = threading.Event(), threading.Event()

    def write(self, kernel_id, encoded, state=KernelState.RUNNING):
        if state is KernelState.RUNNING:
            self.asked.set()
            assert self.may_write.wait(PATIENCE)
        super().write(kernel_id, encoded, state)


def test_an_operation_succeeds_when_the_kernels_record_is_on_the_disk(settings, tmp_path):
    async def carry_out():
        parts = Parts(settings, tmp_path, SlowRecords)

        def work(operation):
            return Outcome(KernelState.RUNNING, {}, Result("s", 0.0))

        job = Job(Verb.SAVE, OperationKind.SAVE, KernelState.SAVING, work)
        operation = parts.verbs._begin(parts.kernel, job)
        await asyncio.to_thread(parts.records.asked.wait, PATIENCE)
        await operation.until_ended(0.2)
        assert not parts.ended
        assert parts.kernel.state is KernelState.RUNNING
        parts.records.may_write.set()
        await operation.until_ended()
        assert parts.ended == [(job, operation)]
        return [one.state for one in Records(tmp_path, this_place(settings.data)).all()]

    assert asyncio.run(carry_out()) == [KernelState.RUNNING]


@pytest.mark.parametrize(("news", "left"), [(None, None), (LOST, LOST)])
def test_a_success_ends_an_older_error_and_not_one_that_came_meanwhile(
    settings, tmp_path, news, left
):
    async def carry_out():
        parts = Parts(settings, tmp_path)
        kernels, kernel = parts.kernels, parts.kernel
        loop = asyncio.get_running_loop()

        def work(operation):
            if news is not None:
                loop.call_soon_threadsafe(partial(kernels.update, kernel, error=news))
            return Outcome(KernelState.RUNNING, {"error": None}, Result("s", 0.0))

        job = Job(Verb.SAVE, OperationKind.SAVE, KernelState.SAVING, work)
        operation = parts.verbs._begin(kernel, job)
        await operation.until_ended()
        assert parts.ended == [(job, operation)]
        return kernel.record.error

    assert asyncio.run(carry_out()) == left
