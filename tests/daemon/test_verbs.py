"""What a kernel's record says of errors after its operations: the daemon's parts without a socket and without a kernel's process."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from jupyter_gpuckpt.daemon.jobs import Job, Outcome
from jupyter_gpuckpt.daemon.kernels import Kernels
from jupyter_gpuckpt.daemon.machine import Machine
from jupyter_gpuckpt.daemon.operations import Operations
from jupyter_gpuckpt.daemon.records import KernelRecord, Records
from jupyter_gpuckpt.daemon.streams import Streams
from jupyter_gpuckpt.daemon.verbs import Verbs
from jupyter_gpuckpt.errors import SessionLost, StoreFull, record_of
from jupyter_gpuckpt.manifest_records import LaunchSpec
from jupyter_gpuckpt.place import this_place
from jupyter_gpuckpt.protocol import OperationKind, Owner, OwnerKind, Result
from jupyter_gpuckpt.states import KernelState, Verb

FORMER, LOST = record_of(StoreFull("no room")), record_of(SessionLost("taken over"))


@pytest.mark.parametrize(("news", "left"), [(None, None), (LOST, LOST)])
def test_a_success_ends_an_older_error_and_not_one_that_came_meanwhile(
    settings, tmp_path, news, left
):
    async def carry_out():
        place, streams = this_place(settings.data), Streams()
        records, machine = Records(tmp_path, place), Machine(settings, place)
        kernels = Kernels(records, machine, streams)
        operations = Operations(streams)
        ended = []
        verbs = Verbs(
            place, kernels, operations, machine, records, None, lambda *told: ended.append(told)
        )
        spec = LaunchSpec("k", ["true"], {}, "/", "/x")
        owner = Owner("o", OwnerKind.SERVER, 1, 1.0)
        record = KernelRecord(spec, owner, place, state=KernelState.RUNNING)
        record.error = FORMER
        kernel, loop = kernels.add(record), asyncio.get_running_loop()

        def work(operation):
            if news is not None:
                loop.call_soon_threadsafe(partial(kernels.update, kernel, error=news))
            return Outcome(KernelState.RUNNING, {"error": None}, Result("s", 0.0))

        job = Job(Verb.SAVE, OperationKind.SAVE, KernelState.SAVING, work)
        operation = verbs._begin(kernel, job)
        await operation.until_ended()
        assert ended == [(job, operation)]
        return kernel.record.error

    assert asyncio.run(carry_out()) == left
