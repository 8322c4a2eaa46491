"""What clients may do with snapshots: change, delete and undelete, verify, export and import, and hear of it."""

import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.client import Client, starting
from jupyter_gpuckpt.daemon.kernels.kernel_records import KernelRecord
from jupyter_gpuckpt.daemon.snapshots.inventory import needed_ids
from jupyter_gpuckpt.errors import (
    ArchiveInvalid,
    ConfigurationError,
    ObjectCorrupt,
    SnapshotExists,
    SnapshotInUse,
    SnapshotNotFound,
)
from jupyter_gpuckpt.wire import calls, place
from jupyter_gpuckpt.wire.manifest_records import Cause, SnapshotInfo
from jupyter_gpuckpt.wire.protocol import Owner, OwnerKind, SaveRequest
from jupyter_gpuckpt.wire.snapshot_records import RetentionPolicy
from jupyter_gpuckpt.wire.states import KernelState
from tests.daemon.conftest import LARGE

MB = 1_000_000


@pytest.fixture
def save(client):
    def take(kernel, verb="save", **options):
        call = getattr(calls, verb)(kernel.kernel_id, SaveRequest(**options))
        return client.wait(client.send(call).operation_id).snapshot_id

    return take


@pytest.fixture
def one(client):
    """Return a snapshot as the list shows it; None if it does not."""

    def find(snapshot_id, **asked):
        found = client.send(calls.snapshots(**asked))
        return next((info for info in found if info.snapshot_id == snapshot_id), None)

    return find


@pytest.fixture
def hasty(settings):
    """Yield a client of a daemon that keeps deleted snapshots for a moment only."""
    with Client.connect(msgspec.structs.replace(settings, undo_delete_seconds=0.3)) as connected:
        yield connected


@pytest.fixture
def there(settings, short_dir):
    """Return settings of a daemon with a store of its own, as on another machine."""
    return msgspec.structs.replace(settings, data_dir=str(short_dir / "elsewhere"))


@pytest.fixture
def elsewhere(there):
    """Yield a client of that daemon."""
    with Client.connect(there) as connected:
        yield connected


@pytest.fixture
def large(client, owner, spec, short_dir, counts, eventually):
    """Start a kernel that holds so many bytes."""

    def start(length):
        argv = [sys.executable, "-c", LARGE, str(short_dir / "large"), str(length)]
        launched = client.send(calls.launch(owner.owner_id, spec(argv, kernel_id="large")))
        eventually(lambda: counts("large"))
        return launched

    return start


def packs(data_dir):
    sizes = []
    for path in (data_dir / "store" / "packs").iterdir():
        with suppress(FileNotFoundError):  # it goes while this looks
            sizes.append(path.stat().st_size)
    return sum(sizes)


def changes(events, snapshot_id):
    told = [event.snapshot for event in events if event.snapshot is not None]
    return [str(one.change) for one in told if one.snapshot_id == snapshot_id]


def test_title_note_and_pin_are_changed_and_retention_sees_the_pin(
    client, kernel, save, one, events, eventually
):
    first = save(kernel, title="before", name="a.ipynb", pinned=True)
    found = one(first)
    assert (found.title, found.name, found.note, found.pinned) == ("before", "a.ipynb", "", True)
    changed = client.send(calls.annotate(first, title="after", note="why", pinned=False))
    assert changed == one(first)
    assert (changed.title, changed.note, changed.pinned) == ("after", "why", False)
    assert client.send(calls.manifest_summary(first))["info"]["title"] == "after"
    second, third = save(kernel), save(kernel, name="b.ipynb")
    client.send(calls.annotate(second, pinned=True))
    client.send(calls.prune(RetentionPolicy(keep_last=1, manual_too=True)))
    assert [info.snapshot_id for info in client.send(calls.snapshots())] == [third, second]
    assert [info.snapshot_id for info in client.send(calls.snapshots(path="b.ipynb"))] == [third]
    eventually(lambda: changes(events, first) == ["added", "changed", "removed"])
    assert changes(events, second) == ["added", "changed"]
    with pytest.raises(SnapshotNotFound):
        client.send(calls.annotate(first, title="x"))
    with pytest.raises(ConfigurationError):
        client.send(calls.annotate(second, title="x" * 301))


