"""What the daemon does with leases: before fetches and resumes, for kernels that run, and when another machine has taken one over."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
import time

import msgspec
import pytest

from jupyter_gpuckpt.client import this_owner
from jupyter_gpuckpt.daemon.kernels.kernel_records import KernelRecord
from jupyter_gpuckpt.daemon.remotes import leases, remote_copies, remote_keys, without_daemon
from jupyter_gpuckpt.daemon.remotes.leases import (
    DaemonLeases,
    LeaseFile,
    LeaseRenewal,
    LeasesAtRemote,
)
from jupyter_gpuckpt.daemon.remotes.upload_queue import read_uploaded, record_path
from jupyter_gpuckpt.errors import SessionAhead, SessionHeld, StoreUnavailable
from jupyter_gpuckpt.remote.lease_objects import LIFE_SECONDS, Leases
from jupyter_gpuckpt.remote.remote_list import Remotes, state_folder
from jupyter_gpuckpt.remote.remote_sessions import RemoteSession, Sessions
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from jupyter_gpuckpt.wire.place import this_place
from jupyter_gpuckpt.wire.protocol import OperationState, OwnerKind
from jupyter_gpuckpt.wire.remote_records import Remote, RemoteCall, RemoteVerb
from jupyter_gpuckpt.wire.snapshot_records import UploadState
from jupyter_gpuckpt.wire.states import KernelState
from tests.conftest import PATIENCE
from tests.remote.joined import join
from tests.remote.test_fetching import CONTENT, Here, saved


class There(Here):
    """A machine with a remote, which uploads by itself and has leases."""

    def __init__(self, data_dir, remote, line="", life_seconds=LIFE_SECONDS):
        self.joined = join(data_dir, remote, line)
        super().__init__(data_dir, life_seconds=life_seconds)

    async def start(self):
        await self.uploads.start()
        self.lease_renewal.start()

    async def close_leases(self):
        await self.lease_renewal.close()
        self.leases.close()

    async def close(self):
        await self.at_remote.close()
        await self.close_leases()
        await self.uploads.close()
        await self.kernels.close()
        self.machine.close()

    def save(self, snapshot_id, created=5.0, kernel_id="k1", number=0):
        content = CONTENT[:3]
        saved(
            self.store, snapshot_id, *content, kernel_id=kernel_id, created=created, number=number
        )
        self.uploads.snapshots.is_stale = True
        self.uploads._wake()

    def run(self, snapshot_id="", kernel_id="k1"):
        """Have a kernel without a process; it runs as far as its record says."""
        place = this_place(self.data_dir)
        owner = this_owner(OwnerKind.SCRIPT)
        log = str(self.data_dir / "log")
        spec = LaunchSpec(kernel_id, ["sleep"], {}, "/", log, on_lost_lease="continue")
        record = KernelRecord(spec, owner, place)
        record.state, record.snapshot_id = KernelState.RUNNING, snapshot_id
        return self.kernels.add(record)

    def suspend(self, kernel, snapshot_id):
        kernel.record.snapshot_id = snapshot_id
        kernel.record.state = KernelState.SUSPENDED
        self.leases.wake()

    async def until_uploaded(self, *snapshot_ids):
        def done():
            found = self.uploads.snapshots.found
            return all(
                one in found
                and [up.state for up in self.uploads.of(found[one])] == [UploadState.UPLOADED]
                for one in snapshot_ids
            )

        await until(done)
        self.leases.wake()

    def session(self, session_id="k1") -> RemoteSession:
        opened = remote_keys.opened(self.data_dir, self.joined.remote)
        return Sessions(opened.bucket, opened.key.seal, opened.seen).get(session_id)

    def leased_to(self, session_id="k1"):
        lease = self.session(session_id).lease
        return lease and lease.daemon_id

    async def require(self, snapshot_id, *, take_over=False):
        return await asyncio.to_thread(self.leases.require, "k1", snapshot_id, take_over=take_over)

    @property
    def goes_on_in(self):
        return LeaseFile(state_folder(self.data_dir, "share")).of("k1").session_id


async def until(condition, seconds=PATIENCE):
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.fixture
def two(tmp_path):
    """Run a test of two machines with one remote, in the event loop. The first uploads by itself, the second as far as it is told."""
    share = Remote("share", f"file://{tmp_path}/share")

    def run(test, **options):
        async def main():
            a = There(tmp_path / "a", share, **options)
            b = There(tmp_path / "b", share, a.joined.line, **options)
            try:
                await test(a, b)
            finally:
                await a.close()
                await b.close()

        asyncio.run(main())

    return run


def test_a_kernel_that_runs_here_is_not_resumed_elsewhere_until_it_is_suspended_and_uploaded(two):
    async def test(a, b):
        kernel = a.run()
        a.save("s1")
        await a.start()
        await until(lambda: a.leases.daemon_id == held_by(a))
        [session] = (await b.at_remote.sessions("share")).sessions
        assert session.leased_to
        assert session.leased_since > 0
        assert not session.runs_here
        [own] = (await a.at_remote.sessions("share")).sessions
        assert own.runs_here
        estimate = await b.at_remote.estimate("share", "s1")
        assert estimate.session == session
        with pytest.raises(SessionHeld, match=r"runs on machine .* since") as caught:
            await b.fetched("share", "s1")
        assert "--take-over" in caught.value.command
        assert b.store.snapshots() == []
        a.save("s2", created=6.0)
        a.suspend(kernel, "s2")
        await a.until_uploaded("s1", "s2")
        await until(lambda: held_by(a) is None)
        await until(lambda: a.leases.daemon_id not in heartbeats(a))
        done = await b.fetched("share", "s2")
        assert done.state is OperationState.SUCCEEDED
        assert b.leased_to() == b.leases.daemon_id
        # Here, too, it is not resumed meanwhile.
        with pytest.raises(SessionHeld):
            await a.require("s2")
        await b.close_leases()
        assert b.leased_to() is None
        # It has the newest snapshot, although another machine has had the session since.
        assert await a.require("s2") == []
        assert a.leased_to() == a.leases.daemon_id
        # Whoever has it asks nothing.
        a.leases.ask = None
        assert await a.require("s2") == []
        del a.leases.ask

    two(test)


def test_an_older_snapshot_is_resumed_only_on_request_once_another_machine_has_gone_on(two):
    async def test(a, b):
        kernel = a.run()
        a.save("s1", number=1)
        await a.start()
        a.suspend(kernel, "s1")
        await a.until_uploaded("s1")
        await until(lambda: held_by(a) is None)
        await b.fetched("share", "s1")
        there = b.run("s1")
        await b.require("s1")
        b.leases.resumed("k1")
        await b.start()
        b.save("s2", created=6.0, number=2)
        b.suspend(there, "s2")
        await b.until_uploaded("s2")
        await until(lambda: held_by(b) is None)
        term = a.session().term
        with pytest.raises(SessionAhead, match="has a newer snapshot of it") as caught:
            await a.require("s1")
        assert "remote fetch share s2" in caught.value.command
        assert (a.session().term, a.leased_to()) == (term, None)
        # With the newest snapshot it goes on; without it, if its user wants that.
        await a.require("s1", take_over=True)
        assert a.leased_to() == a.leases.daemon_id
        await a.close_leases()

    two(test)


def test_a_copy_is_fetched_whoever_runs_the_session(two):
    async def test(a, b):
        a.run()
        a.save("s1")
        await a.start()
        await until(lambda: held_by(a))
        done = await b.fetched("share", "s1", as_copy=True)
        assert done.state is OperationState.SUCCEEDED
        assert a.leased_to() == a.leases.daemon_id
        # That the remote has the snapshot is written after the end of the fetch.
        await until(lambda: read_uploaded(record_path(b.data_dir, "share")).snapshots)
        with pytest.raises(SessionHeld):
            await b.require("s1")

    two(test)


def test_a_fetch_does_not_change_what_a_kernel_that_runs_goes_on_in(two):
    async def test(a, b):
        a.save("s1")
        await a.start()
        await a.until_uploaded("s1")
        kernel = b.run()
        done = await b.fetched("share", "s1")
        assert done.state is OperationState.SUCCEEDED
        assert held_by(b) is None
        kernel.record.state = KernelState.SUSPENDED
        # That the remote has the snapshot is written after the end of the fetch.
        await until(lambda: read_uploaded(record_path(b.data_dir, "share")).snapshots)
        await b.require("s1")
        assert held_by(b) == b.leases.daemon_id

    two(test)


def test_a_session_that_is_taken_over_becomes_a_branch_where_it_was(two):
    async def test(a, b):
        kernel = a.run()
        a.save("s1")
        await a.start()
        await until(lambda: held_by(a))
        done = await b.fetched("share", "s1", take_over=True)
        assert done.state is OperationState.SUCCEEDED
        assert b.leased_to() == b.leases.daemon_id
        # Whichever comes first, the heartbeat or the upload, it learns it.
        a.save("s2", created=6.0)
        await a.until_uploaded("s2")
        await until(lambda: kernel.record.error is not None)
        assert kernel.record.error.code == "session_lost"
        assert "branch" in kernel.record.error.hint
        assert a.goes_on_in != "k1"
        assert [one.snapshot_id for one in a.session("k1").listed] == ["s1"]
        branch = a.session(a.goes_on_in)
        assert [(one.snapshot_id, one.kernel_id) for one in branch.listed] == [("s2", "k1")]
        # The branch is leased as any other, and found when its content is needed.
        await until(lambda: a.leased_to(a.goes_on_in) == a.leases.daemon_id)
        opened = remote_keys.opened(a.data_dir, a.joined.remote)
        for snapshot_id in ("s1", "s2"):
            info = a.store.manifest(snapshot_id).info
            _, found = remote_copies.find(a.data_dir, opened, info)
            assert found.snapshot_id == snapshot_id
        # And goes on as such on yet another machine.
        a.suspend(kernel, "s2")
        await until(lambda: a.leased_to(a.goes_on_in) is None)
        await b.at_remote.sessions("share")
        done = await b.fetched("share", "s2", session_id=a.goes_on_in)
        assert done.state is OperationState.SUCCEEDED
        await b.require("s2")
        assert b.leased_to(a.goes_on_in) == b.leases.daemon_id

    two(test, life_seconds=2.0)


def test_who_gets_a_session_back_that_was_taken_over_is_no_longer_told_of_it(two):
    async def test(a, b):
        kernel = a.run()
        a.save("s1")
        await a.start()
        await until(lambda: held_by(a))
        await b.fetched("share", "s1", take_over=True)
        await until(lambda: kernel.record.taken_over)
        a.save("s2", created=6.0)
        await a.until_uploaded("s2")
        a.suspend(kernel, "s2")
        # In its branch it goes on beside the other machine.
        await a.require("s2")
        assert a.kernels.lost_notebooks.is_about("k1")
        b.save("s3", created=7.0)
        await b.uploads.start()
        await b.until_uploaded("s3")
        await b.close_leases()
        await a.fetched("share", "s3", session_id="k1")
        await a.require("s3")
        assert a.leased_to() == a.leases.daemon_id
        await until(lambda: not kernel.record.taken_over)
        assert a.kernels.lost_notebooks.of(kernel.record) == ""

    two(test, life_seconds=2.0)


def test_who_is_taken_over_learns_it_without_an_upload(two):
    async def test(a, b):
        kernel = a.run()
        a.save("s1")
        await a.start()
        await until(lambda: held_by(a))
        await b.fetched("share", "s1", take_over=True)
        await until(lambda: kernel.record.error is not None)
        assert kernel.record.error.code == "session_lost"

    two(test, life_seconds=2.0)


@pytest.mark.parametrize("goes_on", [True, False])
def test_without_the_remote_a_kernel_is_resumed_and_found_out_later(
    two, tmp_path, goes_on, monkeypatch
):
    monkeypatch.setattr(leases, "WAIT_SECONDS", 0.3)

    async def test(a, b):
        kernel = a.run()
        a.save("s1")
        a.suspend(kernel, "s1")
        await a.start()
        await a.until_uploaded("s1")
        # It ran, had the lease, and was suspended and uploaded.
        kernel.record.state = KernelState.RUNNING
        a.leases.wake()
        await until(lambda: held_by(a))
        a.suspend(kernel, "s1")
        await until(lambda: held_by(a) is None)
        if goes_on:
            await b.fetched("share", "s1")
        away = tmp_path / "away"
        shutil.move(tmp_path / "share", away)
        (tmp_path / "share").write_text("in the way")
        [warning] = await a.require("s1")
        assert "could not be asked" in warning
        kernel.record.state = KernelState.RUNNING
        a.save("s2", created=6.0)
        (tmp_path / "share").unlink()
        shutil.move(away, tmp_path / "share")
        await a.until_uploaded("s2")
        if goes_on:
            await until(lambda: a.goes_on_in != "k1")
            assert [one.snapshot_id for one in a.session("k1").listed] == ["s1"]
            assert [one.snapshot_id for one in a.session(a.goes_on_in).listed] == ["s2"]
        else:
            await until(lambda: held_by(a))
            assert a.goes_on_in == "k1"
            assert [one.snapshot_id for one in a.session("k1").listed] == ["s2", "s1"]

    two(test, life_seconds=2.0)


def test_the_next_daemon_goes_on_with_its_predecessors_leases(two):
    async def test(a, b):
        a.run()
        a.save("s1")
        await a.start()
        await until(lambda: held_by(a))
        before = a.lease_renewal
        await before._tasks.cancel()
        a.leases = DaemonLeases(a.data_dir, a.machine, a.kernels, this_place(a.data_dir))
        a.lease_renewal = LeaseRenewal(a.leases, a.kernels, a.uploads.by_remote, before._on_lost)
        a.lease_renewal.start()
        await until(lambda: held_by(a) == a.leases.daemon_id)
        assert a.goes_on_in == "k1"

    two(test)


def test_a_fetch_whose_daemon_was_killed_is_begun_again_by_the_next_daemon_of_its_place_only(two):
    async def test(a, b):
        await b.fetched("share", "s1")
        assert a.leased_to() == b.leases.daemon_id
        place = this_place(b.data_dir)
        here = DaemonLeases(b.data_dir, b.machine, b.kernels, place)
        # Of another host with the same home, or of another container.
        elsewhere = DaemonLeases(
            b.data_dir, b.machine, b.kernels, msgspec.structs.replace(place, cgroup="another")
        )
        remote = b.joined.remote
        assert await asyncio.to_thread(elsewhere.lease_elsewhere, remote, "k1") is not None
        with pytest.raises(SessionHeld):
            await claimed(elsewhere, remote)
        assert await asyncio.to_thread(here.lease_elsewhere, remote, "k1") is None
        assert await claimed(here, remote) == []
        assert a.leased_to() == here.daemon_id
        here.close()
        elsewhere.close()

    async def claimed(leases, remote):
        return await asyncio.to_thread(leases.claim_to_fetch, remote, "k1", "k1", take_over=False)

    async def uploaded(a, b):
        await a.start()
        a.save("s1")
        await a.until_uploaded("s1")
        await test(a, b)

    two(uploaded)


def test_a_session_that_somebody_had_meanwhile_is_found_out_without_an_upload(
    two, tmp_path, monkeypatch
):
    monkeypatch.setattr(leases, "WAIT_SECONDS", 0.3)

    async def test(a, b):
        kernel = a.run()
        a.save("s1")
        await a.start()
        await until(lambda: held_by(a))
        a.suspend(kernel, "s1")
        await until(lambda: held_by(a) is None)
        await b.fetched("share", "s1")
        await b.close_leases()
        assert held_by(a) is None
        away = tmp_path / "away"
        shutil.move(tmp_path / "share", away)
        (tmp_path / "share").write_text("in the way")
        await a.require("s1")
        kernel.record.state = KernelState.RUNNING
        (tmp_path / "share").unlink()
        shutil.move(away, tmp_path / "share")
        await until(lambda: kernel.record.error is not None)
        assert kernel.record.error.code == "session_lost"
        assert a.goes_on_in != "k1"
        await until(lambda: held_by(a) is None)

    two(test, life_seconds=2.0)


def test_a_resume_that_comes_during_a_release_asks_for_the_lease_anew(two, monkeypatch):
    async def test(a, b):
        kernel = a.run()
        a.save("s1")
        await a.start()
        await until(lambda: held_by(a))
        begun, go_on = threading.Event(), threading.Event()
        release = Leases.release

        def slow(self, *arguments):
            begun.set()
            assert go_on.wait(PATIENCE)
            release(self, *arguments)

        monkeypatch.setattr(Leases, "release", slow)
        a.suspend(kernel, "s1")
        await until(begun.is_set)
        resuming = asyncio.create_task(a.require("s1"))
        kernel.record.state = KernelState.RESUMING
        go_on.set()
        assert await resuming == []
        assert held_by(a) == a.leases.daemon_id
        assert a.session().term == 2
        # The other way round: what was about to be released stays.
        kernel.record.state = KernelState.SUSPENDED
        a.leases.wake()
        needs = a.lease_renewal._needs({})
        assert "k1" in needs.keeping
        a.leases._at["share"]._release("k1")
        assert held_by(a) == a.leases.daemon_id

    two(test)


def test_what_is_erased_is_the_session_and_not_the_branch_of_it(two):
    def erased(machine, session_id):
        call = RemoteCall(RemoteVerb.ERASE, str(machine.data_dir), "share", session=session_id)
        assert without_daemon.answer(call).error is None
        return set(Remotes(machine.data_dir).get("share").erased)

    async def test(a, b):
        file = LeaseFile(state_folder(a.data_dir, "share"))
        assert file.branch("k1", file.of("k1"))
        a.save("s1")
        await a.start()
        await a.until_uploaded("s1")
        branch = a.goes_on_in
        assert branch != "k1"
        a.joined.upload(a.store, "s1")
        assert erased(a, "k1") == set()
        assert erased(b, "k1") == {"k1"}
        assert erased(a, branch) == {"k1"}

    two(test)


def test_a_remote_that_fails_late_is_a_warning_and_is_asked_again(two, monkeypatch, caplog):
    failed = threading.Event()

    def tend(*_, **__):
        time.sleep(0.5)
        failed.set()
        raise StoreUnavailable("The remote did not answer.")

    async def test(a, b):
        monkeypatch.setattr(LeasesAtRemote, "tend", tend)
        a.lease_renewal.start()
        await until(lambda: "leases in remote share were not renewed" in caplog.text)
        failed.clear()
        await until(failed.is_set)
        monkeypatch.undo()
        await asyncio.sleep(0)
        gc.collect()
        assert "never retrieved" not in caplog.text

    two(test, life_seconds=1.0)


def test_without_remotes_nothing_is_asked(tmp_path):
    async def main():
        machine = Here(tmp_path / "alone")
        saved(machine.store, "s1", *CONTENT[:3])
        assert machine.leases.require("k1", "s1", take_over=False) == []
        assert machine.leases._threads == {}
        machine.leases.close()
        machine.machine.close()

    asyncio.run(main())


def held_by(machine):
    """Return who has the session, as soon as it is there."""
    if not (machine.data_dir.parent / "share/sessions/k1").exists():
        return None
    return machine.leased_to()


def heartbeats(machine):
    folder = machine.data_dir.parent / "share/heartbeats"
    return {path.name for path in folder.iterdir()} if folder.exists() else set()
