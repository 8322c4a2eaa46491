"""Snapshots go to remotes by themselves, whatever happens to daemon and remote meanwhile."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress

import pytest

from jupyter_gpuckpt import calls, place
from jupyter_gpuckpt.cli import app
from jupyter_gpuckpt.protocol import SaveRequest
from jupyter_gpuckpt.remote_records import RemoteVerb
from jupyter_gpuckpt.snapshot_records import SnapshotChangeKind, UploadState
from jupyter_gpuckpt.store.far import far_manifests
from tests.far.installations import Reader, add_remote, ask, save, some_chunks, store_of

#: For what a loaded machine does.
LONG = 120.0
#: Of some seconds for what several packs hold.
SLOW = 10_000_000


@pytest.fixture
def add(settings, short_dir):
    """Return a function that adds a remote, a folder unless its URL is given."""

    def added(name="far", url="", **fields):
        return add_remote(settings.data, name, url or f"file://{short_dir}/{name}", **fields)

    return added


@pytest.fixture
def snapshots(settings):
    """Return a function that makes snapshots before there is a daemon; the last one is the newest."""

    def make(**contents):
        with store_of(settings.data) as store:
            for number, (snapshot_id, chunks) in enumerate(contents.items()):
                save(store, snapshot_id, *chunks, created=1.0 + number)

    return make


@pytest.fixture
def state_of(settings):
    """Return a function that says how far a snapshot is on its way to a remote; None if it is not to go there."""

    def find(client, snapshot_id, remote="far"):
        for info in client.send(calls.snapshots()):
            if info.snapshot_id == snapshot_id:
                return next((one for one in info.uploads if one.remote == remote), None)
        return None

    return find


@pytest.fixture
def uploaded(state_of, eventually):
    """Return a function that waits until a remote has a snapshot."""

    def wait(client, *snapshot_ids, remote="far"):
        for snapshot_id in snapshot_ids:
            eventually(
                lambda one=snapshot_id: (
                    (found := state_of(client, one, remote)) is not None
                    and found.state is UploadState.UPLOADED
                ),
                LONG,
            )

    return wait


@pytest.fixture
def reader(settings):
    """Return a function that opens a remote as another machine would."""

    def opened(name="far"):
        return Reader(settings.data, name)

    return opened


def test_a_save_is_uploaded_and_another_store_gets_it_back(
    add, client, owner, events, spec, counts, eventually, uploaded, reader
):
    add()
    kept = {"path": "work/notes.ipynb", "hub_user": "ada", "server_name": "second"}
    launched = client.send(calls.launch(owner.owner_id, spec(jupyter=kept)))
    eventually(lambda: counts(launched.kernel_id))
    request = SaveRequest(name="work/notes.ipynb", title="before the change")
    operation = client.send(calls.save(launched.kernel_id, request))
    snapshot_id = client.wait(operation.operation_id).snapshot_id
    uploaded(client, snapshot_id)
    changes = [one.snapshot for one in events if one.snapshot]
    assert {one.change for one in changes} == {SnapshotChangeKind.ADDED, SnapshotChangeKind.CHANGED}
    facts = reader().listed()[snapshot_id].facts
    assert (facts.session_id, facts.path) == (launched.kernel_id, "work/notes.ipynb")
    assert (facts.hub_user, facts.server_name) == ("ada", "second")
    assert facts.title == "before the change"
    assert facts.host_name == os.uname().nodename
    assert reader().fetch_all()[snapshot_id]
    [remote] = client.send(calls.uploads())
    assert (remote.uploaded, remote.waiting, remote.failed) == (1, 0, [])
    assert remote.last_uploaded_at


def test_nothing_is_uploaded_twice_and_other_remotes_are_taken_without_a_restart(
    add, snapshots, client, uploaded, reader, settings, eventually, capsys
):
    chunks = some_chunks(1, 3)
    snapshots(first=chunks[:2], second=chunks)
    assert app.main(["list"]) == 0
    assert "REMOTES" not in capsys.readouterr().out
    add()
    uploaded(client, "first", "second")
    assert reader().fetch_all() == {"first": chunks[:2], "second": chunks}
    add("other")
    uploaded(client, "first", "second", remote="other")
    assert app.main(["list"]) == 0
    out = capsys.readouterr().out
    assert "REMOTES" in out
    assert out.count("far, other") == 2
    restart(client, eventually)
    uploaded(client, "first", "second")
    log = settings.log_file.read_text()
    # The newest first.
    assert log.index("uploaded snapshot second to far") < log.index(
        "uploaded snapshot first to far"
    )
    assert log.count("uploaded snapshot") == 4
    ask(RemoteVerb.REMOVE, settings.data, "other")
    [info, _] = client.send(calls.snapshots())
    assert [one.remote for one in info.uploads] == ["far"]


def test_a_daemon_that_is_killed_while_it_uploads_goes_on_and_sends_no_pack_twice(
    add, snapshots, client, uploaded, reader, settings, eventually
):
    chunks = some_chunks(2, 90)
    snapshots(one=chunks)
    add(upload_rate=SLOW)
    path = settings.data / "remotes/far/uploads/one.jsonl"
    eventually(lambda: packs_in(path), LONG)
    restart(client, eventually)
    sent = packs_in(path)
    assert sent
    assert not reader().listed()
    uploaded(client, "one")
    far = reader()
    [session] = far.listed().values()
    manifest = far_manifests.read(far.bucket, far.seal, session.listed[0].manifest)
    assert sent <= {ref.name for ref in manifest.packs}
    assert far.fetch_all() == {"one": chunks}
    assert not path.exists()


def packs_in(journal):
    """The packs that the remote has confirmed."""
    with suppress(FileNotFoundError):
        lines = [line for line in journal.read_text().split("\n") if line.endswith("}")]
        told = [json.loads(line) for line in lines]
        return {one["pack"]["ref"]["name"] for one in told if "pack" in one}
    return set()


def restart(client, eventually):
    """Kill the daemon with -9; the next call starts another."""
    pid = client.send(calls.handshake()).pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: place.start_time(pid) is None)
    assert client.send(calls.handshake()).pid != pid
