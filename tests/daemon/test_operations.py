"""Saves, suspends and resumes as clients see them: started, followed, canceled, refused, undone."""

import asyncio
import signal
import socket
import sys
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.client import AsyncClient, Client, this_owner
from jupyter_gpuckpt.client.mirror import Mirror
from jupyter_gpuckpt.errors import (
    DaemonUnavailable,
    KernelBusy,
    KernelNotCheckpointable,
    KernelStateConflict,
    OperationCancelled,
    SnapshotInUse,
    SnapshotNotFound,
)
from jupyter_gpuckpt.wire import calls, place
from jupyter_gpuckpt.wire.manifest_records import Cause
from jupyter_gpuckpt.wire.protocol import OperationState, OwnerKind, SaveRequest
from jupyter_gpuckpt.wire.states import KernelState
from tests.daemon.conftest import LARGE


@pytest.fixture
def daemon_env(emptied_daemon_env):
    return emptied_daemon_env


@pytest.fixture
def large(client, owner, spec, counts, short_dir, eventually):
    """Return a kernel whose save takes a while."""
    kernel_id = "large"
    argv = [sys.executable, "-c", LARGE, str(short_dir / kernel_id), str(200 << 20)]
    launched = client.send(calls.launch(owner.owner_id, spec(argv, kernel_id=kernel_id)))
    eventually(lambda: counts(kernel_id))
    return launched


def state(client, kernel):
    return client.send(calls.kernel(kernel.kernel_id)).state


def test_a_save_makes_a_snapshot_and_the_kernel_goes_on(client, kernel, counts, eventually):
    operation = client.send(calls.save(kernel.kernel_id, SaveRequest(name="a.ipynb")))
    result = client.wait(operation.operation_id)
    assert result.sizes.raw_bytes > 0
    assert result.seconds > 0
    assert set(result.seconds_by_stage) >= {"freeze", "store"}
    assert [info.snapshot_id for info in client.send(calls.snapshots())] == [result.snapshot_id]
    assert client.send(calls.snapshots("another")) == []
    shown = client.send(calls.kernel(kernel.kernel_id))
    assert (shown.state, shown.snapshot_id) == (KernelState.RUNNING, result.snapshot_id)
    assert shown.name == "a.ipynb"
    before = counts(kernel.kernel_id)
    eventually(lambda: counts(kernel.kernel_id) > before)


def test_suspend_and_resume_give_the_kernel_back(client, kernel, counts, events, eventually):
    suspended = client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    assert place.start_time(kernel.init_pid) is None
    asleep = client.send(calls.kernel(kernel.kernel_id))
    assert (asleep.state, asleep.pid, asleep.init_pid) == (KernelState.SUSPENDED, 0, 0)
    assert not Path(asleep.exit_path).exists()
    before = counts(kernel.kernel_id)
    resumed = client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
    assert resumed.snapshot_id == suspended.snapshot_id
    awake = client.send(calls.kernel(kernel.kernel_id))
    assert awake.state is KernelState.RUNNING
    assert awake.exit_path != kernel.exit_path
    eventually(lambda: counts(kernel.kernel_id) > before)
    client.send(calls.signal(kernel.kernel_id, signal.SIGTERM))
    eventually(lambda: events[-1].gone == kernel.kernel_id)
    assert int(Path(awake.exit_path).read_text()) == signal.SIGTERM


def test_verbs_that_change_nothing_succeed_at_once(client, kernel):
    assert client.send(calls.resume(kernel.kernel_id)).state is OperationState.SUCCEEDED
    done = client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    again = client.send(calls.suspend(kernel.kernel_id))
    assert again.state is OperationState.SUCCEEDED
    assert again.result.snapshot_id == done.snapshot_id
    client.send(calls.signal(kernel.kernel_id, signal.SIGINT))
    with pytest.raises(KernelStateConflict):
        client.send(calls.save(kernel.kernel_id))


def test_an_operation_can_be_followed(client, large):
    seen = list(client.follow(client.send(calls.save(large.kernel_id)).operation_id))
    assert seen[-1].state is OperationState.SUCCEEDED
    stages = [operation.progress.stage for operation in seen]
    assert {"freeze", "store"} <= set(stages)
    assert any(operation.progress.done_bytes for operation in seen)


