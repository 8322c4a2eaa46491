"""What the daemon lists of a remote and fetches from it: nothing is moved in vain, and whatever fails leaves the store as it was."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.daemon.kernels.kernel_records import Records
from jupyter_gpuckpt.daemon.kernels.kernels import Kernels
from jupyter_gpuckpt.daemon.kernels.machine import Machine
from jupyter_gpuckpt.daemon.kernels.operations import Operations
from jupyter_gpuckpt.daemon.kernels.streams import Streams
from jupyter_gpuckpt.daemon.remotes import remote_keys
from jupyter_gpuckpt.daemon.remotes.leases import DaemonLeases, LeaseRenewal, LostLeases
from jupyter_gpuckpt.daemon.remotes.remote_copies import local_chunks
from jupyter_gpuckpt.daemon.remotes.session_requests import RemoteSessions
from jupyter_gpuckpt.daemon.remotes.upload_queue import Uploaded, record_path, write_uploaded
from jupyter_gpuckpt.daemon.remotes.uploads import Uploads
from jupyter_gpuckpt.daemon.snapshots.inventory import Inventory
from jupyter_gpuckpt.errors import (
    AccessDenied,
    GpuCkptError,
    HostIncompatible,
    RemoteNotFound,
    RemoteObjectInvalid,
    SnapshotExists,
    SnapshotNotFound,
    StoreUnavailable,
    record_of,
)
from jupyter_gpuckpt.images import worker_processes
from jupyter_gpuckpt.remote import check_client, fetch
from jupyter_gpuckpt.remote.buckets import Bucket
from jupyter_gpuckpt.remote.lease_objects import LIFE_SECONDS
from jupyter_gpuckpt.remote.remote_list import Remotes
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.daemon_settings import Settings
from jupyter_gpuckpt.wire.file_records import MappedFile
from jupyter_gpuckpt.wire.manifest_records import Sizes
from jupyter_gpuckpt.wire.place import this_place
from jupyter_gpuckpt.wire.protocol import OperationState
from jupyter_gpuckpt.wire.remote_listings import FetchRequest
from jupyter_gpuckpt.wire.remote_records import Remote
from tests.conftest import wait_for
from tests.manifests import manifest
from tests.remote import servers
from tests.remote.joined import join
from tests.remote.stores import chunks
from tests.unit.test_store_local import pack_files, put
from tests.worker_processes import workers, working

__all__ = ["workers"]

ROOT = Path(__file__).parents[2]
#: What an archive of them takes is what they take, so that sizes are known.
CONTENT = chunks(7, 60, 50_000)
SIZES = Sizes(3_000_000, 2_500_000, 2_500_000)
#: A session may cost so many requests when a remote is listed.
MAX_REQUESTS = 20


class Here:
    """A machine whose daemon's parts run in this process."""

    def __init__(self, data_dir, machine=None, life_seconds=LIFE_SECONDS):
        self.data_dir = data_dir
        place = this_place(data_dir)
        self.machine = machine or Machine(Settings(str(data_dir)), place, local_chunks=local_chunks)
        self.streams = Streams()
        self.operations = Operations(self.streams)
        records = Records(data_dir / "state", place)
        self.kernels = Kernels(records, self.machine, self.streams)
        self.leases = DaemonLeases(
            data_dir, self.machine, self.kernels, place, life_seconds=life_seconds
        )
        # No kernel here is suspended when it becomes a branch, so the verbs are not needed.
        on_lost = LostLeases(data_dir, self.kernels, None).note
        self.inventory = Inventory(self.kernels, records, self.machine)
        self.uploads = Uploads(
            self.machine,
            data_dir,
            lambda: False,
            lambda change: self.leases.wake(),
            on_lost,
            self.inventory,
        )
        self.lease_renewal = LeaseRenewal(
            self.leases, self.kernels, self.uploads.by_remote, on_lost
        )
        self.at_remote = RemoteSessions(
            data_dir,
            self.machine,
            self.operations,
            self.streams,
            self.uploads.note_there,
            self.leases,
        )

    @property
    def store(self):
        return self.machine.store

    async def fetched(self, name, snapshot_id, **request):
        operation = await self.at_remote.fetch(name, snapshot_id, FetchRequest(**request))
        await operation.until_ended()
        return operation.public()


def saved(store, snapshot_id, *content, kernel_id="k1", created=5.0, number=0, **changes):
    """Make a snapshot that could be resumed here, but for what `changes` says."""
    put(store, *content)
    made = manifest(snapshot_id, *content, kernel_id=kernel_id, created=created)
    changes = {"host": msgspec.structs.replace(made.host, machine=platform.machine())} | changes
    info = msgspec.structs.replace(made.info, sizes=SIZES, number=number)
    store.publish(msgspec.structs.replace(made, info=info, **changes))


