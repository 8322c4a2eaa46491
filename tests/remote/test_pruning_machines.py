"""Two machines with a remote that one of them prunes: what the other needs there stays, and it learns what was removed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import pytest

from jupyter_gpuckpt.daemon.remotes import amending, remote_keys, without_daemon
from jupyter_gpuckpt.daemon.remotes.change_sender import SentChanges
from jupyter_gpuckpt.daemon.remotes.listed_checks import ListedChecks
from jupyter_gpuckpt.daemon.remotes.upload_queue import read_uploaded, record_path
from jupyter_gpuckpt.daemon.remotes.uploads import Uploads
from jupyter_gpuckpt.errors import ConfigurationError, error_from
from jupyter_gpuckpt.remote.remote_list import state_folder
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from jupyter_gpuckpt.wire.remote_records import Remote, RemoteCall, RemotePruneRequest, RemoteVerb
from jupyter_gpuckpt.wire.retention_policy import RetentionPolicy
from jupyter_gpuckpt.wire.snapshot_records import (
    SnapshotChange,
    SnapshotChangeKind,
    UploadRequest,
    UploadState,
)
from tests.remote.joined import join
from tests.remote.stores import chunks, mark_deleted
from tests.remote.test_fetching import saved
from tests.remote.test_near_copy import BYTES, Near

RULE = RetentionPolicy(keep_last=1, manual_too=True)
REQUEST = RemotePruneRequest(RULE)


class One(Near):
    """A machine with snapshots of one kernel, which it uploads."""

    def save(self, number, *, upload=True):
        """Make a snapshot, older ones first."""
        content = chunks(number, 10, BYTES // 10)
        saved(self.store, f"s{number}", *content, kernel_id="k", created=float(number))
        if upload:
            self.joined.upload(self.store, f"s{number}")

    def changed(self, snapshot_id, kind=SnapshotChangeKind.CHANGED):
        """Tell the uploads of a change, as the daemon does."""
        self.uploads.on_snapshot(SnapshotChange(snapshot_id, "k", kind))

    def entries(self):
        """Return what the remote lists, by id."""
        opened = remote_keys.opened(self.data_dir, self.joined.remote)
        sessions = Sessions(opened.bucket, opened.key.seal, opened.seen)
        return {one.snapshot_id: one for one in sessions.get("k").listed}

    def state(self, snapshot_id):
        """Return the state of a snapshot's upload; None if the remote does not have it and will not get it."""
        found = self.uploads.upload_to("share", snapshot_id)
        return found.state if found else None

    def settled(self):
        """Return whether nothing is uploaded or told any more."""
        return not self.uploads.any_pending


async def until(condition):
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)


def prune(data_dir, request=REQUEST):
    """Do what `remote prune` asks for."""
    call = RemoteCall(RemoteVerb.PRUNE, str(data_dir), "share", prune=request)
    answer = without_daemon.answer(call)
    if answer.error:
        raise error_from(answer.error)
    return answer.pruning


def count(pruning):
    """Return how many snapshots were removed."""
    return sum(one.removed for one in pruning.verdicts)


@pytest.fixture
def both(tmp_path):
    """Run a test of a machine with four uploaded snapshots and of another one that prunes, in the event loop."""

    def run(test):
        async def main():
            remote = Remote("share", f"file://{tmp_path}/share")
            one = One(tmp_path / "one", remote)
            async with contextlib.AsyncExitStack() as stack:
                stack.callback(one.machine.close)
                stack.push_async_callback(one.uploads.close)
                stack.push_async_callback(one.at_remote.close)
                for number in range(1, 5):
                    one.save(number)
                await one.note(1, 2, 3, 4)
                await one.uploads.start()
                two = join(tmp_path / "two", remote, one.joined.line).data_dir
                await test(one, two)

        asyncio.run(main())

    return run


