"""A disk without a free byte, or on which no further file can be made: it costs saves, nothing else."""

import os
import signal
import sys
import uuid

import msgspec
import pytest

from jupyter_gpuckpt.errors import StoreFull
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.manifest_records import Cause
from jupyter_gpuckpt.wire.protocol import SaveRequest
from jupyter_gpuckpt.wire.retention_policy import RetentionPolicy
from tests.conftest import end_everything_below, environment, wait_for
from tests.daemon.conftest import LARGE
from tests.full_disks import fill, leave, small_disk, use_all_files


@pytest.fixture
def daemon_env(criu, short_dir):
    """Yield the environment of a daemon whose data directory is a small disk of its own."""
    with small_disk(short_dir / "data", short_dir / "image"):
        yield environment(criu, short_dir)
        end_everything_below(short_dir)


@pytest.fixture
def disk(daemon_env, short_dir):
    """Return that disk."""
    return short_dir / "data"


@pytest.fixture
def settings(settings):
    """Return the settings of a daemon from which deleted snapshots go soon: until then they can be put back."""
    return msgspec.structs.replace(settings, undo_delete_seconds=0.2)


def saved(client, kernel_id):
    """Return whether a kernel can be saved: the files of deleted snapshots are removed one after another."""
    try:
        client.wait(client.send(calls.save(kernel_id)).operation_id)
    except StoreFull:
        return False
    return True


def counting(counts, kernel_id):
    """Return whether a kernel runs on."""
    before = counts(kernel_id)
    return wait_for(lambda: counts(kernel_id) > before)


@pytest.mark.parametrize("fill", [fill, use_all_files], ids=["bytes", "files"])
def test_a_full_disk_costs_saves_and_nothing_else(
    settings, disk, client, owner, spec, counts, short_dir, fill
):
    def launch(megabytes=4):
        kernel_id = str(uuid.uuid4())
        program = [sys.executable, "-c", LARGE, str(short_dir / kernel_id), str(megabytes << 20)]
        client.send(calls.launch(owner.owner_id, spec(program, kernel_id=kernel_id)))
        return kernel_id if wait_for(lambda: counts(kernel_id)) else ""

    suspended, asleep, running = launch(), launch(), launch()
    for kernel_id in (suspended, asleep):
        client.wait(client.send(calls.suspend(kernel_id)).operation_id)
    client.wait(client.send(calls.save(running)).operation_id)
    fill(disk)
    new = launch(megabytes=2)
    client.wait(client.send(calls.resume(suspended)).operation_id)
    for verb in (calls.save, calls.suspend):
        fill(disk)
        with pytest.raises(StoreFull):
            client.wait(client.send(verb(new)).operation_id)
        assert counting(counts, new)
    # The next daemon finds no room either.
    fill(disk)
    os.kill(client.send(calls.handshake()).pid, signal.SIGKILL)
    fill(disk)
    kernels = client.send(calls.kernels())
    assert {one.kernel_id: one.state for one in kernels} == {
        **dict.fromkeys((suspended, running, new), "running"),
        asleep: "suspended",
    }
    client.wait(client.send(calls.resume(asleep)).operation_id)
    later = launch()
    client.send(calls.kill(later))
    # The way out.
    fill(disk)
    for snapshot in client.send(calls.snapshots()):
        client.send(calls.delete_snapshot(snapshot.snapshot_id))
    wait_for(lambda: saved(client, new))
    assert all(counting(counts, kernel_id) for kernel_id in (suspended, asleep, running, new))


def test_periodic_saves_leave_room_for_what_users_do(disk, client, owner, spec, counts, short_dir):
    kernel_id = str(uuid.uuid4())
    program = [sys.executable, "-c", LARGE, str(short_dir / kernel_id), str(1 << 20)]
    client.send(calls.launch(owner.owner_id, spec(program, kernel_id=kernel_id)))
    wait_for(lambda: counts(kernel_id))

    def save(cause):
        request = SaveRequest(cause=cause, retention=RetentionPolicy(thins=True))
        client.wait(client.send(calls.save(kernel_id, request)).operation_id)

    def causes():
        return [one.cause for one in client.send(calls.snapshots())]

    save(Cause.MANUAL)
    save(Cause.AUTOSAVE)
    assert causes() == [Cause.AUTOSAVE, Cause.MANUAL]
    leave(disk, 0.03)
    with pytest.raises(StoreFull, match="No periodic save was made"):
        save(Cause.AUTOSAVE)
    assert counting(counts, kernel_id)
    save(Cause.MANUAL)
    assert causes() == [Cause.MANUAL, Cause.AUTOSAVE, Cause.MANUAL]
