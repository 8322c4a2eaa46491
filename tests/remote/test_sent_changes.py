"""What a machine tells a remote about its snapshots: never too little, and without keeping uploads away."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial

import msgspec
import pytest

from jupyter_gpuckpt.client import this_owner
from jupyter_gpuckpt.daemon.kernels.kernel_records import KernelRecord
from jupyter_gpuckpt.daemon.remotes import amending, listed_checks, remote_copies, remote_keys
from jupyter_gpuckpt.daemon.remotes.amending import LocalState
from jupyter_gpuckpt.daemon.remotes.change_sender import ChangeSender, SentChanges
from jupyter_gpuckpt.daemon.remotes.upload_queue import RemoteQueue, Uploaded
from jupyter_gpuckpt.errors import AccessDenied, RemoteObjectInvalid, StoreUnavailable
from jupyter_gpuckpt.remote.listed_facts import Amendment, about, told
from jupyter_gpuckpt.remote.remote_list import state_folder
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from jupyter_gpuckpt.remote.retries import Retries
from jupyter_gpuckpt.store import stores
from jupyter_gpuckpt.store.stub_files import Stub
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from jupyter_gpuckpt.wire.protocol import OwnerKind
from jupyter_gpuckpt.wire.remote_records import Remote
from jupyter_gpuckpt.wire.states import KernelState
from tests.remote.installations import store_of
from tests.remote.joined import join
from tests.remote.stores import chunks
from tests.remote.test_fetching import saved
from tests.remote.test_near_copy import Near

#: How long another process may take, in seconds.
PATIENCE = 300
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

    def state(self, *needed):
        """Return what the remote is to be told of."""
        is_elsewhere = stores.finder_elsewhere(self.data_dir / "store", self.store)
        return LocalState.of(self.store, needed, is_elsewhere)

    def tell(self, *needed, opened=None):
        """Tell the remote what has changed; return what is on record of it then."""
        sender = ChangeSender(self.data_dir, "share")
        there = list(self.infos().values())
        sender.forget_deleted(there, self.state())
        send = partial(amending.amend, self.data_dir, opened or self.opened)
        assert sender.tell(there, lambda: self.state(*needed), send).error is None
        return SentChanges(state_folder(self.data_dir, "share")).all()

    def make_stub(self, number):
        """Make a stub of a snapshot, as the near copy does."""
        info = self.infos()[f"s{number}"]
        remote_copies.rely_on(self.data_dir, self.opened, info, self.store.stubs.identity())
        assert self.store.stubs.make(info.snapshot_id, Stub("share", []))

    def file(self, suffix):
        """Return a file of the first snapshot in the store."""
        [found] = (self.data_dir / "store/manifests").glob(f"s1{suffix}")
        return found

    def infos(self):
        """Return the snapshots here, by id."""
        return {one.snapshot_id: one for one in self.store.snapshots()}

    def entry(self, number):
        """Return the remote's entry of a snapshot."""
        opened = self.opened
        sessions = Sessions(opened.bucket, opened.key.seal, opened.seen)
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
        one.make_stub(1)
    mend()
    assert not one.entry(1).about.pinned
    assert one.tell_of_pins().later == []


def test_a_session_that_cannot_be_read_is_not_relied_on(one, monkeypatch):
    def damaged(*_):
        raise RemoteObjectInvalid("sessions/k1 is damaged.")

    monkeypatch.setattr(Sessions, "amend", damaged)
    with pytest.raises(Exception, match="does not list"):
        one.make_stub(1)


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


def test_only_a_whole_or_a_deleted_snapshot_is_no_longer_relied_on(one):
    machine = remote_keys.machine_id(one.data_dir)
    one.make_stub(1)
    for suffix in (".stub", ".manifest"):
        # Nothing is known of it if its stub or its manifest cannot be read for a moment.
        path = one.file(suffix)
        content = path.read_bytes()
        path.write_bytes(b"damaged")
        assert ("s1" in one.infos()) == (suffix == ".stub")
        assert one.tell()["s1"].relied_on_in == "k1"
        assert machine in one.entry(1).relied_on_by
        path.write_bytes(content)
    one.store.mark_deleted("s1", 60.0)
    one.tell()
    assert machine in one.entry(1).relied_on_by
    one.store.delete("s1")
    assert "s1" not in one.tell()
    assert not one.entry(1).relied_on_by


def test_a_store_that_is_not_there_needs_what_it_needed(one):
    one.make_stub(1)
    folder = one.data_dir / "store/manifests"
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.mkdir()
    assert one.infos() == {}
    assert one.tell()["s1"].relied_on_in == "k1"
    assert one.entry(1).relied_on_by
    shutil.rmtree(folder)
    aside.rename(folder)
    one.store.delete("s1")
    one.tell()
    assert not one.entry(1).relied_on_by


