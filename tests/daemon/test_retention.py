"""Retention in the daemon: after saves by itself, and when asked; what a kernel needs stays, and the disk gets smaller."""

import sys

import pytest

from jupyter_gpuckpt.errors import SnapshotNotFound
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.manifest_records import Cause
from jupyter_gpuckpt.wire.protocol import SaveRequest
from jupyter_gpuckpt.wire.snapshot_records import RetentionPolicy
from jupyter_gpuckpt.wire.states import KernelState
from tests.live_files import bytes_below

#: Holds random memory; most of it becomes other memory, and a little stays for good, whenever the file `.change` is there.
CHANGING = """
import mmap, os, sys, time
lasting, data, count = [], mmap.mmap(-1, int(sys.argv[2]), mmap.MAP_PRIVATE), 0
while True:
    count += 1
    if os.path.exists(sys.argv[1] + ".change"):
        for start in range(0, len(data), 1 << 16):
            data[start : start + (1 << 16)] = os.urandom(1 << 16)
        lasting.append(os.urandom(200_000))
        os.unlink(sys.argv[1] + ".change")
    with open(sys.argv[1], "w") as file:
        file.write(str(count))
    time.sleep(0.01)
"""
MB = 1_000_000


@pytest.fixture
def launch(client, owner, spec, counts, short_dir, eventually):
    """Return a function that launches a kernel whose memory `change` changes."""

    def begin(kernel_id, held_bytes=1 << 20):
        argv = [sys.executable, "-c", CHANGING, str(short_dir / kernel_id), str(held_bytes)]
        launched = client.send(calls.launch(owner.owner_id, spec(argv, kernel_id=kernel_id)))
        eventually(lambda: counts(kernel_id))
        return launched

    return begin


@pytest.fixture
def kernel(launch):
    return launch("kernel")


@pytest.fixture
def change(short_dir, eventually):
    def once(kernel):
        path = short_dir / f"{kernel.kernel_id}.change"
        path.touch()
        eventually(lambda: not path.exists(), 60)

    return once


@pytest.fixture
def save(client):
    def take(kernel, cause=Cause.AUTOSAVE, verb="save", **options):
        call = getattr(calls, verb)(kernel.kernel_id, SaveRequest(cause=cause, **options))
        return client.wait(client.send(call).operation_id).snapshot_id

    return take


@pytest.fixture
def save_changed(save, change):
    """Return a function that saves a kernel after a change: a snapshot that is like its neighbors weighs nothing, and stays."""

    def take(kernel, *arguments, **options):
        change(kernel)
        return save(kernel, *arguments, **options)

    return take


@pytest.fixture
def ids(client):
    return lambda: [info.snapshot_id for info in client.send(calls.snapshots())]


@pytest.fixture
def stored(settings):
    return lambda: bytes_below(settings.store / "packs")


def test_only_the_last_automatic_saves_stay_and_the_disk_gets_the_rest_back(
    client, launch, change, save, ids, stored, settings, counts, eventually
):
    changing = launch("changing", 20 << 20)
    policy = RetentionPolicy(keep_last=2)
    manual = save(changing, Cause.MANUAL)
    base = stored()
    assert base < 10 * MB
    taken = []
    for _ in range(5):
        change(changing)
        taken.append(save(changing, retention=policy))
    eventually(lambda: ids() == [*reversed(taken[-2:]), manual])
    # Five saves brought 100 MB; what two of them and the manual one need stays.
    eventually(lambda: stored() < base + 2 * 21 * MB + 10 * MB)
    assert "retention removed" in settings.log_file.read_text()

    # The latest of the suspended kernel is the only one that stays, and the kernel is in it.
    last = save(changing, Cause.SHUTDOWN, "suspend", retention=RetentionPolicy(keep_last=1))
    eventually(lambda: ids() == [last, manual])
    before = counts("changing")
    client.wait(client.send(calls.resume("changing")).operation_id)
    eventually(lambda: counts("changing") > before)
    # The oldest can still be gone back to.
    save(changing, Cause.MANUAL, "suspend")
    client.wait(client.send(calls.resume("changing", snapshot_id=manual)).operation_id)
    before = counts("changing")
    eventually(lambda: counts("changing") > before)


def test_without_a_policy_nothing_goes(kernel, save, ids, client):
    taken = [save(kernel) for _ in range(3)]
    planned = client.send(calls.prune(RetentionPolicy(keep_last=1), dry_run=True))
    assert 0 < planned.freed_bytes < 1_000_000
    assert ids() == taken[::-1]


def test_what_is_needed_or_pinned_stays_whatever_is_asked(
    client, counts, launch, kernel, save, save_changed, ids, eventually
):
    other = launch("other")
    pinned = save(kernel, Cause.MANUAL, name="before the long run", pinned=True)
    former = save_changed(kernel)
    latest = save_changed(kernel)
    old = save_changed(other)
    suspended = save_changed(other, Cause.IDLE, "suspend")
    policy = RetentionPolicy(max_bytes=1, manual_too=True)
    planned = client.send(calls.prune(policy, dry_run=True))
    assert len(ids()) == 5
    done = client.send(calls.prune(policy))
    assert [v.removed for v in done.verdicts] == [v.removed for v in planned.verdicts]
    assert {v.snapshot.snapshot_id for v in done.verdicts if v.removed} == {former, old}
    assert ids() == [suspended, latest, pinned]
    client.wait(client.send(calls.resume(other.kernel_id)).operation_id)
    before = counts(other.kernel_id)
    eventually(lambda: counts(other.kernel_id) > before)
    # Now it lives without the snapshot that it was in, but may have to go back to it.
    assert not any(v.removed for v in client.send(calls.prune(policy)).verdicts)


def test_what_a_kernel_came_back_from_stays_though_it_is_not_its_latest(
    client, kernel, save_changed, ids
):
    first, second = save_changed(kernel), save_changed(kernel)
    third = save_changed(kernel, verb="suspend")
    client.wait(client.send(calls.resume(kernel.kernel_id, snapshot_id=first)).operation_id)
    client.send(calls.prune(RetentionPolicy(max_bytes=1)))
    assert ids() == [third, first]
    with pytest.raises(SnapshotNotFound):
        client.send(calls.delete_snapshot(second))


def test_snapshots_of_a_kernel_that_is_gone_follow_the_rules_too(client, kernel, save_changed, ids):
    taken = [save_changed(kernel) for _ in range(3)]
    manual = save_changed(kernel, Cause.MANUAL)
    client.send(calls.kill(kernel.kernel_id))
    client.send(calls.prune(RetentionPolicy(keep_last=2)))
    assert ids() == [manual, taken[2], taken[1]]
    client.send(calls.prune(RetentionPolicy(max_bytes=1)))
    assert ids() == [manual]


def test_a_save_that_fails_removes_nothing(client, kernel, save, ids, eventually):
    taken = [save(kernel) for _ in range(3)]
    request = SaveRequest(retention=RetentionPolicy(keep_last=1))
    operation = client.send(calls.save(kernel.kernel_id, request))
    client.send(calls.cancel(operation.operation_id))
    eventually(lambda: client.send(calls.kernel(kernel.kernel_id)).state is KernelState.RUNNING)
    if client.send(calls.operation(operation.operation_id)).result is None:  # else it was quicker
        assert ids() == taken[::-1]