def test_what_one_machine_needs_stays_and_it_learns_what_another_removed(both):
    async def test(one, two):
        # s1 is only in the remote from now on, and s2 is pinned.
        one.store.stubs.note_use("s3")
        assert await one.kept(3 * BYTES + BYTES // 5) == (True, ["s1"])
        assert list(one.entries()["s1"].relied_on_by) == [remote_keys.machine_id(one.data_dir)]
        one.store.annotate("s2", {"pinned": True})
        one.changed("s2")
        await until(lambda: one.entries()["s2"].about.pinned)
        await until(one.settled)
        shown = prune(two, RemotePruneRequest(RULE, dry_run=True))
        assert [v.snapshot_id for v in shown.verdicts if v.removed] == ["s3"]
        assert BYTES * 0.9 < shown.freed_bytes < BYTES * 1.1
        assert sorted(one.entries()) == ["s1", "s2", "s3", "s4"]
        assert count(prune(two)) == 1
        assert sorted(one.entries()) == ["s1", "s2", "s4"]

        # The first machine finds out, keeps what it has, and does not upload it again.
        assert one.state("s3") is UploadState.UPLOADED
        checks = ListedChecks(one.data_dir, one.uploads, lambda: False)
        await checks.check("share")
        assert one.state("s3") is None
        [view] = await one.uploads.views()
        assert (view.uploaded, view.waiting) == (3, 0)
        await until(
            lambda: "s3" in read_uploaded(record_path(one.data_dir, "share")).gone,
        )
        _, stubs = await one.kept(1)
        assert stubs == ["s1", "s4"]
        one.store.verify("s3")
        one.bring_back("s1")

        # Content that is here again, or deleted, needs nothing there.
        for name in ("s1", "s4"):
            one.changed(name)
        await until(lambda: not one.entries()["s1"].relied_on_by)
        assert one.entries()["s4"].relied_on_by
        one.store.delete("s4")
        one.changed("s4", SnapshotChangeKind.REMOVED)
        await until(lambda: not one.entries()["s4"].relied_on_by)
        await until(one.settled)
        assert count(prune(two)) == 1
        assert sorted(one.entries()) == ["s2", "s4"]
        # Whoever wants it there asks for it.
        await one.uploads.ask(UploadRequest("share", ["s3"]))
        await until(lambda: one.state("s3") is UploadState.UPLOADED)
        assert sorted(one.entries()) == ["s2", "s3", "s4"]

    both(test)


@pytest.mark.slow
def test_a_pin_is_told_although_the_record_of_what_was_told_is_lost(both):
    async def test(one, two):
        del two
        one.store.annotate("s1", {"pinned": True, "title": "Mine"})
        await one.uploads.close()
        for name in ("told.json", "uploaded.json"):
            (state_folder(one.data_dir, "share") / name).unlink()
        again = Uploads(
            *(one.machine, one.data_dir, lambda: False, lambda _: None, lambda *_: None),
            one.inventory,
        )
        one.uploads = again
        await again.start()
        await until(lambda: one.entries()["s1"].about.pinned)
        await until(one.settled)
        assert one.entries()["s1"].about.named
        assert one.state("s4") is UploadState.UPLOADED

    both(test)


def test_the_near_copy_keeps_what_a_prune_removed_first(both):
    async def test(one, two):
        assert count(prune(two)) == 3
        # Nobody has told this machine yet.
        assert one.state("s1") is UploadState.UPLOADED
        done, stubs = await one.kept(1)
        assert (done, stubs) == (False, ["s4"])
        assert [one.state(f"s{number}") for number in (1, 2, 3)] == [None] * 3
        for number in (1, 2, 3):
            one.store.verify(f"s{number}")
        assert (await one.kept(1))[0]
        # Only another machine can say that this one is lost, and what is the newest stays all the same.
        lost = RemotePruneRequest(lost_machine=socket.gethostname())
        with pytest.raises(ConfigurationError, match="No other machine"):
            prune(one.data_dir, lost)
        with pytest.raises(ConfigurationError, match="No other machine 'elsewhere'"):
            prune(two, RemotePruneRequest(lost_machine="elsewhere"))
        assert prune(two, lost).lost == ["s4"]
        assert not one.entries()["s4"].relied_on_by
        # The suspended kernel whose memory is only there can be resumed.
        assert count(prune(two)) == 0
        one.bring_back("s4")

    both(test)


def test_a_removal_between_the_question_and_the_eviction_wins(both, monkeypatch):
    """A snapshot that goes while this machine is about to need it there is not evicted."""

    async def test(one, two):
        del two
        amend = amending.amend

        def removed_first(data_dir, opened, changes):
            sessions = Sessions(opened.bucket, opened.key.seal, opened.seen)
            for change in changes:
                mark_deleted(sessions, "k", change.snapshot_id, time.time())
            return amend(data_dir, opened, changes)

        monkeypatch.setattr(amending, "amend", removed_first)
        done, stubs = await one.kept(1)
        assert (done, stubs) == (False, [])
        assert one.entries() == {}
        for number in (1, 2, 3, 4):
            one.store.verify(f"s{number}")
        # What the machine noted before it told the remote is taken back.
        told = SentChanges(state_folder(one.data_dir, "share"))
        assert any(one.relied_on_in for one in told.all().values())
        for number in (1, 2, 3, 4):
            one.changed(f"s{number}")
        await until(lambda: not any(one.relied_on_in for one in told.all().values()))

    both(test)
