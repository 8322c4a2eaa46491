"""Snapshots go to remotes by themselves, whatever happens to daemon and remote meanwhile."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.cli import app
from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.daemon.remotes.sending import Sending
from jupyter_gpuckpt.host.idle_priority import NICE
from jupyter_gpuckpt.remote import remote_manifests
from jupyter_gpuckpt.wire import calls, place
from jupyter_gpuckpt.wire.protocol import SaveRequest
from jupyter_gpuckpt.wire.remote_records import RemoteVerb
from jupyter_gpuckpt.wire.snapshot_records import SnapshotChangeKind, UploadRequest, UploadState
from tests.conftest import processes_naming
from tests.daemon.conftest import LONG
from tests.remote import servers
from tests.remote.installations import ask, save, some_chunks, store_of

#: Bytes per second: the second pack goes half a minute after the first, with which every process begins at once.
SLOW = 1_000_000
#: Chunks that are two packs, or three.
TWO, THREE = 40, 70


pytestmark = pytest.mark.usefixtures("credentials")


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
    wanted = {SnapshotChangeKind.ADDED, SnapshotChangeKind.CHANGED}
    eventually(lambda: {one.snapshot.change for one in list(events) if one.snapshot} == wanted)
    facts = reader().listed()[snapshot_id].facts
    assert (facts.session_id, facts.path) == (launched.kernel_id, "work/notes.ipynb")
    assert (facts.hub_user, facts.server_name) == ("ada", "second")
    assert facts.title == "before the change"
    assert facts.host_name == os.uname().nodename
    assert reader().fetch_all()[snapshot_id]
    [remote] = client.send(calls.uploads())
    assert (remote.uploaded, remote.waiting, remote.failed) == (1, 0, [])
    assert remote.last_uploaded_at
    assert remote.traffic.sent_bytes > 0
    assert remote.traffic.seconds > 0


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
    assert out.count("offsite, other") == 2
    restart(client, eventually)
    uploaded(client, "first", "second")
    log = settings.log_file.read_text()
    # The newest first.
    assert log.index("uploaded snapshot second to offsite") < log.index(
        "uploaded snapshot first to offsite"
    )
    assert log.count("uploaded snapshot") == 4
    ask(RemoteVerb.REMOVE, settings.data, "other")
    [info, _] = client.send(calls.snapshots())
    assert [one.remote for one in info.uploads] == ["offsite"]


def test_a_daemon_that_is_killed_while_it_uploads_goes_on_and_sends_no_pack_twice(
    add, snapshots, client, uploaded, reader, settings, eventually
):
    chunks = some_chunks(2, TWO)
    snapshots(one=chunks)
    add(upload_rate=SLOW)
    path = settings.data / "remotes/offsite/uploads/one.jsonl"
    eventually(lambda: packs_in(path), LONG)
    restart(client, eventually)
    sent = packs_in(path)
    assert sent
    assert not reader().listed()
    uploaded(client, "one")
    at_remote = reader()
    [session] = at_remote.listed().values()
    manifest = remote_manifests.read(at_remote.bucket, at_remote.seal, session.listed[0].manifest)
    assert sent <= {ref.name for ref in manifest.packs}
    assert at_remote.fetch_all() == {"one": chunks}
    assert not path.exists()


def packs_in(journal):
    """Return the packs that the remote has confirmed."""
    with suppress(FileNotFoundError):
        lines = [line for line in journal.read_text().split("\n") if line.endswith("}")]
        told = [json.loads(line) for line in lines]
        return {one["pack"]["ref"]["name"] for one in told if "pack" in one}
    return set()


def test_a_remote_that_is_down_gets_what_is_waiting_when_it_is_up_again(
    add, snapshots, client, uploaded, state_of, settings, eventually, capsys, tmp_path
):
    snapshots(one=some_chunks(3, 2))
    server = servers.SeaweedFS(tmp_path)
    with server.running() as url:
        there = servers.s3_remote(url, "offsite")
        add(url=there.url, settings=there.settings, paused=True)
        assert state_of(client, "one").state is UploadState.WAITING
    ask(RemoteVerb.RESUME, settings.data, "offsite")
    eventually(lambda: state_of(client, "one").error, LONG)
    found = state_of(client, "one")
    assert (found.state, found.error.code) == (UploadState.WAITING, "store_unavailable")
    assert app.main(["remote", "status", "offsite"]) == 0
    assert "cannot be reached" in capsys.readouterr().out
    assert app.main(["remote", "status", "other"]) == 2
    with server.running():
        uploaded(client, "one")
        [remote] = client.send(calls.uploads())
        assert (remote.trouble, remote.waiting) == (None, 0)


def test_what_is_deleted_or_whose_remote_is_removed_is_not_uploaded_any_more(
    add, snapshots, client, uploaded, reader, settings, eventually
):
    snapshots(stays=some_chunks(4, 2), gone=some_chunks(5, THREE))
    add(upload_rate=SLOW)
    eventually(lambda: packs_in(settings.data / "remotes/offsite/uploads/gone.jsonl"), LONG)
    client.send(calls.delete_snapshot("gone"))
    uploaded(client, "stays")
    assert set(reader().listed()) == {"stays"}
    client.send(calls.undelete("gone"))
    eventually(lambda: workers(settings), LONG)
    ask(RemoteVerb.REMOVE, settings.data, "offsite")
    eventually(lambda: not workers(settings), LONG)
    assert not (settings.data / "remotes/offsite").exists()
    assert [info.uploads for info in client.send(calls.snapshots())] == [[], []]
    log = settings.log_file.read_text()
    assert log.count("uploaded snapshot") == 1


def test_a_snapshot_that_is_damaged_fails_and_holds_up_no_other(
    add, snapshots, client, uploaded, state_of, settings, eventually, capsys
):
    snapshots(good=some_chunks(6, 1), bad=some_chunks(7, 1))
    [pack] = [path for path in (settings.data / "store/packs").iterdir() if holds(path, 7)]
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    add()
    uploaded(client, "good")
    found = state_of(client, "bad")
    assert (found.state, found.error.code) == (UploadState.FAILED, "object_corrupt")
    assert app.main(["remote", "status"]) == 0
    assert "Snapshot bad was not uploaded" in capsys.readouterr().err
    assert app.main(["remote", "upload", "offsite", "bad"]) == 10
    assert settings.log_file.read_text().count("bad was not uploaded") == 2


@pytest.mark.slow
def test_a_remote_uploads_by_hand_or_not_for_now_where_its_user_says_so(
    add, snapshots, client, state_of, reader, settings, eventually, capsys
):
    snapshots(first=some_chunks(8, 1), second=some_chunks(9, 1))
    add(automatic=False)
    add("other")
    assert app.main(["remote", "pause", "other"]) == 0
    restart(client, eventually)
    assert state_of(client, "first") is None
    assert app.main(["remote", "upload", "offsite", "first"]) == 0
    assert app.main(["remote", "upload", "other", "sec"]) == 0
    assert set(reader().listed()) == {"first"}
    assert set(reader("other").listed()) == {"second"}
    assert state_of(client, "first", "other").state is UploadState.WAITING
    capsys.readouterr()
    assert app.main(["remote", "status", "--json"]) == 0
    at_remote, other = json.loads(capsys.readouterr().out)["remotes"]
    assert (at_remote["automatic"], at_remote["uploaded"], at_remote["waiting"]) == (False, 1, 0)
    assert (other["paused"], other["waiting"]) == (True, 1)
    assert other["waiting_bytes"] == 0  # these records know no sizes
    assert 1 << 20 < at_remote["traffic"]["sent_bytes"] < 2 << 20
    assert app.main(["remote", "upload", "none", "first"]) == 2
    assert app.main(["remote", "upload", "offsite", "none"]) == 5
    assert app.main(["remote", "resume", "other"]) == 0
    eventually(lambda: set(reader("other").listed()) == {"first", "second"}, LONG)
    # What was erased does not come back, and a remote that was erased is none any more.
    assert app.main(["remote", "erase", "other", "second", "--yes"]) == 0
    assert state_of(client, "second", "other") is None
    assert set(reader("other").listed()) == {"first"}
    assert app.main(["remote", "erase", "other", "--yes"]) == 0
    assert [one.remote for one in client.send(calls.uploads())] == ["offsite"]


def test_a_daemon_stays_for_an_upload_at_the_lowest_priority_and_leaves_after_it(
    add, snapshots, reader, settings, eventually
):
    snapshots(one=some_chunks(10, TWO))
    add(upload_rate=4 * SLOW)
    soon = msgspec.structs.replace(settings, idle_exit_seconds=0.1)
    with Client.connect(soon) as client:
        pid = client.send(calls.handshake()).pid
    [worker] = eventually(lambda: workers(settings), LONG)
    eventually(lambda: os.getpriority(os.PRIO_PROCESS, worker) == NICE, LONG)
    eventually(lambda: place.start_time(pid) is None, LONG)
    assert set(reader().listed()) == {"one"}


@pytest.mark.slow
def test_an_upload_for_which_a_user_waits_is_not_behind_everything_else(
    add, snapshots, client, uploaded, settings, eventually
):
    def priorities():
        with suppress(ProcessLookupError):
            return {os.getpriority(os.PRIO_PROCESS, one) for one in workers(settings)}

    snapshots(one=some_chunks(15, TWO), other=some_chunks(16, TWO))
    add(upload_rate=4 * SLOW)
    eventually(lambda: priorities() == {NICE}, LONG)
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    # Whichever of them is uploaded now makes room, and the one that is wanted comes first.
    for snapshot_id in ("one", "other"):
        client.send(calls.upload(UploadRequest("offsite", [snapshot_id])))
        eventually(lambda: priorities() == {usual}, LONG)
    uploaded(client, "one", "other")
    log = settings.log_file.read_text()
    assert log.index("uploaded snapshot one") < log.index("uploaded snapshot other")


def test_a_stop_signal_ends_an_upload_at_once(add, snapshots, client, reader, settings, eventually):
    snapshots(one=some_chunks(11, TWO))
    add(upload_rate=SLOW)
    pid = client.send(calls.handshake()).pid
    path = settings.data / "remotes/offsite/uploads/one.jsonl"
    eventually(lambda: packs_in(path), LONG)
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: place.start_time(pid) is None, LONG)
    assert workers(settings) == []
    assert packs_in(path)
    assert not reader().listed()


def test_an_upload_waits_while_a_user_waits_for_something_else(add, settings, eventually):
    told, chunks = [], some_chunks(12, 2)
    with store_of(settings.data) as store, ThreadPoolExecutor(2) as pool:
        save(store, "one", *chunks)
        held = Sending(settings.data, add(), "one")
        other = Sending(settings.data, add("other"), "one")
        held.hold(on=True)
        waiting = pool.submit(held.run, store, lambda *bytes_: told.append(bytes_))
        # As much work as the one that waits would have done meanwhile.
        assert other.run(store, lambda *_: None).packs == 1
        assert told == []
        assert not waiting.done()
        held.hold(on=False)
        assert waiting.result(LONG).packs == 1
        assert told


def workers(settings):
    """Return the processes that upload for a daemon, or for a test."""
    found = processes_naming(Path(settings.data_dir).parent)
    return [pid for pid in found if "upload_worker" in cmdline(pid)]


def cmdline(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def holds(pack, seed):
    """Whether a pack holds the chunks of a seed."""
    return some_chunks(seed, 1)[0][:1000] in pack.read_bytes()


def restart(client, eventually):
    """Kill the daemon with -9; the next call starts another."""
    pid = client.send(calls.handshake()).pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: place.start_time(pid) is None)
    assert client.send(calls.handshake()).pid != pid


@pytest.mark.slow
def test_what_a_user_deletes_is_deleted_in_the_remote_also_by_the_next_daemon(
    add, snapshots, settings, uploaded, reader, eventually
):
    snapshots(
        stays=some_chunks(6, 1),
        first=some_chunks(7, 1),
        second=some_chunks(8, 1),
        automatic=some_chunks(9, 1),
    )
    add()
    hasty = msgspec.structs.replace(settings, undo_delete_seconds=0.2)
    with Client.connect(hasty) as client:
        uploaded(client, "stays", "first", "second", "automatic")
        client.send(calls.delete_snapshot("automatic", here_only=True))
        eventually(lambda: len(client.send(calls.snapshots())) == 3, LONG)
        eventually(lambda: not client.send(calls.snapshots(deleted=True)), LONG)
        client.send(calls.delete_snapshot("first"))
        eventually(lambda: set(reader().listed()) == {"stays", "second", "automatic"}, LONG)
        eventually(lambda: client.send(calls.uploads())[0].deletions == 0, LONG)
        ask(RemoteVerb.PAUSE, settings.data, "offsite")
        client.send(calls.delete_snapshot("second"))
        eventually(lambda: not client.send(calls.snapshots(deleted=True)), LONG)
        restart(client, eventually)
        eventually(lambda: client.send(calls.uploads())[0].deletions == 1, LONG)
        assert set(reader().listed()) == {"stays", "second", "automatic"}
        ask(RemoteVerb.RESUME, settings.data, "offsite")
        eventually(lambda: set(reader().listed()) == {"stays", "automatic"}, LONG)
        eventually(lambda: client.send(calls.uploads())[0].deletions == 0, LONG)