@pytest.fixture
def share(tmp_path):
    return Remote("share", f"file://{tmp_path}/share")


@pytest.fixture
def first(tmp_path, share):
    """Yield the remote of a machine that has uploaded, and its store."""
    joined = join(tmp_path / "first", share)
    with LocalStore(tmp_path / "first/store") as store:
        yield joined, store


@pytest.fixture
def second(tmp_path, first):
    """Run a test of another machine with the same remote, in the event loop."""
    joined, _ = first

    def run(test):
        join(tmp_path / "second", joined.remote, joined.line)

        async def main():
            machine = Here(tmp_path / "second")
            try:
                return await test(machine)
            finally:
                await machine.at_remote.close()
                machine.leases.close()
                await machine.uploads.close()
                machine.machine.close()

        return asyncio.run(main())

    return run


@pytest.mark.parametrize("remote", ["files", "seaweedfs"], indirect=True)
def test_a_snapshot_is_listed_and_comes_to_another_machine(remote, tmp_path):
    a = join(tmp_path / "a", remote)
    with LocalStore(tmp_path / "a/store") as store:
        saved(store, "s1", *CONTENT)
        saved(store, "s2", *CONTENT, created=6.0)
        for snapshot_id in ("s1", "s2"):
            a.upload(store, snapshot_id, path="work/notes.ipynb", host_name="a", hub_user="ada")
        content = store.manifest("s1")
    join(tmp_path / "b", remote, a.line)

    async def test():
        b = Here(tmp_path / "b")
        try:
            listing = await b.at_remote.sessions(remote.name)
            [session] = listing.sessions
            assert (session.session_id, session.path) == ("k1", "work/notes.ipynb")
            assert (session.host_name, session.hub_user) == ("a", "ada")
            found = [(one.snapshot_id, one.created, one.here) for one in session.snapshots]
            assert found == [("s2", 6.0, False), ("s1", 5.0, False)]
            estimate = await b.at_remote.estimate(remote.name, "s1")
            assert (estimate.move_bytes, estimate.here_bytes) == (SIZES.stored_bytes, 0)
            assert estimate.obstacles == []
            done = await b.fetched(remote.name, "s1", session_id="k1")
            assert (done.state, done.kernel_id) == (OperationState.SUCCEEDED, "k1")
            assert done.progress.done_bytes == 0  # no stage is on any more
            moved = done.result.sizes.new_bytes
            assert 2_000_000 < moved <= sum(map(len, CONTENT))
            assert b.store.manifest("s1") == content
            b.store.verify("s1")
            # The other one holds the same: nothing has to be moved for it.
            estimate = await b.at_remote.estimate(remote.name, "s2")
            assert estimate.here_bytes == moved
            assert (await b.fetched(remote.name, "s2")).result.sizes.new_bytes == 0
            [session] = (await b.at_remote.sessions(remote.name)).sessions
            assert [one.here for one in session.snapshots] == [True, True]
            with pytest.raises(SnapshotExists):
                await b.fetched(remote.name, "s1")
        finally:
            await b.at_remote.close()
            b.machine.close()

    asyncio.run(test())


@pytest.mark.usefixtures("workers")
def test_a_large_fetch_of_a_daemon_is_checked_by_processes_that_end_with_it(
    first, second, monkeypatch
):
    joined, store = first
    saved(store, "s1", *CONTENT)
    joined.upload(store, "s1")
    for name in ("_MIN_BYTES", "_MIN_BYTES_IF_READY"):
        monkeypatch.setattr(check_client, name, 1)
    monkeypatch.setattr(check_client, "_MIN_WORKERS", 1)
    most, start = [], check_client.CheckingProcesses._start

    def started(checking):
        start(checking)
        most.append(len(working()))

    monkeypatch.setattr(check_client.CheckingProcesses, "_start", started)

    async def test(b):
        with held(monkeypatch) as (waits, go_on):
            operation = await b.at_remote.fetch("share", "s1", FetchRequest())
            await asyncio.to_thread(waits.wait, 60)
            await asyncio.to_thread(wait_for, lambda: most)
            go_on.set()
            await operation.until_ended()
        assert operation.public().state is OperationState.SUCCEEDED
        assert most[0] >= 1
        await asyncio.to_thread(wait_for, lambda: not working())
        b.store.verify("s1")

    second(test)


