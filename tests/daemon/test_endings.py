"""A kernel that its user has shut down stands still for a while, lives on when that is undone, and else ends."""

import os
import signal
import time
from contextlib import suppress

import pytest

from jupyter_gpuckpt.errors import KernelNotFound, KernelStateConflict
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.states import KernelState


@pytest.fixture
def daemon_env(emptied_daemon_env):
    return emptied_daemon_env


def stands_still(kernel):
    return processes.state(kernel.pid) == "T"


def test_it_stands_still_and_goes_on_when_that_is_undone(client, kernel, counts, eventually):
    ended = client.send(calls.end(kernel.kernel_id, 60))
    assert time.time() < ended.ends_at < time.time() + 61
    assert stands_still(kernel)
    before = counts(kernel.kernel_id)
    assert client.send(calls.undo_end(kernel.kernel_id)).ends_at == 0
    eventually(lambda: counts(kernel.kernel_id) > before)
    assert client.send(calls.undo_end(kernel.kernel_id)).state is KernelState.RUNNING


def test_it_ends_when_the_time_is_over(client, kernel, eventually):
    client.send(calls.end(kernel.kernel_id, 0.2))
    eventually(lambda: not processes.alive(kernel.init_pid))
    with pytest.raises(KernelNotFound):
        client.send(calls.kernel(kernel.kernel_id))


def test_nothing_else_is_done_to_it_but_a_kill(client, kernel, counts):
    client.send(calls.end(kernel.kernel_id, 60))
    for verb in (calls.save, calls.suspend):
        with pytest.raises(KernelStateConflict, match="shut down"):
            client.send(verb(kernel.kernel_id))
    client.send(calls.kill(kernel.kernel_id))
    with pytest.raises(KernelNotFound):
        client.send(calls.undo_end(kernel.kernel_id))


def test_a_suspended_one_is_forgotten_and_keeps_its_snapshot(client, kernel, eventually):
    snapshot = client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id).snapshot_id
    client.send(calls.end(kernel.kernel_id, 60))
    assert client.send(calls.undo_end(kernel.kernel_id)).state is KernelState.SUSPENDED
    client.send(calls.end(kernel.kernel_id, 0.1))
    eventually(lambda: not client.send(calls.kernels()))
    assert [info.snapshot_id for info in client.send(calls.snapshots())] == [snapshot]


def test_another_daemon_keeps_to_it(client, kernel, counts, eventually):
    ends_at = client.send(calls.end(kernel.kernel_id, 4)).ends_at
    os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    with suppress(KernelNotFound):  # where the next daemon came too late
        assert client.send(calls.kernel(kernel.kernel_id)).ends_at == ends_at
        assert stands_still(kernel) or time.time() >= ends_at
    eventually(lambda: not processes.alive(kernel.init_pid))
    assert time.time() >= ends_at


def test_another_daemon_can_undo_it(client, kernel, counts, eventually):
    client.send(calls.end(kernel.kernel_id, 60))
    os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    assert client.send(calls.kernel(kernel.kernel_id)).ends_at > 0  # starts the next one
    before = counts(kernel.kernel_id)
    client.send(calls.undo_end(kernel.kernel_id))
    eventually(lambda: counts(kernel.kernel_id) > before)
