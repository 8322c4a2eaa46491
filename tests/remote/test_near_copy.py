"""What of the store's snapshots stays on this disk when remotes have them, and how the rest comes back."""

from __future__ import annotations

import asyncio
import shutil
import threading

import msgspec
import pytest

from jupyter_gpuckpt.client import this_owner
from jupyter_gpuckpt.daemon.kernels.kernel_records import KernelRecord, Records
from jupyter_gpuckpt.daemon.remotes import remote_copies, remote_keys
from jupyter_gpuckpt.daemon.remotes.near_copy import NearCopy
from jupyter_gpuckpt.daemon.service import SnapshotLists
from jupyter_gpuckpt.daemon.snapshots.transfers import Transfers
from jupyter_gpuckpt.errors import (
    OperationCancelled,
    RemoteNotFound,
    RemoteObjectMissing,
    SnapshotInRemoteOnly,
    SnapshotNotFound,
    StoreFull,
)
from jupyter_gpuckpt.linux.file_locks import alone, eviction
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from jupyter_gpuckpt.snapshots.changes import changes
from jupyter_gpuckpt.store.stub_files import Stub
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from jupyter_gpuckpt.wire.place import this_place
from jupyter_gpuckpt.wire.progress import Progress
from jupyter_gpuckpt.wire.protocol import OperationState, OwnerKind
from jupyter_gpuckpt.wire.remote_records import Remote, RemoteVerb
from jupyter_gpuckpt.wire.snapshot_records import UploadRequest, UploadState
from jupyter_gpuckpt.wire.states import KernelState
from tests.remote.installations import ask
from tests.remote.joined import join
from tests.remote.stores import chunks, mark_deleted
from tests.remote.test_fetching import Here, held, saved

#: Each snapshot has chunks of its own, which take about this.
BYTES = 500_000
LIMIT = 2 * BYTES + BYTES // 5