@pytest.mark.parametrize(
    ("state", "needed"),
    [
        (KernelState.SUSPENDED, {"parent"}),
        (KernelState.RESUMING, {"parent", "b1", "b2"}),
        (KernelState.SUSPENDING, {"b1", "b2"}),
        (KernelState.RUNNING, set()),
        (KernelState.LOST, set()),
    ],
)
def test_what_a_branch_needs_may_be_another_kernels(spec, state, needed):
    owner = Owner("o", OwnerKind.SERVER, 1, 0)
    record = KernelRecord(spec(kernel_id="b"), owner, place.this_place(Path("/x")), state=state)
    record.snapshot_id = "parent"
    infos = [
        SnapshotInfo(name, kernel_id, 1, "save")
        for name, kernel_id in (("parent", "a"), ("other", "a"), ("b1", "b"), ("b2", "b"))
    ]
    assert set(needed_ids([record], infos)) == needed


def test_a_list_says_what_is_needed_and_whose_kernel_lives(client, kernel, save, one):
    before = save(kernel)
    assert (one(before).needed, one(before).kernel_live) == (False, True)
    suspended = save(kernel, "suspend")
    assert [(info.needed, info.kernel_live) for info in client.send(calls.snapshots())] == [
        (True, True),
        (False, True),
    ]
    with pytest.raises(SnapshotInUse, match=kernel.kernel_id):
        client.send(calls.delete_snapshot(suspended))
    client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
    assert not one(suspended).needed
    client.send(calls.kill(kernel.kernel_id))
    assert not one(suspended).kernel_live
    client.send(calls.delete_snapshot(suspended))
    client.send(calls.delete_snapshot(before))
    assert client.send(calls.snapshots()) == []


def test_a_deletion_can_be_undone_also_after_the_daemon_was_killed(
    client, kernel, save, one, events, counts, eventually
):
    kept, deleted = save(kernel), save(kernel)
    client.send(calls.delete_snapshot(deleted))
    assert one(deleted) is None
    told = one(deleted, deleted=True)
    assert told.kept_until - told.deleted_at == pytest.approx(60)
    assert one(kept, deleted=True) is None
    for use in (calls.delete_snapshot, calls.verify, calls.manifest_summary):
        with pytest.raises(SnapshotNotFound):
            client.send(use(deleted))
    save(kernel, "suspend")
    with pytest.raises(SnapshotNotFound):
        client.wait(client.send(calls.resume(kernel.kernel_id, snapshot_id=deleted)).operation_id)
    eventually(lambda: changes(events, deleted) == ["added", "removed"])
    killed = client.send(calls.handshake()).pid
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: client.send(calls.handshake()).pid != killed)  # started again by who asks
    assert client.send(calls.undelete(deleted)) == one(deleted)
    assert (one(deleted).deleted_at, client.send(calls.snapshots(deleted=True))) == (None, [])
    assert client.send(calls.verify(deleted)).ok
    client.wait(client.send(calls.resume(kernel.kernel_id, snapshot_id=deleted)).operation_id)
    before = counts(kernel.kernel_id)
    eventually(lambda: counts(kernel.kernel_id) > before)


def test_when_it_is_too_late_it_is_gone_with_its_bytes(
    hasty, owner_of, spec, counts, settings, eventually
):
    events = []
    with owner_of(hasty, on_event=events.append) as owner:
        kernel = hasty.send(calls.launch(owner.owner_id, spec()))
        eventually(lambda: counts(kernel.kernel_id))
        snapshot_id = hasty.wait(hasty.send(calls.save(kernel.kernel_id)).operation_id).snapshot_id
        assert packs(settings.data) > 0
        hasty.send(calls.delete_snapshot(snapshot_id))
        eventually(lambda: packs(settings.data) == 0)
        with pytest.raises(SnapshotNotFound):
            hasty.send(calls.undelete(snapshot_id))
        assert changes(events, snapshot_id) == ["added", "removed"]


def test_the_next_daemon_ends_what_a_killed_one_had_deleted(
    hasty, owner_of, spec, counts, settings, eventually
):
    with owner_of(hasty) as owner:
        kernel = hasty.send(calls.launch(owner.owner_id, spec()))
        eventually(lambda: counts(kernel.kernel_id))
        snapshot_id = hasty.wait(hasty.send(calls.save(kernel.kernel_id)).operation_id).snapshot_id
    pid = hasty.send(calls.handshake()).pid
    hasty.send(calls.delete_snapshot(snapshot_id))
    os.kill(pid, signal.SIGKILL)
    # Any daemon of this data directory will do, whatever its own settings say.
    with Client.connect(settings) as client:
        assert client.send(calls.handshake()).pid != pid
        eventually(lambda: packs(settings.data) == 0)
        assert client.send(calls.snapshots(deleted=True)) == []


