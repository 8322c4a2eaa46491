"""What a machine tells a remote about its snapshots: never too little, and without keeping uploads away."""

from __future__ import annotations

import msgspec
import pytest

from jupyter_gpuckpt.daemon import amending, far_copies, remote_keys
from jupyter_gpuckpt.daemon.upload_queue import RemoteQueue, Uploaded
from jupyter_gpuckpt.errors import AccessDenied, FarObjectInvalid, StoreUnavailable
from jupyter_gpuckpt.remote_records import Remote
from jupyter_gpuckpt.store.far.about import Amendment, about, told
from jupyter_gpuckpt.store.far.retries import Retries
from jupyter_gpuckpt.store.far.sessions import Sessions
from tests.far.installations import store_of
from tests.far.joined import join
from tests.far.stores import chunks
from tests.far.test_fetching import saved

#: The number of bytes of a chunk.
SMALL = 5_000


class Told:
    """A machine that has uploaded two snapshots, each of a kernel of its own, and that tells their remote of changes."""

    def __init__(self, data_dir, store, share):
        self.data_dir, self.store = data_dir, store
        self.joined = join(data_dir, Remote("share", f"file://{share}"))
        for number in (1, 2):
            content = chunks(number, 2, SMALL)
            saved(store, f"s{number}", *content, kernel_id=f"k{number}", created=float(number))
            self.joined.upload(store, f"s{number}")

    @property
    def opened(self):
        """Return the remote, without retries."""
        return remote_keys.opened(self.data_dir, self.joined.remote, Retries(attempts=1))

    def infos(self):
        """Return the snapshots here, by id."""
        return {one.snapshot_id: one for one in self.store.snapshots()}

    def entry(self, number):
        """Return the remote's entry of a snapshot."""
        opened = self.opened
        sessions = Sessions(opened.bucket, opened.keyring.seal, opened.seen)
        [found] = sessions.get(f"k{number}").listed
        return found

    def tell_of_pins(self):
        """Pin both snapshots and tell the remote."""
        changes = []
        for name in ("s1", "s2"):
            before = told(self.infos()[name])
            info = self.store.annotate(name, {"pinned": True})
            changes.append(Amendment(name, [info.kernel_id], before, told(info), about(info)))
        return amending.amend(self.data_dir, self.opened, changes)


@pytest.fixture
def one(tmp_path):
    with store_of(tmp_path / "one") as store:
        yield Told(tmp_path / "one", store, tmp_path / "share")


def broken(tmp_path):
    """Put something into the place of a session that no request can read; return what puts the session back."""
    path, aside = tmp_path / "share/sessions/k1", tmp_path / "aside"
    path.rename(aside)
    path.symlink_to(path)

    def mend():
        path.unlink()
        aside.rename(path)

    return mend


def test_a_session_that_does_not_answer_keeps_no_other_pin_away(one, tmp_path):
    mend = broken(tmp_path)
    done = one.tell_of_pins()
    assert (done.sessions, done.gone, done.later) == ({"s2": "k2"}, [], ["s1"])
    assert done.error.code == StoreUnavailable.code
    assert one.entry(2).about.pinned
    with pytest.raises(StoreUnavailable):
        far_copies.rely_on(one.data_dir, one.opened, one.infos()["s1"])
    mend()
    assert not one.entry(1).about.pinned
    assert one.tell_of_pins().later == []


def test_a_session_that_cannot_be_read_is_not_relied_on(one, monkeypatch):
    def damaged(*_):
        raise FarObjectInvalid("sessions/k1 is damaged.")

    monkeypatch.setattr(Sessions, "amend", damaged)
    with pytest.raises(Exception, match="does not list"):
        far_copies.rely_on(one.data_dir, one.opened, one.infos()["s1"])


def test_changes_that_cannot_be_told_keep_no_upload_away(one):
    found, change = one.infos(), Amendment("s2", ["k2"], None, told(one.infos()["s2"]))
    for error in (StoreUnavailable("no answer"), AccessDenied("not this one")):
        queue = RemoteQueue(one.joined.remote, Uploaded(snapshots={"s2": 1.0}))
        queue.amendments = [change]
        assert queue.amends(found)
        assert queue.amending_failed(error)
        assert (queue.amends(found), queue.next(found)) == (False, "s1")
        assert queue.view(found, "", None).trouble.code == error.code
        # When it is tried again, uploads go first.
        queue._pauses_of_changes._not_before = 0.0
        assert (queue.amends(found), queue.next(found)) == (False, "s1")
        queue.succeeded("s1", found)
        assert (queue.amends(found), queue.next(found)) == (True, "")
        queue.told()
        assert (queue.view(found, "", None).trouble, queue.seconds_left(found)) == (None, None)
    assert msgspec.structs.asdict(queue.uploaded)["snapshots"].keys() == {"s1", "s2"}
