"""A deletion is told by the store in which it was made, and only once it is final and no other store of the machine has the snapshot."""

from __future__ import annotations

import pytest

from jupyter_gpuckpt.daemon.kernels.machine import Machine
from jupyter_gpuckpt.daemon.remotes.remote_copies import local_chunks
from jupyter_gpuckpt.daemon.snapshots.removal import Removal
from jupyter_gpuckpt.daemon.snapshots.user_deletions import UserDeletions
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.daemon_settings import Settings
from jupyter_gpuckpt.wire.place import this_place
from jupyter_gpuckpt.wire.retention_policy import RetentionPolicy
from tests.remote.deleting import User
from tests.remote.stores import chunks
from tests.remote.test_fetching import saved
from tests.remote.test_sent_changes import SMALL

#: The undo time of a deletion that a test undoes, and of one that it waits for, in seconds.
LONG, SHORT = 600.0, 0.001


class DaemonUser(User):
    """A user of a machine, whose daemon removes snapshots."""

    def __init__(self, data_dir, share):
        self.machine = Machine(
            Settings(str(data_dir)), this_place(data_dir), local_chunks=local_chunks
        )
        super().__init__(data_dir, self.machine.store, share)

    def removal(self, undo_seconds):
        """Return the daemon's remover."""
        return Removal(
            None,
            self.machine,
            None,
            data_dir=self.data_dir,
            undo_seconds=undo_seconds,
            on_deleted=lambda: None,
            uploading=set,
        )

    def removes(self, name):
        """Delete a snapshot for good."""
        removal = self.removal(SHORT)
        removal._mark_deleted(name)
        while name in {one.info.snapshot_id for one in self.store.deleted()}:
            removal._purge_due()

    def retains_only_the_newest(self):
        """Apply retention."""
        policy = RetentionPolicy(keep_last=1, manual_too=True)
        report = self.removal(LONG)._prune(policy, self.store.snapshots(), (), (), dry_run=False)
        return [one.snapshot.snapshot_id for one in report.verdicts if one.removed]


@pytest.fixture
def user(tmp_path):
    one = DaemonUser(tmp_path / "one", tmp_path / "share")
    yield one
    one.machine.close()


@pytest.fixture
def second(user):
    """Return the store of another daemon with the same data directory, which has the first snapshot, too."""
    with LocalStore(user.data_dir / "store-2") as store:
        saved(store, "s1", *chunks(1, 2, SMALL), kernel_id="k1", created=1.0)
        yield store


@pytest.mark.parametrize("undo_seconds", [SHORT, 0.0])
def test_what_the_daemon_has_deleted_for_good_is_told(user, undo_seconds):
    removal = user.removal(undo_seconds)
    removal._mark_deleted("s1")
    while not user.store.stubs.is_deleted("s1"):
        removal._purge_due()
    assert list(user.waiting()) == ["s1"]
    user.tell()
    assert (user.listed(), user.waiting()) == ([], {})


@pytest.mark.parametrize("undo_seconds", [SHORT, 0.0])
@pytest.mark.parametrize("settles_later", [True, False])
def test_a_deletion_is_told_although_the_sender_looked_before_the_snapshot_was_marked(
    user, monkeypatch, undo_seconds, settles_later
):
    """Delete a snapshot that the store still lists when the sender looks, as it does after a deletion was undone."""
    mark, file = user.store.mark_deleted, UserDeletions(user.state_dir)
    seen = {}

    def marked(*given):
        if settles_later:
            seen.update(file.all())
        else:
            user.tell()
        return mark(*given)

    monkeypatch.setattr(user.store, "mark_deleted", marked)
    removal = user.removal(undo_seconds)
    removal._mark_deleted("s1")
    file.settle(seen)
    while not user.store.stubs.is_deleted("s1"):
        removal._purge_due()
    user.tell()
    assert (user.listed(), user.waiting()) == ([], {})


@pytest.mark.parametrize("is_undone", [True, False])
def test_what_retention_removes_after_an_undone_deletion_stays_there(user, is_undone):
    """The sender of changes does not look in between, because an upload runs for long."""
    user.add(3, "k1")
    removal = user.removal(LONG)
    if is_undone:
        removal._mark_deleted("s1")
        removal._undelete("s1")
        assert user.waiting() == {}
    else:
        # It was fetched again after its deletion became final.
        user.removes("s1")
        saved(user.store, "s1", *chunks(1, 2, SMALL), kernel_id="k1", created=1.0)
        assert list(user.waiting()) == ["s1"]
    assert user.retains_only_the_newest() == ["s1"]
    user.tell()
    assert user.listed() == ["s1", "s3"]