def test_a_damaged_snapshot_is_named_when_it_is_verified(client, kernel, save, settings):
    snapshot_id = save(kernel)
    found = client.send(calls.verify(snapshot_id))
    assert (found.ok, found.problems) == (True, [])
    assert found.checked_bytes > MB
    # Two threads may have written one each, and both may have written one chunk, of which only one copy is read.
    path = max((settings.store / "packs").iterdir(), key=lambda pack: pack.stat().st_size)
    data = bytearray(path.read_bytes())
    for offset in range(len(data) // 4, len(data) // 4 * 3, 4096):
        data[offset] ^= 1
    path.write_bytes(data)
    found = client.send(calls.verify(snapshot_id))
    assert not found.ok
    assert path.name in found.problems[0]
    assert client.send(calls.store()).damaged == [snapshot_id]
    with pytest.raises(ObjectCorrupt), client.export(snapshot_id) as (length, pieces):
        assert len(b"".join(pieces)) == length


@pytest.mark.parametrize("cause", [Cause.MANUAL, Cause.SHUTDOWN])
def test_a_kernel_whose_packs_are_gone_is_suspended_and_comes_back(
    client, kernel, save, settings, counts, eventually, cause
):
    first = save(kernel)
    for path in (settings.store / "packs").glob("*.pack"):
        path.unlink()
    save(kernel, "suspend", cause=cause)
    assert client.send(calls.store()).damaged == [first]
    count = counts(kernel.kernel_id)
    client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id)
    eventually(lambda: counts(kernel.kernel_id) > count)


def test_a_large_snapshot_goes_to_another_store(
    client, large, save, one, elsewhere, there, short_dir
):
    # More than HTTP servers take as a body by default.
    snapshot_id = save(large(110 * MB), title="large", pinned=True)
    path = short_dir / "archive.tar"
    with client.export(snapshot_id) as (length, pieces), path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
    assert path.stat().st_size == length > 110 * MB

    def content(end=length):
        with path.open("rb") as file:
            while (left := end - file.tell()) > 0 and (piece := file.read(min(left, MB))):
                yield piece

    with pytest.raises(ArchiveInvalid):
        elsewhere.send(calls.import_archive(content(length // 2)))
    assert elsewhere.send(calls.snapshots()) == []
    assert packs(there.data) == 0
    (brought,) = elsewhere.send(calls.import_archive(content()))
    assert brought == msgspec.structs.replace(one(snapshot_id), kernel_live=False)
    assert elsewhere.send(calls.verify(snapshot_id)).ok
    assert elsewhere.send(calls.store()).stored_bytes == client.send(calls.store()).stored_bytes
    with pytest.raises(SnapshotExists):
        elsewhere.send(calls.import_archive(content()))


def test_whoever_goes_in_the_middle_holds_nothing(
    client, large, save, settings, elsewhere, there, eventually
):
    snapshot_id = save(large(30 * MB))
    with client.export(snapshot_id) as (_, pieces):
        content = b"".join(next(pieces) for _ in range(300))
    eventually(lambda: "the client disconnected during the export" in settings.log_file.read_text())
    folder = there.store / "packs"
    with socket.socket(socket.AF_UNIX) as sender:
        sender.connect(str(starting.target(there, start=False).socket))
        head = b"POST /snapshots/import HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\n"
        sender.sendall(head + content)
        eventually(lambda: folder.exists() and any(folder.iterdir()))
    eventually(lambda: not any(folder.iterdir()))
    assert elsewhere.send(calls.snapshots()) == []
    for one in (settings, there):
        assert "Traceback" not in one.log_file.read_text()


def test_the_store_is_described(client, kernel, save, settings):
    assert client.send(calls.store()).snapshots == 0
    save(kernel, name="a.ipynb")
    second = save(kernel, name="b.ipynb")
    usage = client.send(calls.store())
    assert usage.path == str(settings.store)
    assert usage.snapshots == 2
    # The notebook was renamed.
    [named] = usage.by_name
    assert (named.name, named.snapshots) == ("b.ipynb", 2)
    assert named.exclusive_bytes == named.stored_bytes == usage.stored_bytes
    assert usage.raw_bytes > usage.unique_bytes > usage.stored_bytes > 0
    assert usage.disk_bytes >= usage.stored_bytes
    assert usage.free_bytes > 0
    client.send(calls.delete_snapshot(second))
    assert [named.name for named in client.send(calls.store()).by_name] == ["a.ipynb"]
