"""A suspended kernel whose memory is only in a remote comes back, whatever kills the daemon meanwhile."""

from __future__ import annotations

import json
import os
import signal
import uuid

import msgspec
import pytest

from jupyter_gpuckpt.cli import app
from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.daemon.remotes.change_sender import telling_lock
from jupyter_gpuckpt.errors import RemoteNotFound, SnapshotInRemoteOnly, StoreError
from jupyter_gpuckpt.linux.file_locks import eviction
from jupyter_gpuckpt.wire import calls, place
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from jupyter_gpuckpt.wire.progress import Stage
from jupyter_gpuckpt.wire.protocol import BranchRequest
from jupyter_gpuckpt.wire.states import KernelState
from tests.daemon.test_crashes_at_every_step import Dying
from tests.live_files import bytes_below
from tests.remote.installations import add_remote

#: For what a loaded machine does.
LONG = 300.0

STORE = "jupyter_gpuckpt.store."
#: Where a daemon is killed: in the middle of an eviction, and of the fetch that a resume begins with.
MARKED, COLLECTED = STORE + "stubs.Stubs.make", STORE + "local.LocalStore.sweep"
FETCHED, ENDED = "jupyter_gpuckpt.remote.fetch._Fetching.run", STORE + "stubs.Stubs.end"


@pytest.fixture
def near(settings):
    """Return the settings of a daemon that keeps nothing here that a remote has."""
    return msgspec.structs.replace(settings, near_bytes=1)


@pytest.fixture
def share(settings, short_dir):
    """Add a folder as remote; return the folder."""
    add_remote(settings.data, "offsite", f"file://{short_dir}/offsite")
    return short_dir / "offsite"


@pytest.fixture
def dying(short_dir, eventually):
    """Return a function that starts a daemon which dies once."""
    started = []

    def start(settings, *methods):
        made = Dying(settings, short_dir / "die-at", eventually, methods)
        started.append(made)
        return made

    yield start
    for one in started:
        one.end()


def stop(settings, eventually):
    """End the daemon, so that the next one has other settings."""
    with Client.connect(settings) as client:
        pid = client.send(calls.handshake()).pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: place.start_time(pid) is None, LONG)


def stored_bytes(settings):
    """Return the length of the store's packs, in bytes."""
    return bytes_below(settings.data / "store/packs")


def the_one(client, snapshot_id):
    """Return a snapshot as lists show it."""
    [found] = [one for one in client.send(calls.snapshots()) if one.snapshot_id == snapshot_id]
    return found


@pytest.fixture
def suspended(spec, counts, eventually):
    """Return a function that launches a kernel and suspends it; it returns the ids of the kernel and of its snapshot."""

    def begin(client, owner):
        kernel_id = client.send(calls.launch(owner.owner_id, spec())).kernel_id
        eventually(lambda: counts(kernel_id), LONG)
        client.wait(client.send(calls.suspend(kernel_id)).operation_id)
        return kernel_id, client.send(calls.kernel(kernel_id)).snapshot_id

    return begin