class Near(Here):
    """A machine whose daemon's parts run in this process, and which has uploaded some snapshots to the remote `share`."""

    def __init__(self, data_dir, share):
        super().__init__(data_dir)
        self.data_dir = data_dir
        self.place = this_place(data_dir)
        self.joined = join(data_dir, share)
        self.records = Records(data_dir / "state", self.place)
        self.lists = SnapshotLists(self.inventory, self.kernels, self.machine, self.uploads)

    def near_copy(self, near_bytes):
        """Return what keeps a limit."""
        parts = (self.machine, self.inventory, self.uploads, lambda: False)
        return NearCopy(near_bytes, self.data_dir, *parts)

    def save(self, number, *, upload=True):
        """Make a snapshot of a kernel of its own, older ones first; `upload` puts it into the remote."""
        content = chunks(number, 10, BYTES // 10)
        saved(self.store, f"s{number}", *content, kernel_id=f"k{number}", created=float(number))
        if upload:
            self.joined.upload(self.store, f"s{number}", pack_bytes=BYTES // 3)

    async def note(self, *numbers, remote="share"):
        """Put on record that the remote has these."""
        for number in numbers:
            await self.uploads.note_there(remote, f"s{number}")

    async def kept(self, near_bytes):
        """Keep a limit once; return whether all went that should, and what went."""
        near = self.near_copy(near_bytes)
        done = await near.look()
        await near.close()
        return done, sorted(self.store.stubs.all())

    def bring_back(self, snapshot_id, progress=None):
        """Fetch a snapshot as a resume does."""
        [info] = [one for one in self.store.snapshots() if one.snapshot_id == snapshot_id]
        with remote_copies.local_chunks(self.data_dir, self.store, info, progress or Progress()):
            self.store.verify(snapshot_id)


@pytest.fixture
def share(tmp_path):
    return Remote("share", f"file://{tmp_path}/share")


@pytest.fixture
def near(tmp_path, share):
    """Run a test of a machine with three snapshots, which the remote has, in the event loop."""

    def run(test):
        async def main():
            machine = Near(tmp_path / "first", share)
            for number in (1, 2, 3):
                machine.save(number)
            await machine.note(1, 2, 3)
            try:
                return await test(machine)
            finally:
                await machine.at_remote.close()
                await machine.uploads.close()
                machine.machine.close()

        return asyncio.run(main())

    return run


def test_what_was_not_used_for_longest_goes_first_and_comes_back(near):
    async def test(m):
        before = m.store.space()
        assert await m.kept(3 * BYTES + BYTES // 5) == (True, [])
        assert await m.kept(LIMIT) == (True, ["s1"])
        after = m.store.space()
        assert after.disk_bytes < before.disk_bytes - BYTES * 0.9
        assert (after.remote_snapshots, after.snapshots) == (1, 3)
        listed = {one.snapshot_id: one for one in await m.lists.snapshots()}
        assert [listed[name].remote_only for name in ("s1", "s2", "s3")] == ["share", None, None]
        assert [one.state for one in listed["s1"].uploads] == [UploadState.UPLOADED]
        m.store.mark_deleted("s1", 60.0)
        assert [one.remote_only for one in await m.lists.deleted()] == ["share"]
        m.store.undelete("s1")
        # What came back counts as used.
        m.bring_back("s1")
        assert m.store.stubs.all() == {}
        assert await m.kept(LIMIT) == (True, ["s2"])
        m.store.stubs.note_use("s3")
        assert await m.kept(BYTES + BYTES // 5) == (True, ["s1", "s2"])
        m.store.verify("s3")
        # Also by a fetch, which says how far it is; and it is not listed as one that is to be uploaded.
        estimate = await m.at_remote.estimate("share", "s1")
        assert (estimate.snapshot.here, estimate.snapshot.stub) == (True, True)
        assert estimate.move_bytes
        done = await m.fetched("share", "s1")
        assert (done.state, done.result.snapshot_id) == (OperationState.SUCCEEDED, "s1")
        assert done.result.sizes.new_bytes > BYTES * 0.9
        m.store.verify("s1")
        [view] = await m.uploads.views()
        assert (view.uploaded, view.waiting) == (3, 0)

    near(test)


def test_a_next_daemon_finds_stubs_and_frees_what_an_earlier_one_did_not(near, monkeypatch):
    async def test(m):
        monkeypatch.setattr(m.store, "collect", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await m.kept(LIMIT)
        monkeypatch.undo()
        before = m.store.space().disk_bytes
        assert await m.kept(LIMIT) == (True, ["s1"])
        assert m.store.space().disk_bytes < before - BYTES * 0.9
        m.store._catalog.database.remake()
        m.machine.close()
        assert [one.snapshot_id for one in m.store.snapshots()] == ["s3", "s2", "s1"]
        assert m.store.stubs.all() == {"s1": Stub("share", ["file/dev/shm/.gpuckpt/secrets"])}
        m.bring_back("s1")

    near(test)


def test_pinned_ones_and_those_that_are_not_in_every_remote_stay(near, share, tmp_path):
    async def test(m):
        m.save(4, upload=False)
        m.store.annotate("s1", {"pinned": True})
        with m.store.stubs.using("s2"):
            assert await m.kept(1) == (False, ["s3"])
        other = Remote("other", f"file://{tmp_path}/other")
        second = join(m.data_dir, other)
        # What is to go to another remote waits for that; of what is here no more only one has it.
        assert await m.kept(1) == (True, ["s3"])
        [_, view] = await m.uploads.views()
        assert (view.remote, view.waiting) == ("other", 3)
        [at_remote] = [one for one in await m.lists.snapshots() if one.snapshot_id == "s3"]
        assert [(one.remote, one.state) for one in at_remote.uploads] == [
            ("share", UploadState.UPLOADED)
        ]
        with pytest.raises(SnapshotInRemoteOnly, match="only in remote share"):
            await m.uploads.ask(UploadRequest("other", ["s3"]))
        second.upload(m.store, "s2")
        await m.note(2, remote="other")
        assert await m.kept(1) == (True, ["s2", "s3"])
        m.store.annotate("s1", {"pinned": False})
        second.upload(m.store, "s1")
        await m.note(1, remote="other")
        assert await m.kept(1) == (True, ["s1", "s2", "s3"])
        assert [one.snapshot_id for one in m.store.snapshots()] == ["s4", "s3", "s2", "s1"]
        m.store.verify("s4")

    near(test)


def test_without_a_remote_or_a_limit_nothing_goes(near):
    async def test(m):
        near_copy = m.near_copy(0)
        near_copy.start()
        near_copy.wake()
        await asyncio.sleep(0)
        assert not near_copy._tasks._running
        await near_copy.close()
        ask(RemoteVerb.REMOVE, m.data_dir, "share")
        assert await m.kept(1) == (True, [])
        for number in (1, 2, 3):
            m.store.verify(f"s{number}")

    near(test)


def test_while_a_remote_or_its_content_is_removed_nothing_goes(near):
    async def test(m):
        with alone(eviction(m.data_dir, "another")):
            assert await m.kept(LIMIT) == (True, ["s1"])
        with alone(eviction(m.data_dir, "share")):
            assert await m.kept(1) == (False, ["s1"])
            m.store.verify("s2")
        assert await m.kept(1) == (True, ["s1", "s2", "s3"])

    near(test)


@pytest.mark.parametrize("how", ["unlisted", "no session", "manifest", "pack", "another", "away"])
def test_what_the_remote_does_not_have_after_all_stays(near, tmp_path, how):
    async def test(m):
        folder = tmp_path / "share"
        opened = remote_keys.opened(m.data_dir, m.joined.remote)
        _, at_remote = remote_copies.find(m.data_dir, opened, m.store.manifest("s1").info)
        refs = {path.name for path in (folder / "packs").iterdir()}
        if how == "unlisted":
            mark_deleted(Sessions(opened.bucket, opened.key.seal, opened.seen), "k1", "s1", 9.0)
        elif how == "no session":
            (folder / "sessions/k1").unlink()
        elif how == "manifest":
            (folder / at_remote.manifest).unlink()
        elif how == "pack":
            m.save(4)
            await m.note(4)
            [gone, *_] = {path.name for path in (folder / "packs").iterdir()} - refs
            (folder / "packs" / gone).unlink()
        elif how == "another":
            # Another machine has uploaded something else under this id.
            m.store.delete("s1")
            saved(m.store, "s1", *chunks(9, 5, 1000), kernel_id="k1", created=1.0)
        else:
            folder.rename(tmp_path / "moved")
        stays = {"pack": "s4", "away": "s1 s2 s3"}.get(how, "s1").split()
        done, gone = await m.kept(1)
        assert not done
        assert gone == sorted({"s1", "s2", "s3"} - set(stays))
        for snapshot_id in stays:
            m.store.verify(snapshot_id)

    near(test)


def test_what_a_suspended_kernel_needs_goes_last(near):
    async def test(m):
        record = KernelRecord(
            LaunchSpec("k1", [], {}, "/", ""),
            this_owner(OwnerKind.SERVER, root_dir="/tmp"),
            m.place,
            KernelState.SUSPENDED,
            snapshot_id="s1",
        )
        m.records.write("k1", msgspec.json.encode(record))
        assert await m.kept(LIMIT) == (True, ["s2"])
        assert await m.kept(BYTES + BYTES // 5) == (True, ["s2", "s3"])
        assert await m.kept(1) == (True, ["s1", "s2", "s3"])

    near(test)


def test_a_fetch_that_fails_leaves_the_stub_and_says_what_helps(near, tmp_path, monkeypatch):
    async def test(m):
        assert await m.kept(1) == (True, ["s1", "s2", "s3"])
        packs = tmp_path / "share/packs"
        shutil.move(packs, tmp_path / "away")
        packs.mkdir()
        with pytest.raises(RemoteObjectMissing) as caught:
            m.bring_back("s1")
        assert "only in remote share" in caught.value.hint
        done = await m.fetched("share", "s1")
        assert (done.state, done.error.code) == (OperationState.FAILED, "remote_object_missing")
        packs.rmdir()
        shutil.move(tmp_path / "away", packs)
        # One that is damaged.
        for path in packs.iterdir():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        with pytest.raises(Exception, match="packs/") as caught:
            m.bring_back("s1")
        assert caught.value.code == "remote_object_invalid"
        assert set(m.store.stubs.all()) == {"s1", "s2", "s3"}
        for path in packs.iterdir():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        with monkeypatch.context() as patched:
            patched.setattr(type(m.store), "free_bytes", lambda self: 1000)
            with pytest.raises(StoreFull, match="are free"):
                m.bring_back("s1")
        assert set(m.store.stubs.all()) == {"s1", "s2", "s3"}
        assert [one.snapshot_id for one in m.store.snapshots()] == ["s3", "s2", "s1"]
        m.bring_back("s1")

    near(test)


def test_a_resume_that_is_cancelled_while_it_fetches_leaves_the_stub(near, monkeypatch):
    async def test(m):
        assert await m.kept(1) == (True, ["s1", "s2", "s3"])
        before = m.store.space().disk_bytes
        progress, errors = Progress(), []

        def work():
            try:
                m.bring_back("s1", progress)
            except OperationCancelled as error:
                errors.append(error)

        with held(monkeypatch, after=1) as (waits, go_on):
            thread = threading.Thread(target=work)
            thread.start()
            assert await asyncio.to_thread(waits.wait, 60)
            progress.cancel()
            go_on.set()
            await asyncio.to_thread(thread.join, 60)
        assert len(errors) == 1
        assert set(m.store.stubs.all()) == {"s1", "s2", "s3"}
        assert m.store.space().disk_bytes == before
        m.bring_back("s1")

    near(test)


def test_a_remote_that_was_removed_is_named_and_another_name_of_it_does(near, share):
    async def test(m):
        assert await m.kept(LIMIT) == (True, ["s1"])
        ask(RemoteVerb.REMOVE, m.data_dir, "share")
        with pytest.raises(RemoteNotFound, match="'share'") as caught:
            m.bring_back("s1")
        assert "Add again the one that had it" in caught.value.hint
        # Another place may have got its name meanwhile.
        join(m.data_dir, Remote("share", f"{share.url}-of-others"))
        with pytest.raises(SnapshotNotFound, match="share does not list"):
            m.bring_back("s1")
        join(m.data_dir, Remote("renamed", share.url), m.joined.line)
        m.bring_back("s1")
        assert m.store.stubs.all() == {}

    near(test)


def test_what_reads_all_of_a_snapshot_refuses_a_stub_with_words(near):
    async def test(m):
        assert await m.kept(LIMIT) == (True, ["s1"])
        transfers = Transfers(m.machine)
        with pytest.raises(SnapshotInRemoteOnly) as caught:
            await transfers.verify("s1", threading.Event())
        assert "remote fetch share s1" in caught.value.command
        with pytest.raises(SnapshotInRemoteOnly):
            await anext(transfers.export("s1"))
        assert (await transfers.verify("s2", threading.Event())).ok
        assert changes(m.store.manifest("s1"), m.store).files == []
        # What an export reads stays while it reads.
        pieces = transfers.export("s2")
        await anext(pieces)
        assert await m.kept(1) == (False, ["s1", "s3"])
        size = sum([len(piece) async for piece in pieces])
        assert size > BYTES * 0.9
        assert await m.kept(1) == (True, ["s1", "s2", "s3"])
        await transfers.close()

    near(test)


def test_the_limit_is_kept_again_when_something_changes(near):
    async def test(m):
        near_copy = m.near_copy(LIMIT)
        near_copy.start()

        async def until(names):
            async with asyncio.timeout(60):
                while sorted(m.store.stubs.all()) != names:  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.02)

        await until(["s1"])
        m.save(4)
        await m.note(4)
        near_copy.wake()
        await until(["s1", "s2"])
        await near_copy.close()

    near(test)
