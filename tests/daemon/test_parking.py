"""Parking where there is no GPU; with one: tests/gpu/test_parking.py."""

import pytest

from jupyter_gpuckpt.errors import KernelNotCheckpointable, KernelStateConflict
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.states import KernelState


def test_a_kernel_without_a_gpu_is_told_so_and_runs_on(client, kernel, counts, eventually):
    with pytest.raises(KernelNotCheckpointable, match="uses no GPU"):
        client.wait(client.send(calls.park(kernel.kernel_id)).operation_id)
    assert client.send(calls.kernel(kernel.kernel_id)).state is KernelState.RUNNING
    before = counts(kernel.kernel_id)
    eventually(lambda: counts(kernel.kernel_id) > before)


def test_a_suspended_one_cannot_be_parked(client, kernel):
    client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    with pytest.raises(KernelStateConflict):
        client.send(calls.park(kernel.kernel_id))