def test_what_was_told_of_deleted_snapshots_is_forgotten(one):
    assert one.tell().keys() == {"s1", "s2"}
    one.store.delete("s1")
    assert one.tell().keys() == {"s2"}


def test_what_a_suspended_kernel_needs_is_told_unless_it_is_the_newest(one):
    content = chunks(3, 2, SMALL)
    saved(one.store, "s3", *content, kernel_id="k1", created=3.0)
    one.joined.upload(one.store, "s3")
    told = one.tell("s1", "s2", "s3")
    assert {name: bool(now.relied_on_in) for name, now in told.items()} == {
        "s1": True,
        "s2": False,
        "s3": False,
    }
    opened = one.opened
    sessions = Sessions(opened.bucket, opened.key.seal, opened.seen)
    assert [bool(found.relied_on_by) for found in sessions.get("k1").listed] == [False, True]
    assert not any(now.relied_on_in for now in one.tell("s2").values())
    assert not any(found.relied_on_by for found in sessions.get("k1").listed)


def test_an_interrupted_eviction_renames_nothing_there(one, monkeypatch):
    sessions = Sessions(one.opened.bucket, one.opened.key.seal, one.opened.seen)
    info = one.store.annotate("s1", {"title": "Of this machine"})
    named = msgspec.structs.replace(told(info), title="Of another machine")
    sessions.amend("k1", {"s1": Amendment("s1", ["k1"], told(info), named, about(info))}, ("m", ""))
    with monkeypatch.context() as patched:
        patched.setattr(amending, "amend", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            one.make_stub(1)
    one.store.annotate("s1", {"pinned": True})
    one.tell()
    assert (one.entry(1).title, one.entry(1).about.pinned) == ("Of another machine", True)


def test_a_pin_is_told_that_a_snapshot_has_before_it_is_known_to_be_there(tmp_path):
    """A snapshot that was fetched may be pinned before its fetch is on record."""
    share = tmp_path / "share"

    async def test():
        machine = Near(tmp_path / "one", Remote("share", f"file://{share}"))
        try:
            machine.save(1)
            machine.store.annotate("s1", {"pinned": True})
            await machine.note(1)
            await machine.uploads.start()
            opened = remote_keys.opened(machine.data_dir, machine.joined.remote)
            sessions = Sessions(opened.bucket, opened.key.seal, opened.seen)
            async with asyncio.timeout(PATIENCE):
                while not sessions.get("k1").listed[0].about.pinned:  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(0.05)
        finally:
            await machine.at_remote.close()
            await machine.uploads.close()
            machine.machine.close()

    asyncio.run(test())


def test_what_the_remote_does_not_say_any_more_is_sent_again(one):
    one.make_stub(1)
    before = one.tell()
    sessions = Sessions(one.opened.bucket, one.opened.key.seal, one.opened.seen)

    def without(session):
        lost = [msgspec.structs.replace(found, relied_on_by={}) for found in session.snapshots]
        return msgspec.structs.replace(session, snapshots=lost)

    for _ in range(2):
        infos = list(one.infos().values())
        found = listed_checks.listed(one.data_dir, one.joined.remote, infos)
        assert found == listed_checks.Listed(frozenset({"s1", "s2"}))
        assert one.tell() == before
        assert one.entry(1).relied_on_by
        sessions.rewrite("k1", without)
        assert not one.entry(1).relied_on_by


def test_the_uploads_tell_what_a_suspended_kernel_needs(tmp_path):
    """The kernel is a branch that was suspended at an older snapshot of another kernel."""
    share = tmp_path / "share"

    async def test():
        machine = Near(tmp_path / "one", Remote("share", f"file://{share}"))
        try:
            for number in (1, 2):
                content = chunks(number, 2, SMALL)
                name = f"s{number}"
                saved(machine.store, name, *content, kernel_id="k", created=float(number))
                machine.joined.upload(machine.store, name)
            await machine.note(1, 2)
            record = KernelRecord(
                LaunchSpec("branch", [], {}, "/", ""),
                this_owner(OwnerKind.SERVER, root_dir="/tmp"),
                machine.place,
                KernelState.SUSPENDED,
                snapshot_id="s1",
            )
            machine.records.write("branch", msgspec.json.encode(record))
            await machine.uploads.start()
            opened = remote_keys.opened(machine.data_dir, machine.joined.remote)
            sessions = Sessions(opened.bucket, opened.key.seal, opened.seen)
            async with asyncio.timeout(PATIENCE):
                while not sessions.get("k").listed[1].relied_on_by:  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(0.05)
            assert not sessions.get("k").listed[0].relied_on_by
        finally:
            await machine.at_remote.close()
            await machine.uploads.close()
            machine.machine.close()

    asyncio.run(test())