def test_a_second_save_is_refused_while_one_is_in_flight(client, large):
    operation = client.send(calls.save(large.kernel_id))
    with pytest.raises(KernelBusy) as refusal:
        client.send(calls.save(large.kernel_id))
    assert refusal.value.retryable
    client.wait(operation.operation_id)


def test_a_cancelled_save_leaves_the_kernel_running(client, large, counts, eventually):
    operation = client.send(calls.save(large.kernel_id))
    client.send(calls.cancel(operation.operation_id))
    with pytest.raises(OperationCancelled):
        client.wait(operation.operation_id)
    assert client.send(calls.operation(operation.operation_id)).state is OperationState.CANCELLED
    shown = client.send(calls.kernel(large.kernel_id))
    assert (shown.state, shown.error) == (KernelState.RUNNING, None)
    assert client.send(calls.snapshots()) == []
    before = counts(large.kernel_id)
    eventually(lambda: counts(large.kernel_id) > before)


def test_a_suspend_takes_the_place_of_a_save(client, large):
    save = client.send(calls.save(large.kernel_id))
    suspend = client.send(calls.suspend(large.kernel_id))
    result = client.wait(suspend.operation_id)
    with pytest.raises(OperationCancelled):
        client.wait(save.operation_id)
    assert state(client, large) is KernelState.SUSPENDED
    assert [info.snapshot_id for info in client.send(calls.snapshots())] == [result.snapshot_id]


def test_a_second_suspend_is_the_same_operation(client, large):
    first = client.send(calls.suspend(large.kernel_id))
    assert client.send(calls.suspend(large.kernel_id)).operation_id == first.operation_id
    client.wait(first.operation_id)


CONNECTED = """
import socket, sys, time
end = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("connected", flush=True)
time.sleep(1000)
"""


def test_who_asks_for_a_suspend_does_not_get_the_refusal_of_an_idle_one(
    client, owner, spec, eventually
):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = spec([sys.executable, "-c", CONNECTED, str(listener.getsockname()[1])])
        kernel = client.send(calls.launch(owner.owner_id, made))
        eventually(lambda: "connected" in Path(made.log_path).read_text())
        idle = client.send(calls.suspend(kernel.kernel_id, SaveRequest(cause=Cause.IDLE)))
        wanted = client.send(calls.suspend(kernel.kernel_id))
        with pytest.raises(KernelNotCheckpointable):
            client.wait(idle.operation_id)
        client.wait(wanted.operation_id)
    assert state(client, kernel) is KernelState.SUSPENDED


def test_a_resume_waits_for_a_suspend_in_flight(client, large, counts, eventually):
    client.send(calls.suspend(large.kernel_id))
    resume = client.send(calls.resume(large.kernel_id))
    assert resume.state is OperationState.RUNNING
    client.wait(resume.operation_id)
    before = counts(large.kernel_id)
    eventually(lambda: counts(large.kernel_id) > before)


def test_an_interrupt_during_a_save_is_delivered_after_it(client, kernel, short_dir, eventually):
    operation = client.send(calls.save(kernel.kernel_id))
    client.send(calls.signal(kernel.kernel_id, signal.SIGINT))
    client.wait(operation.operation_id)
    eventually((short_dir / f"{kernel.kernel_id}.interrupted").exists)


def test_a_kill_takes_the_place_of_a_save(client, large, eventually):
    operation = client.send(calls.save(large.kernel_id))
    client.send(calls.kill(large.kernel_id))
    assert client.send(calls.kernels()) == []
    assert client.send(calls.operation(operation.operation_id)).state is OperationState.CANCELLED
    assert place.start_time(large.init_pid) is None


def test_a_suspended_kernel_can_be_killed_and_its_snapshot_stays(client, kernel):
    client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    exit_path = client.send(calls.kernel(kernel.kernel_id)).exit_path
    client.send(calls.kill(kernel.kernel_id))
    assert Path(exit_path).read_text() == "9"
    assert len(client.send(calls.snapshots())) == 1


