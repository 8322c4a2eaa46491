"""Two machines with a remote that has a rule: what one needs there stays, and it learns what the other one's collector removed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time

import pytest

from jupyter_gpuckpt.cli import app
from jupyter_gpuckpt.daemon.remotes import amending, remote_keys, without_daemon
from jupyter_gpuckpt.daemon.remotes.listed_checks import ListedChecks
from jupyter_gpuckpt.daemon.remotes.sent_changes import SentChanges
from jupyter_gpuckpt.daemon.remotes.upload_queue import read_uploaded, record_path
from jupyter_gpuckpt.daemon.remotes.uploads import Uploads
from jupyter_gpuckpt.errors import ConfigurationError, StoreUnavailable, error_from
from jupyter_gpuckpt.remote import epochs
from jupyter_gpuckpt.remote.remote_list import state_folder
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from jupyter_gpuckpt.wire.remote_records import KeepRequest, Remote, RemoteCall, RemoteVerb
from jupyter_gpuckpt.wire.retention_policy import RetentionPolicy
from jupyter_gpuckpt.wire.snapshot_records import (
    SnapshotChange,
    SnapshotChangeKind,
    UploadRequest,
    UploadState,
)
from tests.remote.installations import store_of
from tests.remote.joined import join
from tests.remote.stores import chunks
from tests.remote.test_fetching import saved
from tests.remote.test_near_copy import BYTES, Near
from tests.remote.test_remote_collecting import Collecting, age

RULE = RetentionPolicy(keep_last=1, manual_too=True)
SET = KeepRequest(RULE)
_SHOW = KeepRequest()


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


def keep(data_dir, request=_SHOW):
    """Do what `remote keep` asks for."""
    call = RemoteCall(RemoteVerb.KEEP, str(data_dir), "share", keep=request)
    answer = without_daemon.answer(call)
    if answer.error:
        raise error_from(answer.error)
    return answer.keeping


@pytest.fixture
def share(tmp_path):
    return tmp_path / "share"


@pytest.fixture
def both(tmp_path, share):
    """Run a test of a machine with four uploaded snapshots and of another one that collects, in the event loop."""

    def run(test):
        async def main():
            remote = Remote("share", f"file://{share}")
            one = One(tmp_path / "one", remote)
            async with contextlib.AsyncExitStack() as stack:
                stack.callback(one.machine.close)
                stack.push_async_callback(one.uploads.close)
                stack.push_async_callback(one.far.close)
                for number in range(1, 5):
                    one.save(number)
                await one.note(1, 2, 3, 4)
                await one.uploads.start()
                two = Collecting(tmp_path / "two", remote, one.joined.line)
                await test(one, two)

        asyncio.run(main())

    return run


async def collects(two, share):
    """Have a machine collect now."""
    if (share / epochs.NAME).exists():
        age(share / epochs.NAME, 2)
    two.be_due()
    await two.look()
    last = two._last("share")
    assert last.error is None
    return last.dropped


def test_what_one_machine_needs_stays_and_it_learns_what_another_removed(both, share):
    async def test(one, two):
        # s1 is only in the remote from now on, and s2 is pinned.
        one.store.stubs.note_use("s3")
        assert await one.kept(3 * BYTES + BYTES // 5) == (True, ["s1"])
        assert list(one.entries()["s1"].relied_on_by) == [remote_keys.machine_id(one.data_dir)]
        one.store.annotate("s2", {"pinned": True})
        one.changed("s2")
        await until(lambda: one.entries()["s2"].about.pinned)
        await until(one.settled)
        shown = keep(two.joined.data_dir, KeepRequest(RULE, dry_run=True))
        assert [v.snapshot_id for v in shown.verdicts if v.removed] == ["s3"]
        assert BYTES * 0.9 < shown.freed_bytes < BYTES * 1.1
        assert keep(one.data_dir).policy.removes_nothing
        assert await collects(two, share) == 0
        assert keep(two.joined.data_dir, SET).policy == RULE
        assert keep(one.data_dir).policy == RULE
        assert await collects(two, share) == 1
        assert sorted(one.entries()) == ["s1", "s2", "s4"]

        # The first machine finds out, keeps what it has, and does not upload it again.
        assert one.state("s3") is UploadState.UPLOADED
        checks = ListedChecks(one.data_dir, one.machine, one.uploads, lambda: False)
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
        assert await collects(two, share) == 1
        assert sorted(one.entries()) == ["s2", "s4"]
        # Whoever wants it there asks for it.
        await one.uploads.ask(UploadRequest("share", ["s3"]))
        await until(lambda: one.state("s3") is UploadState.UPLOADED)
        assert sorted(one.entries()) == ["s2", "s3", "s4"]

    both(test)


@pytest.mark.slow
def test_a_pin_is_told_although_the_record_of_what_was_told_is_lost(both, share):
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


def test_the_near_copy_keeps_what_a_collector_removed_first(both, share):
    async def test(one, two):
        keep(two.joined.data_dir, SET)
        assert await collects(two, share) == 3
        # Nobody has told this machine yet.
        assert one.state("s1") is UploadState.UPLOADED
        done, stubs = await one.kept(1)
        assert (done, stubs) == (False, ["s4"])
        assert [one.state(f"s{number}") for number in (1, 2, 3)] == [None] * 3
        for number in (1, 2, 3):
            one.store.verify(f"s{number}")
        assert (await one.kept(1))[0]
        # Only another machine can say that this one is lost, and what is the newest stays all the same.
        lost = KeepRequest(lost_machine=socket.gethostname())
        with pytest.raises(ConfigurationError, match="No other machine"):
            keep(one.data_dir, lost)
        with pytest.raises(ConfigurationError, match="No other machine 'elsewhere'"):
            keep(two.joined.data_dir, KeepRequest(lost_machine="elsewhere"))
        assert keep(two.joined.data_dir, lost).released == 1
        assert not one.entries()["s4"].relied_on_by
        # The suspended kernel whose memory is only there can be resumed.
        assert await collects(two, share) == 0
        one.bring_back("s4")

    both(test)


def test_a_removal_between_the_question_and_the_eviction_wins(both, share, monkeypatch):
    """A snapshot that goes while this machine is about to need it there is not evicted."""

    async def test(one, two):
        keep(two.joined.data_dir, SET)
        amend = amending.amend

        def removed_first(data_dir, opened, changes):
            sessions = Sessions(opened.bucket, opened.key.seal, opened.seen)
            for change in changes:
                sessions.mark_deleted("k", change.snapshot_id, time.time())
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


def test_the_command_shows_and_sets_the_rule(tmp_path, share, capsys, monkeypatch):
    joined = join(tmp_path / "one", Remote("share", f"file://{share}"))
    with store_of(tmp_path / "one") as store:
        for number in (1, 2):
            content = chunks(number, 10, BYTES // 10)
            saved(store, f"s{number}", *content, kernel_id="k", created=float(number))
            joined.upload(store, f"s{number}", path="work/notes.ipynb")
    monkeypatch.setenv("JUPYTER_GPUCKPT_DATA_DIR", str(tmp_path / "one"))

    def said(*words, status=0):
        found = app.main(["remote", "keep", "share", *words])
        told = capsys.readouterr()
        assert found == status, told.err
        return told

    assert said().out == "Remote share keeps all snapshots.\n"
    shown = said("--keep-last", "1", "--manual-too", "--dry-run").out.splitlines()
    assert [line.split()[0] for line in shown] == ["SNAPSHOT", "s2", "s1", "1"]
    assert "work/notes.ipynb" in shown[2]
    assert "remove" in shown[2]
    assert shown[3].startswith("1 snapshot would be removed, 1 stays. About ")
    done = said("--keep-last", "1", "--keep-within", "7d", "--max-size", "20G", "-y").out
    assert "the last 1 of each session and those of the 7 days before" in done
    assert "up to 20.0 GB in all; and those that users took" in done
    assert "0 snapshots will be removed by the next collection, 2 stay" in done
    found = json.loads(said("--json").out)["keeping"]
    assert found["policy"]["keep_within_seconds"] == 7 * 86400
    assert {one["reason"] for one in found["verdicts"]} <= {
        "taken by hand",
        "the newest of its session",
    }
    assert "cannot be combined" in said("--no-rule", "--keep-last", "2", status=2).err
    assert "Machines that have: none." in said("--lost-machine", "laptop", status=2).err
    assert "No rule is given" in said("--manual-too", status=2).err
    assert said("--no-rule").out == "Remote share keeps all snapshots.\n"


@pytest.mark.slow
def test_a_rule_that_is_set_while_a_session_does_not_answer_says_what_is_left_to_do(tmp_path):
    with store_of(tmp_path / "one") as store:
        joined = join(tmp_path / "one", Remote("share", f"file://{tmp_path / 'share'}"))
        saved(store, "s1", *chunks(1, 2, BYTES // 100), kernel_id="k")
        joined.upload(store, "s1")
        keep(joined.data_dir, SET)
        session, aside = tmp_path / "share/sessions/k", tmp_path / "aside"
        session.rename(aside)
        session.symlink_to(session)
        all_stay = KeepRequest(RetentionPolicy())
        with pytest.raises(StoreUnavailable) as caught:
            keep(joined.data_dir, all_stay)
        assert "The rule is set. Run the command again" in caught.value.hint
        session.unlink()
        aside.rename(session)
        assert keep(joined.data_dir).policy.removes_nothing
        keep(joined.data_dir, all_stay)