def test_a_kernel_comes_back_from_what_only_a_remote_has(
    near, share, owner_of, suspended, counts, eventually, capsys, monkeypatch
):
    with Client.connect(near) as client, owner_of(client) as owner:
        kernel_id, snapshot_id = suspended(client, owner)
        count = counts(kernel_id)
        eventually(lambda: the_one(client, snapshot_id).remote_only == "offsite", LONG)
        eventually(
            lambda: stored_bytes(near) < the_one(client, snapshot_id).sizes.stored_bytes / 5, LONG
        )
        # What is read without a resume is here: the next server gets to know the kernel's key.
        launched = client.send(calls.launch_spec(snapshot_id))
        assert isinstance(launched, LaunchSpec)
        assert launched.secrets == {"key": "not-for-the-log"}
        with pytest.raises(SnapshotInRemoteOnly):
            client.send(calls.verify(snapshot_id))
        usage = client.send(calls.store())
        assert (usage.remote_snapshots, usage.snapshots) == (1, 1)
        assert usage.remote_bytes == the_one(client, snapshot_id).sizes.stored_bytes
        # It is shown.
        assert app.main(["list"]) == 0
        assert "offsite, not here" in capsys.readouterr().out
        assert app.main(["list", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["snapshots"][0]["remote_only"] == "offsite"
        assert app.main(["ps"]) == 0
        assert "not here" in capsys.readouterr().out
        assert app.main(["ps", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["remote_only"] == {snapshot_id: "offsite"}
        assert app.main(["remote", "sessions", "offsite"]) == 0
        assert capsys.readouterr().out.splitlines()[1].endswith("listed")
        assert app.main(["verify"]) == 0
        assert "Not verified" in capsys.readouterr().err
        assert app.main(["remote", "rm", "offsite"]) == 2
        assert f"only copies of these snapshots: {snapshot_id}" in capsys.readouterr().err
        # It does not come back while the remote is away, and nothing is lost by trying.
        share.rename(share.with_name("moved"))
        with pytest.raises(StoreError) as caught:
            client.wait(client.send(calls.resume(kernel_id)).operation_id)
        assert "only in remote offsite" in caught.value.hint
        assert client.send(calls.kernel(kernel_id)).state is KernelState.SUSPENDED
        assert the_one(client, snapshot_id).remote_only == "offsite"
        share.with_name("moved").rename(share)
        # A branch of it, then itself.
        other = str(uuid.uuid4())
        client.send(calls.branch(BranchRequest(owner.owner_id, snapshot_id, other, [])))
        done = client.wait(client.send(calls.resume(other)).operation_id)
        assert next(iter(done.seconds_by_stage)) == Stage.FETCH
        eventually(lambda: counts(kernel_id) > count, LONG)
        client.send(calls.kill(other))
        count = counts(kernel_id)
        client.wait(client.send(calls.resume(kernel_id)).operation_id)
        eventually(lambda: counts(kernel_id) > count, LONG)
        assert app.main(["remote", "rm", "offsite", "--force"]) == 0


def damage_stub(settings, snapshot_id):
    (settings.data / f"store/manifests/{snapshot_id}.stub").write_bytes(b"damaged")


def test_a_kernel_whose_stub_is_damaged_comes_back_from_what_is_here(
    settings, owner_of, suspended, counts, eventually
):
    with Client.connect(settings) as client, owner_of(client) as owner:
        kernel_id, snapshot_id = suspended(client, owner)
        damage_stub(settings, snapshot_id)
        assert the_one(client, snapshot_id).remote_only == ""
        count = counts(kernel_id)
        client.wait(client.send(calls.resume(kernel_id)).operation_id)
        eventually(lambda: counts(kernel_id) > count, LONG)
        assert the_one(client, snapshot_id).remote_only is None


def test_a_stub_that_is_damaged_and_in_no_remote_says_so(
    near, share, owner_of, suspended, eventually
):
    with Client.connect(near) as client, owner_of(client) as owner:
        kernel_id, snapshot_id = suspended(client, owner)
        eventually(lambda: the_one(client, snapshot_id).remote_only == "offsite", LONG)
        eventually(
            lambda: stored_bytes(near) < the_one(client, snapshot_id).sizes.stored_bytes / 5, LONG
        )
        damage_stub(near, snapshot_id)
        assert app.main(["remote", "rm", "offsite", "--force"]) == 0
        with pytest.raises(RemoteNotFound, match=r"stub` is damaged"):
            client.wait(client.send(calls.resume(kernel_id)).operation_id)
        assert client.send(calls.kernel(kernel_id)).state is KernelState.SUSPENDED


def test_an_eviction_that_meets_another_task_follows_soon(
    settings, near, share, owner_of, suspended, eventually
):
    with Client.connect(settings) as client, owner_of(client) as owner:
        _, snapshot_id = suspended(client, owner)
        eventually(lambda: client.send(calls.uploads())[0].uploaded, LONG)
    stop(settings, eventually)
    with telling_lock(settings.data, "offsite") as is_alone:
        assert is_alone
        with Client.connect(near) as client:
            eventually(eviction(settings.data, "offsite").exists)
            assert the_one(client, snapshot_id).remote_only is None
    with Client.connect(near) as client:
        eventually(lambda: the_one(client, snapshot_id).remote_only == "offsite")


@pytest.mark.slow
def test_a_daemon_that_is_killed_while_it_evicts_or_fetches_back_costs_nothing(
    settings, near, share, dying, owner_of, suspended, counts, eventually
):
    with Client.connect(settings) as client, owner_of(client) as owner:
        kernel_id, snapshot_id = suspended(client, owner)
        whole = stored_bytes(settings)
        eventually(lambda: client.send(calls.uploads())[0].uploaded, LONG)

    for at, is_stub in ((MARKED, True), (COLLECTED, True), (FETCHED, True), (ENDED, False)):
        evicts = at in (MARKED, COLLECTED)
        stop(settings, eventually)
        (settings.data.parent / "die-at").write_text(at if evicts else "")
        daemon = dying(near if evicts else settings, at)
        if not evicts:
            daemon.at(at)
            with Client.connect(settings) as client:
                client.send(calls.resume(kernel_id))
        daemon.wait()
        with Client.connect(settings) as client:
            assert client.send(calls.kernel(kernel_id)).state is KernelState.SUSPENDED
            assert the_one(client, snapshot_id).remote_only == ("offsite" if is_stub else None), at
            if not is_stub:
                assert client.send(calls.verify(snapshot_id)).ok
        if at == MARKED:
            assert stored_bytes(settings) == whole
        if at in (MARKED, FETCHED):
            # The next daemon that keeps the limit goes on where it was.
            stop(settings, eventually)
            with Client.connect(near):
                eventually(lambda: stored_bytes(settings) < whole / 5, LONG)
            if at == MARKED:
                stop(near, eventually)
                with Client.connect(settings) as client:
                    fetched = client.send(calls.fetch("offsite", snapshot_id))
                    assert client.wait(fetched.operation_id).sizes.new_bytes
                    assert client.send(calls.verify(snapshot_id)).ok
    count = counts(kernel_id)
    with Client.connect(settings) as client, owner_of(client):
        client.wait(client.send(calls.resume(kernel_id)).operation_id)
        eventually(lambda: counts(kernel_id) > count, LONG)