def test_a_snapshot_that_a_suspended_kernel_needs_stays(client, kernel):
    saved = client.wait(client.send(calls.save(kernel.kernel_id)).operation_id)
    needed = client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    with pytest.raises(SnapshotInUse):
        client.send(calls.delete_snapshot(needed.snapshot_id))
    client.send(calls.delete_snapshot(saved.snapshot_id))
    client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
    client.send(calls.delete_snapshot(needed.snapshot_id))
    assert client.send(calls.snapshots()) == []


def test_a_snapshot_cannot_be_deleted_while_its_suspend_ends(client, kernel, counts, eventually):
    operation = client.send(calls.suspend(kernel.kernel_id))
    made = eventually(lambda: client.send(calls.snapshots(kernel.kernel_id)))[0].snapshot_id
    # From the moment it is listed, through the last steps of the suspend, to its end and after it.
    refused = 0
    while refused < 20:
        with pytest.raises(SnapshotInUse):
            client.send(calls.delete_snapshot(made))
        refused += 1
    client.wait(operation.operation_id)
    with pytest.raises(SnapshotInUse):
        client.send(calls.delete_snapshot(made))
    client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
    eventually(lambda: counts(kernel.kernel_id))


def test_a_failed_resume_leaves_the_kernel_suspended(client, kernel, counts, eventually):
    client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    with pytest.raises(SnapshotNotFound):
        client.wait(client.send(calls.resume(kernel.kernel_id, "0" * 32)).operation_id)
    shown = client.send(calls.kernel(kernel.kernel_id))
    assert (shown.state, shown.error.code) == (KernelState.SUSPENDED, "snapshot_not_found")
    client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
    assert client.send(calls.kernel(kernel.kernel_id)).error is None


def test_a_summary_holds_no_secret(client, kernel, settings):
    result = client.wait(client.send(calls.save(kernel.kernel_id)).operation_id)
    summary = client.send(calls.manifest_summary(result.snapshot_id))
    assert summary["info"]["kernel_id"] == kernel.kernel_id
    assert summary["processes"]
    assert summary["streams"]
    assert b"not-for-the-log" not in msgspec.json.encode(summary)
    assert "not-for-the-log" not in settings.log_file.read_text()


def test_the_log_has_one_line_for_an_operation(client, kernel, settings):
    client.wait(client.send(calls.save(kernel.kernel_id)).operation_id)
    said = f"save of kernel {kernel.kernel_id}"
    lines = [line for line in settings.log_file.read_text().splitlines() if said in line]
    assert len(lines) == 1
    assert "ratio" in lines[0]
    assert "freeze" in lines[0]


def test_a_caller_may_go_and_ask_again(client, kernel, settings):
    operation = client.send(calls.save(kernel.kernel_id))
    client.close()
    with Client.connect(settings) as another:
        assert another.wait(operation.operation_id).snapshot_id


def test_a_closed_client_says_so(settings):
    async def work():
        async with await AsyncClient.connect(settings) as closed:
            await closed.send(calls.kernels())
        with pytest.raises(DaemonUnavailable, match="closed"):
            await closed.send(calls.kernels())

    asyncio.run(work())


def test_the_asynchronous_client_does_the_same(client, settings, spec):
    async def work():
        async with await AsyncClient.connect(settings) as asynchronous:
            owner = this_owner(OwnerKind.SERVER, root_dir="/tmp")
            heard = []
            ended = asyncio.Event()

            async def listen():
                async for changes in asynchronous.events(owner, Mirror()):
                    heard.extend(changes)
                    if any(change.gone for change in changes):
                        ended.set()

            listener = asyncio.create_task(listen())
            kernel = await asynchronous.send(calls.launch(owner.owner_id, spec()))
            operation = await asynchronous.send(calls.suspend(kernel.kernel_id))
            followed = [step async for step in asynchronous.follow(operation.operation_id)]
            result = await asynchronous.wait(operation.operation_id)
            with pytest.raises(KernelStateConflict):
                await asynchronous.send(calls.save(kernel.kernel_id))
            await asynchronous.send(calls.kill(kernel.kernel_id))
            await asyncio.wait_for(ended.wait(), 120)
            listener.cancel()
            return followed, result, heard

    followed, result, heard = asyncio.run(work())
    assert followed[-1].result.snapshot_id == result.snapshot_id
    states = [event.kernel.state for event in heard if event.kernel]
    assert list(dict.fromkeys(states)) == ["starting", "running", "suspending", "suspended"]
