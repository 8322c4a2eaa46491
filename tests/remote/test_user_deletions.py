"""What a user deletes on one machine is deleted in remotes as well, unless another machine still needs it there."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import msgspec
import pytest

from jupyter_gpuckpt.daemon.remotes import remote_keys
from jupyter_gpuckpt.daemon.remotes.change_sender import SentChanges
from jupyter_gpuckpt.daemon.remotes.leases import KernelLease, LeaseFile
from jupyter_gpuckpt.daemon.snapshots import user_deletions
from jupyter_gpuckpt.daemon.snapshots.user_deletions import UserDeletion, UserDeletions
from jupyter_gpuckpt.remote import upload_progress
from jupyter_gpuckpt.remote.fetch import fetch
from jupyter_gpuckpt.remote.remote_list import state_folder
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from jupyter_gpuckpt.remote.upload import Uploader
from tests.remote.deleting import User
from tests.remote.installations import store_of
from tests.remote.joined import join
from tests.remote.stores import chunks
from tests.remote.test_fetching import Here, saved
from tests.remote.test_sent_changes import SMALL

DAY = timedelta(days=1)


@pytest.fixture
def user(tmp_path):
    with store_of(tmp_path / "one") as store:
        yield User(tmp_path / "one", store, tmp_path / "share")


@pytest.fixture
def other(tmp_path, user):
    """Return the data directory and the store of another machine with the same remote."""
    joined = join(tmp_path / "two", user.joined.remote, user.joined.line)
    with store_of(tmp_path / "two") as store:
        yield joined, store


def fetched(joined, store, name, session="k1"):
    """Fetch a snapshot to another machine."""
    opened = remote_keys.opened(joined.data_dir, joined.remote)
    sessions = Sessions(opened.bucket, opened.key.seal, opened.seen)
    [entry] = [one for one in sessions.get(session).listed if one.snapshot_id == name]
    return lambda: fetch(opened.bucket, opened.key.seal, entry, store)


def test_a_deleted_session_goes_from_the_remote_and_its_packs_follow(user, tmp_path):
    user.add(3, "k1")
    user.deletes("s1", "s3")
    assert user.listed() == ["s1", "s3"]  # nothing is told before the next look
    user.tell()
    assert user.listed() == []
    assert (user.listed("k2"), user.waiting()) == (["s2"], {})
    packs = len(list((tmp_path / "share/packs").iterdir()))
    user.collects()
    assert user.sessions.get("k1").snapshots == []
    user.collects()
    assert len(list((tmp_path / "share/packs").iterdir())) == packs - 2
    assert user.sessions.get("k2").listed


def test_what_is_only_retained_no_longer_here_stays_there(user):
    user.store.delete("s1")
    user.tell()
    assert user.listed() == ["s1"]


def test_a_deletion_that_can_be_undone_is_not_told_yet(user):
    [info] = [one for one in user.store.snapshots() if one.snapshot_id == "s1"]
    user_deletions.note_in_all(user.data_dir, info, time.time(), user.store.stubs.identity())
    user.store.mark_deleted("s1", 600.0)
    user.tell()
    assert (user.listed(), list(user.waiting())) == (["s1"], ["s1"])
    user.store.undelete("s1")
    user.tell()
    assert (user.listed(), user.waiting()) == (["s1"], {})
    # What retention removes later is no deletion by a user.
    user.store.delete("s1")
    user.tell()
    assert user.listed() == ["s1"]


def test_a_remote_that_does_not_answer_is_told_later(user, tmp_path):
    user.deletes("s1")
    share, aside = tmp_path / "share/sessions/k1", tmp_path / "aside"
    share.rename(aside)
    share.symlink_to(share)
    with pytest.raises(AssertionError):
        user.tell()
    assert list(user.waiting()) == ["s1"]
    share.unlink()
    aside.rename(share)
    user.tell()
    assert (user.listed(), user.waiting()) == ([], {})


def test_a_fetch_that_has_begun_ends_although_its_snapshot_is_deleted(user, other):
    joined, store = other
    bring = fetched(joined, store, "s1")
    user.deletes("s1")
    user.tell()
    for _ in range(2):
        user.collects(DAY)  # the day counts from the deletion
    bring()
    store.verify("s1")


def test_what_another_machine_relies_on_stays_until_it_does_not(user):
    def rely(session):
        [one] = session.snapshots
        there = msgspec.structs.replace(one, relied_on_by={"two": "host of two"})
        return msgspec.structs.replace(session, snapshots=[there])

    def release(session):
        [one] = session.snapshots
        left = msgspec.structs.replace(one, relied_on_by={})
        return msgspec.structs.replace(session, snapshots=[left])

    user.sessions.change("k1", rely)
    user.deletes("s1")
    user.tell()
    assert user.listed() == ["s1"]
    assert user.waiting() == {"s1": "machine host of two relies on it"}
    user.sessions.change("k1", release)
    user.tell()
    assert user.listed() == ["s1"]  # it is asked again after a day
    user.after_a_day()
    user.tell()
    assert (user.listed(), user.waiting()) == ([], {})


def test_what_this_machine_had_only_there_is_deleted_with_its_claim(user):
    user.make_stub(1)
    assert user.entry(1).relied_on_by
    user.deletes("s1")
    user.tell()
    assert (user.listed(), user.waiting()) == ([], {})


def test_what_is_pinned_there_stays_unless_its_pin_here_was_ended_before(user):
    for number in (3, 4):
        user.add(number, "k1", pinned=True)
    user.tell()
    user.is_pinned_there("s1")
    # Another machine may have pinned the third as well: the entry does not say that.
    user.store.annotate("s4", {"pinned": False})
    user.deletes("s1", "s3", "s4")
    user.tell()
    assert user.listed() == ["s1", "s3"]
    assert user.waiting() == dict.fromkeys(["s1", "s3"], "it is pinned there")


def test_the_last_change_of_a_pin_counts_and_another_change_leaves_it(user):
    user.is_pinned_there("s1")
    user.store.annotate("s1", {"title": "results"})
    user.tell()
    assert (user.entry(1).title, user.entry(1).about.pinned) == ("results", True)
    assert not user.infos()["s1"].pinned
    for pinned in (True, False):
        user.store.annotate("s1", {"pinned": pinned})
        user.tell()
        assert user.entry(1).about.pinned is pinned


@pytest.mark.parametrize("is_held", [True, False])
def test_what_another_machine_continued_from_stays_while_it_is_the_newest(user, is_held):
    user.add(3, "k1")
    LeaseFile(user.state_dir).note("k1", KernelLease("k1", "here", 1))
    user.is_taken_by("here")
    user.is_taken_by("there")
    if not is_held:
        user.sessions.change("k1", lambda one: msgspec.structs.replace(one, lease=None))
    user.deletes("s1", "s3")
    user.tell()
    assert user.listed() == ["s3"]  # an older one is not needed to continue
    assert user.waiting() == {"s3": "another machine has continued from it"}
    # The other machine uploads what it has saved since.
    with store_of(user.data_dir.parent / "three") as store:
        joined = join(user.data_dir.parent / "three", user.joined.remote, user.joined.line)
        saved(store, "s4", *chunks(4, 2, SMALL), kernel_id="k1", created=4.0)
        joined.upload(store, "s4")
    user.after_a_day()
    user.tell()
    assert (user.listed(), user.waiting()) == (["s4"], {})


def test_a_machine_that_ran_the_session_last_may_delete_its_newest(user):
    LeaseFile(user.state_dir).note("k1", KernelLease("k1", "here", 1))
    user.is_taken_by("here")
    user.deletes("s1")
    user.tell()
    assert user.listed() == []


def test_a_copy_that_was_only_fetched_is_deleted_here_only(user, other):
    joined, store = other
    fetched(joined, store, "s1")()
    two = User.__new__(User)
    two.data_dir, two.store, two.joined = joined.data_dir, store, joined
    two.deletes("s1")
    two.tell()
    assert user.listed() == ["s1"]
    assert UserDeletions(state_folder(joined.data_dir, "share")).all() == {}


def test_an_upload_that_was_stopped_cannot_list_a_deleted_snapshot_any_more(user):
    content = chunks(3, 2, SMALL)
    saved(user.store, "s3", *content, kernel_id="k1", created=3.0)
    # It stops exactly while its last request is on its way.
    bucket = user.opened.bucket
    version = bucket.get("sessions/k1").version
    upload_progress.Journal(upload_progress.path_of(user.state_dir, "s3"), b"s").add_manifest(
        "manifests/s3", "k1"
    )
    user.deletes("s3")
    user.tell()
    assert user.waiting() == {}
    assert not bucket.swap("sessions/k1", bytes(100), version)


def test_an_upload_that_was_given_up_can_list_nothing_any_more(user):
    """The deletion cancels the upload at once; the remote learns of the deletion much later."""
    opened = user.opened
    uploader = Uploader(
        opened.bucket, opened.key, opened.seen, state=user.state_dir, machine_id="one"
    )
    path = upload_progress.path_of(user.state_dir, "s3")
    begun = upload_progress.Journal(path, opened.key.public.store_id)
    begun.add_manifest("manifests/s3-" + "0" * 32, "k1")
    version = opened.bucket.get("sessions/k1").version
    uploader.give_up("s3")
    assert not path.exists()
    assert not opened.bucket.swap("sessions/k1", bytes(100), version)
    assert user.listed() == ["s1"]


def test_an_upload_that_listed_a_snapshot_just_before_it_was_deleted_is_found(user):
    user.deletes("s1")
    assert user.sessions.lists("k1", user.entry(1).manifest)
    user.tell()  # nothing here recorded that the upload ended
    assert user.listed() == []


def test_it_is_deleted_in_all_sessions_that_list_it(user):
    """A branch lists what was uploaded again after the session was lost."""
    LeaseFile(user.state_dir).note("k1", KernelLease("branch", "here", 1))
    entry, facts = user.entry(1), user.sessions.get("k1").facts
    of_branch = msgspec.structs.replace(facts, session_id="branch")
    name = entry.manifest[:-1] + ("0" if entry.manifest[-1] != "0" else "1")
    user.sessions.add(of_branch, msgspec.structs.replace(entry, manifest=name))
    user.is_taken_by("there")
    user.deletes("s1")
    user.tell()
    assert user.listed("branch") == []
    assert user.listed() == ["s1"]
    assert user.waiting() == {"s1": "another machine has continued from it"}


def test_a_session_that_cannot_be_read_is_asked_again(user, tmp_path):
    (tmp_path / "share/sessions/k1").write_bytes(b"damaged")
    user.deletes("s1")
    user.tell()
    assert list(user.waiting()) == ["s1"]


def test_a_damaged_record_deletes_nothing(user):
    user.deletes("s1")
    (user.state_dir / "deletions.json").write_bytes(b"{")
    user.tell()
    assert user.listed() == ["s1"]


def test_a_deletion_repeated_meanwhile_is_not_forgotten(user):
    file = UserDeletions(user.state_dir)
    file.note({"s1": UserDeletion("k1", 1.0)})
    before = file.all()
    file.note({"s1": UserDeletion("k1", 2.0)})
    file.settle(before)
    assert file.all() == {"s1": UserDeletion("k1", 2.0)}
    file.postpone({"s1": UserDeletion("k1", 1.0, tried_at=5.0)})
    assert file.all() == {"s1": UserDeletion("k1", 2.0)}
    file.postpone({"s1": UserDeletion("k1", 2.0, tried_at=5.0)})
    assert file.all()["s1"].tried_at == 5.0
    file.settle(file.all())
    assert file.all() == {}
    # What was forgotten meanwhile does not come back.
    file.postpone({"s1": UserDeletion("k1", 2.0)})
    assert file.all() == {}


def test_a_deleted_session_is_listed_no_longer_and_a_fetch_ends_no_pin(tmp_path):
    async def test():
        b = Here(tmp_path / "two")
        try:
            listing = await b.at_remote.sessions("share")
            assert [one.session_id for one in listing.sessions] == ["k2"]
            fetched = await b.fetched("share", "s2", force=True)
            assert fetched.error is None
            [info] = b.store.snapshots()
            assert (info.snapshot_id, info.pinned) == ("s2", False)
            told = SentChanges(state_folder(b.data_dir, "share"))
            async with asyncio.timeout(60):
                while "s2" not in told.all():  # noqa: ASYNC110 - of a thread
                    await asyncio.sleep(0.01)
            assert not told.all()["s2"].pinned
            assert a.entry(2).about.pinned
        finally:
            await b.at_remote.close()
            b.leases.close()
            await b.uploads.close()
            b.machine.close()

    with store_of(tmp_path / "one") as store:
        a = User(tmp_path / "one", store, tmp_path / "share")
        store.annotate("s2", {"pinned": True})
        a.deletes("s1")
        a.tell()
        join(tmp_path / "two", a.joined.remote, a.joined.line)
        asyncio.run(test())