def test_an_undone_deletion_whose_record_stayed_is_not_told(user):
    """The daemon was killed between the undoing and its record."""
    user.removal(LONG)._mark_deleted("s1")
    user.store.undelete("s1")
    user.store.delete("s1")
    user.tell()
    assert (user.listed(), list(user.waiting())) == (["s1"], ["s1"])


def test_a_deletion_that_the_next_daemon_completes_is_told(user):
    user.removal(SHORT)._mark_deleted("s1")
    while not user.removal(LONG)._purge_due():
        pass
    user.tell()
    assert user.listed() == []


@pytest.mark.parametrize("undo_seconds", [SHORT, 0.0])
def test_a_deletion_that_no_user_requested_is_not_told(user, undo_seconds):
    removal = user.removal(LONG)
    removal._mark_deleted("s1")
    user.store.undelete("s1")  # the record stayed
    removal = user.removal(undo_seconds)
    removal._mark_deleted("s1", here_only=True)
    while not user.store.stubs.is_deleted("s1"):
        removal._purge_due()
    user.tell()
    assert (user.listed(), user.waiting()) == (["s1"], {})


def test_a_snapshot_that_cannot_be_read_stays_there_and_the_log_says_so(user, caplog):
    [manifest] = (user.store.root / "manifests").glob("s1*")
    manifest.write_bytes(b"damaged")
    user.removal(LONG)._mark_deleted("s1")
    assert user.store.stubs.is_deleted("s1")
    assert "no remote is told that snapshot s1 was deleted: its manifest" in caplog.text
    user.tell()
    assert user.listed() == ["s1"]


def test_a_deletion_in_another_store_is_not_told_here(user, second):
    second_identity = second.stubs.identity()
    assert second_identity != user.store.stubs.identity()
    user.removes("s1")
    of_second = user.state()._replace(
        stubs={},
        store=second_identity,
        is_deleted=lambda name: True,
        is_listed=lambda name: True,
        is_elsewhere=lambda name: False,
    )
    user.state = lambda *needed: of_second
    user.tell()
    assert (user.listed(), list(user.waiting())) == (["s1"], ["s1"])


@pytest.mark.parametrize("what", ["manifest", "stub", "not mounted", "unreadable"])
def test_what_another_store_of_this_machine_may_have_is_not_told(user, second, what, monkeypatch):
    folder = second.root / "manifests"
    [manifest] = folder.glob("s1*")
    user.removes("s1")
    aside = manifest
    match what:
        case "stub":
            aside = manifest.rename(manifest.with_suffix(".stub"))
        case "not mounted":
            aside = folder.rename(second.root / "aside") / manifest.name
        case "unreadable":
            aside = folder.rename(second.root / "aside") / manifest.name
            folder.symlink_to(folder)
    user.tell()
    assert (user.listed(), list(user.waiting())) == (["s1"], ["s1"])
    if folder.is_symlink():
        folder.unlink()
    if aside.parent != folder:
        aside.parent.rename(folder)
        aside = folder / aside.name
    aside.unlink()
    user.tell()
    assert (user.listed(), user.waiting()) == ([], {})


def test_a_copy_on_which_another_store_relied_is_not_released_by_a_deletion_here(user, second):
    """The other store is not where it was, so it is not known that it has a stub."""
    user.make_stub(1)
    [stub] = (user.store.root / "manifests").glob("s1*.stub")
    told = user.tell()
    assert told["s1"].store == user.store.stubs.identity()
    identity = second.stubs.identity()
    user.machine.close()
    second.close()
    user.store.root.rename(user.data_dir / "elsewhere")
    second.root.rename(user.data_dir / "store")
    user.machine = Machine(
        Settings(str(user.data_dir)), this_place(user.data_dir), local_chunks=local_chunks
    )
    user.store = user.machine.store
    assert user.store.stubs.identity() == identity
    user.removes("s1")
    user.tell()
    assert user.listed() == ["s1"]
    assert list(user.entry(1).relied_on_by) != []
    assert "relies on it" in user.waiting()["s1"]
    assert stub.name
