"""What remotes keep although a user has deleted it here, what they are asked again, and what the log says of it."""

from __future__ import annotations

import time

import msgspec
import pytest

from jupyter_gpuckpt.daemon.remotes import amending
from jupyter_gpuckpt.daemon.remotes.change_sender import ChangeSender
from jupyter_gpuckpt.daemon.remotes.leases import KernelLease, LeaseFile
from tests.remote.deleting import User
from tests.remote.installations import store_of
from tests.remote.stores import chunks
from tests.remote.test_fetching import saved
from tests.remote.test_sent_changes import SMALL


@pytest.fixture
def user(tmp_path):
    with store_of(tmp_path / "one") as store:
        yield User(tmp_path / "one", store, tmp_path / "share")


def _change(user, session="k1", **changes):
    """Change a remote session, or with `each_...` its entries."""
    of_each = {name[5:]: one for name, one in changes.items() if name.startswith("each_")}
    of_all = {name: one for name, one in changes.items() if not name.startswith("each_")}

    def change(found):
        entries = [msgspec.structs.replace(one, **of_each) for one in found.snapshots]
        return msgspec.structs.replace(found, snapshots=entries, **of_all)

    user.sessions.change(session, change)


def test_a_session_that_was_moved_there_keeps_its_only_snapshot_until_it_is_taken(user):
    _change(user, moved_at=5.0)
    user.deletes("s1")
    user.tell()
    assert user.listed() == ["s1"]
    assert user.waiting() == {"s1": "its session was moved there for another machine"}
    _change(user, moved_at=0.0)
    user.after_a_day()
    user.tell()
    assert (user.listed(), user.waiting()) == ([], {})


def test_a_remote_that_only_another_machine_may_write_to_is_not_told_and_the_log_says_so(
    user, caplog
):
    user.deletes("s1")
    opened = user.opened
    public = msgspec.structs.replace(opened.key.public, only_machine="another")
    key = opened.key._replace(public=public)
    with caplog.at_level("INFO"):
        user.tell(opened=opened._replace(key=key))
    assert (user.listed(), user.waiting()) == (["s1"], {})
    assert "only another machine may write to this remote" in caplog.text


def test_one_session_that_may_keep_it_no_longer_is_asked_again_whatever_others_say(user):
    """The branch was uploaded by another machine alone; what is in the other session is pinned there."""
    LeaseFile(user.state_dir).note("k1", KernelLease("branch", "here", 1))
    entry, facts = user.entry(1), user.sessions.get("k1").facts
    of_branch = msgspec.structs.replace(facts, session_id="branch")
    name = entry.manifest[:-1] + ("0" if entry.manifest[-1] != "0" else "1")
    theirs = msgspec.structs.replace(entry, manifest=name, machine_id="two")
    user.sessions.add(of_branch, theirs)
    user.is_pinned_there("s1")
    for order in (["k1", "branch"], ["branch", "k1"]):
        user.deletes("s1") if not user.waiting() else user.after_a_day()
        sender = ChangeSender(user.data_dir, "share")
        [change] = sender.changes([], user.state())
        done = amending.amend(
            user.data_dir, user.opened, [msgspec.structs.replace(change, sessions=order)]
        )
        assert done.kept["s1"].waits


def test_only_what_is_deleted_there_is_said_to_be(user, caplog):
    saved(user.store, "s3", *chunks(3, 2, SMALL), kernel_id="k1", created=3.0)
    with caplog.at_level("INFO"):
        user.deletes("s3")
        user.tell()
        assert "as well" not in caplog.text
        user.deletes("s1")
        user.tell()
    assert "snapshot s1 is deleted in remote share as well" in caplog.text


def test_the_time_of_a_deletion_is_that_of_the_remote(user):
    remote = user.opened.remote
    found = msgspec.structs.replace(remote.capabilities, clock_ahead_seconds=5_000.0)
    user.deletes("s1")
    ahead = msgspec.structs.replace(remote, capabilities=found)
    user.tell(opened=user.opened._replace(remote=ahead))
    [one] = user.sessions.get("k1").snapshots
    assert one.deleted_at > time.time() + 4_000


def test_a_deletion_that_could_not_be_told_is_told_after_a_day(user):
    user.deletes("s1")
    sender = ChangeSender(user.data_dir, "share")
    changes = sender.changes([], user.state())
    sender.refuse(changes, "the reason")
    assert sender.changes([], user.state()) == []
    assert user.waiting() == {"s1": "the reason"}
    user.after_a_day()
    assert sender.changes([], user.state()) == changes
    user.tell()
    assert user.listed() == []