@pytest.mark.usefixtures("workers")
def test_a_fetch_starts_the_fork_server_before_it_reads_the_manifest_and_an_estimate_does_not(
    first, second, monkeypatch
):
    joined, store = first
    saved(store, "s1", *CONTENT[:3])
    joined.upload(store, "s1")
    server = worker_processes._ForkServer()
    monkeypatch.setattr(worker_processes, "_fork_server", server)
    pids, read = [], fetch.remote_manifest

    def remote_manifest(*arguments):
        pids.append(server.pid)
        return read(*arguments)

    monkeypatch.setattr(fetch, "remote_manifest", remote_manifest)

    async def test(b):
        await b.at_remote.estimate("share", "s1")
        assert (pids, server.pid) == ([None], None)
        done = await b.fetched("share", "s1")
        assert done.state is OperationState.SUCCEEDED
        assert pids[1:] == [server.pid, server.pid]
        assert server.pid

    second(test)


def test_what_came_from_a_remote_is_not_to_go_there(first, second, tmp_path):
    joined, store = first
    saved(store, "s1", *CONTENT[:3])
    joined.upload(store, "s1")

    async def test(b):
        saved(b.store, "mine", b"x" * 10_000)
        # An upload of another snapshot has the lock, and waits for the end of the fetch.
        with remote_keys.uploading(tmp_path / "second", joined.remote):
            assert (await b.fetched("share", "s1")).state is OperationState.SUCCEEDED
            [view] = await b.uploads.views()
            assert (view.uploaded, view.waiting, view.last_uploaded_at) == (1, 1, None)
            # What that upload puts on record meanwhile is not lost.
            write_uploaded(record_path(tmp_path / "second", "share"), Uploaded({"mine": 5.0}, 5.0))
        await b.uploads.close()
        # As the next daemon finds it.
        [view] = await Here(tmp_path / "second", b.machine).uploads.views()
        assert (view.uploaded, view.waiting) == (2, 0)

    second(test)


def test_whatever_is_wrong_with_the_file_of_remotes_ends_nobody_who_looks(
    first, second, monkeypatch
):
    async def test(b):
        await b.uploads.views()

        def fail(self):
            raise RuntimeError("a defect")

        with monkeypatch.context() as patched:
            patched.setattr(Remotes, "all", fail)
            Remotes(b.data_dir).path.touch()
            [view] = await b.uploads.views()
            assert view.remote == "share"
            patched.setattr(Remotes, "all", out_of_reach)
            Remotes(b.data_dir).path.touch()
            await b.uploads.look()
        # What passes by itself is looked at again, although the file is the same.
        Remotes(b.data_dir).path.unlink()
        assert await b.uploads.views() == []

    def out_of_reach(self):
        raise StoreUnavailable("The disk is out of reach.")

    second(test)


def test_a_list_costs_few_requests(first, second, count_requests):
    joined, store = first
    for number in range(4):
        for kernel in range(3):
            snapshot_id = f"s{kernel}.{number}"
            saved(store, snapshot_id, *CONTENT[:3], kernel_id=f"k{kernel}")
            joined.upload(store, snapshot_id)

    async def test(b):
        before = count_requests()
        listing = await b.at_remote.sessions("share")
        assert [len(one.snapshots) for one in listing.sessions] == [4, 4, 4]
        count = count_requests() - before
        assert 3 < count <= 3 * MAX_REQUESTS
        # The key, the list, and each session once.
        assert count == 5

    second(test)


def test_what_is_not_there_is_named(first, second):
    joined, store = first
    saved(store, "s1", *CONTENT[:3])
    joined.upload(store, "s1")

    async def test(b):
        with pytest.raises(RemoteNotFound, match="There is no remote 'none'"):
            await b.at_remote.sessions("none")
        for session_id in ("", "k1", "k2"):
            with pytest.raises(SnapshotNotFound, match="lists no snapshot s2"):
                await b.at_remote.estimate("share", "s2", session_id)
        [state] = await b.at_remote.remotes()
        assert (state.name, state.refusals) == ("share", [])
        assert state.tried_at > 0

    second(test)


def test_one_session_that_cannot_be_read_does_not_hide_the_others(first, second, tmp_path):
    joined, store = first
    for kernel_id in ("k1", "k2"):
        saved(store, f"s-{kernel_id}", *CONTENT[:3], kernel_id=kernel_id)
        joined.upload(store, f"s-{kernel_id}")
    path = tmp_path / "share/sessions/k1"
    path.write_bytes(path.read_bytes()[:-1] + b"!")

    async def test(b):
        listing = await b.at_remote.sessions("share")
        assert [one.session_id for one in listing.sessions] == ["k2"]
        assert len(listing.unreadable) == 1
        assert "sessions/k1" in listing.unreadable[0]
        await b.at_remote.estimate("share", "s-k2")
        with pytest.raises(SnapshotNotFound) as caught:
            await b.at_remote.estimate("share", "s-k1")
        assert "sessions/k1" in caught.value.details

    second(test)


@pytest.mark.parametrize("how", ["damaged", "another's", "gone"])
@pytest.mark.parametrize("what", ["packs", "manifests"])
def test_what_was_altered_is_refused_and_the_store_is_as_it_was(first, second, tmp_path, what, how):
    joined, store = first
    saved(store, "s1", *CONTENT)
    joined.upload(store, "s1")
    one = sorted((tmp_path / "share" / what).iterdir())[0]
    if how == "damaged":
        data = bytearray(one.read_bytes())
        data[len(data) // 2] ^= 1
        one.write_bytes(data)
    elif how == "another's":
        other = join(tmp_path / "stranger", Remote("other", f"file://{tmp_path}/other"))
        with LocalStore(tmp_path / "stranger/store") as strange:
            saved(strange, "s1", *CONTENT)
            other.upload(strange, "s1")
        one.write_bytes(next(iter((tmp_path / "other" / what).iterdir())).read_bytes())
    else:
        one.unlink()

    async def test(b):
        saved(b.store, "mine", b"x" * 10_000)
        if what == "manifests":
            with pytest.raises(RemoteObjectInvalid if how != "gone" else GpuCkptError) as caught:
                await b.fetched("share", "s1")
            assert caught.value.code in {"remote_object_invalid", "remote_object_missing"}
        else:
            done = await b.fetched("share", "s1")
            assert done.state is OperationState.FAILED
            assert done.error.code in {"remote_object_invalid", "remote_object_missing"}
        assert [info.snapshot_id for info in b.store.snapshots()] == ["mine"]
        b.store.verify("mine")

    second(test)


@contextmanager
def held(monkeypatch, after=0):
    """Have reads of packs wait after so many: says when one does, and lets them go on."""
    waits, go_on, left = threading.Event(), threading.Event(), iter(range(after))
    get_range = Bucket.get_range

    def read(self, name, start, end):
        if start and end - start > 100_000 and next(left, None) is None:
            waits.set()
            assert go_on.wait(60)
        return get_range(self, name, start, end)

    monkeypatch.setattr(Bucket, "get_range", read)
    try:
        yield waits, go_on
    finally:
        go_on.set()


def test_a_fetch_that_is_cancelled_leaves_the_store_as_it_was(first, second, monkeypatch):
    joined, store = first
    saved(store, "s1", *CONTENT)
    joined.upload(store, "s1", pack_bytes=500_000)

    async def test(b):
        saved(b.store, "mine", b"x" * 10_000)
        before = pack_files(b.store)
        with held(monkeypatch, after=1) as (waits, go_on):
            operation = await b.at_remote.fetch("share", "s1", FetchRequest())
            assert await asyncio.to_thread(waits.wait, 60)
            # Who asks again follows the one that is under way.
            assert await b.at_remote.fetch("share", "s1", FetchRequest()) is operation
            stored = lambda: operation.progress.record().done_bytes  # noqa: E731
            await asyncio.to_thread(wait_for, stored, 60)
            operation.cancel()
            go_on.set()
            await operation.until_ended(60)
        assert operation.state is OperationState.CANCELLED
        assert [info.snapshot_id for info in b.store.snapshots()] == ["mine"]
        assert pack_files(b.store) == before
        # And it can be fetched after all.
        assert (await b.fetched("share", "s1")).state is OperationState.SUCCEEDED

    second(test)


def test_a_fetch_that_waits_for_its_remote_is_cancelled(first, second, monkeypatch):
    joined, store = first
    saved(store, "s1", *CONTENT)
    joined.upload(store, "s1")

    async def test(b):
        failed = threading.Event()
        once = Bucket._once

        def out_of_reach(self, work, name):
            if name.startswith("packs/"):
                failed.set()
                raise StoreUnavailable("It is out of reach.")
            return once(self, work, name)

        monkeypatch.setattr(Bucket, "_once", out_of_reach)
        operation = await b.at_remote.fetch("share", "s1", FetchRequest())
        assert await asyncio.to_thread(failed.wait, 60)
        operation.cancel()
        await operation.until_ended()
        # Else it would fail in the end, because the remote stays out of reach.
        assert operation.state is OperationState.CANCELLED

    second(test)


def test_a_fetch_ends_with_the_daemon_that_leaves(first, second, monkeypatch):
    joined, store = first
    saved(store, "s1", *CONTENT)
    joined.upload(store, "s1")

    async def test(b):
        with held(monkeypatch) as (waits, go_on):
            operation = await b.at_remote.fetch("share", "s1", FetchRequest())
            assert await asyncio.to_thread(waits.wait, 60)
            closing = asyncio.ensure_future(b.at_remote.close())
            await asyncio.sleep(0)
            go_on.set()
            await closing
        assert operation.state is OperationState.CANCELLED
        assert b.store.snapshots() == []

    second(test)


def test_a_fetch_that_is_killed_leaves_the_store_as_it_was(first, second, tmp_path):
    joined, store = first
    saved(store, "s1", *CONTENT)
    joined.upload(store, "s1")
    join(tmp_path / "second", joined.remote, joined.line)
    with LocalStore(tmp_path / "second/store") as own:
        saved(own, "mine", b"x" * 10_000)
    words = [sys.executable, "-m", "tests.remote.fetching", str(tmp_path / "second"), "share", "s1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout.readline() == "stored\n"
        process.kill()
    (tmp_path / "second/remotes.json").unlink()  # `second` adds it again

    async def test(b):
        assert [info.snapshot_id for info in b.store.snapshots()] == ["mine"]
        b.store.verify("mine")
        assert (await b.fetched("share", "s1")).state is OperationState.SUCCEEDED
        b.store.verify("s1")

    second(test)


def test_what_differs_here_is_said_before_anything_is_moved(first, second, tmp_path, monkeypatch):
    joined, store = first
    library = tmp_path / "library.so"
    library.write_bytes(b"another version")
    os.mkfifo(tmp_path / "pipe")
    saved(
        store,
        "s1",
        *CONTENT,
        mapped=[
            MappedFile(str(library), 15, digest="0" * 64),
            MappedFile(f"{tmp_path}/gone", 3),
            MappedFile(f"{tmp_path}/pipe", 0, digest="0" * 64),
        ],
        launch=msgspec.structs.replace(manifest("s1").launch, cwd=f"{tmp_path}/nowhere"),
        host=msgspec.structs.replace(
            manifest("s1").host,
            machine=platform.machine(),
            cpu_flags=["avx9999"],
            kernel_release="999.1",
            home=str(tmp_path),
        ),
    )
    joined.upload(store, "s1")

    async def test(b):
        estimate = await b.at_remote.estimate("share", "s1")
        words = "\n".join(estimate.obstacles)
        assert f"The file {library}, which the kernel uses, was replaced" in words
        assert f"The file {tmp_path}/gone, which the kernel uses, is gone" in words
        assert f"{tmp_path}/pipe, which the kernel uses, was replaced (a file then" in words
        assert "lacks instructions that the saved one had: avx9999" in words
        assert f"There is no folder {tmp_path}/nowhere" in words
        here = os.environ["HOME"]
        assert f"in the home directory of its machine, {tmp_path}; here it is {here}." in words
        assert "at the same paths and in the same versions" in estimate.hint
        assert ["older" in one for one in estimate.warnings] == [True]
        with held(monkeypatch) as (moved, _):
            with pytest.raises(HostIncompatible, match="so it is not fetched") as caught:
                await b.fetched("share", "s1")
            assert not moved.is_set()
        assert "--force" in caught.value.command
        done = await b.fetched("share", "s1", force=True)
        assert done.state is OperationState.SUCCEEDED
        assert done.result.warnings == [*estimate.obstacles, *estimate.warnings]

    second(test)


@pytest.mark.parametrize("remote", ["seaweedfs"], indirect=True)
def test_a_refusal_of_the_endpoint_repeats_no_credential(remote, tmp_path, monkeypatch):
    join(tmp_path / "a", remote)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")

    async def test():
        b = Here(tmp_path / "a")
        try:
            for asked in (
                b.at_remote.sessions(remote.name),
                b.at_remote.estimate(remote.name, "s1", "k1"),
                b.at_remote.fetch(remote.name, "s1", FetchRequest()),
            ):
                with pytest.raises(AccessDenied) as caught:
                    await asked
                assert "in which it was started" in caught.value.hint
                said = str(msgspec.to_builtins(record_of(caught.value)))
                for secret in ("hunter2", servers.ACCESS_KEY, remote.settings["endpoint"]):
                    assert secret not in said
        finally:
            await b.at_remote.close()
            b.machine.close()

    asyncio.run(test())
