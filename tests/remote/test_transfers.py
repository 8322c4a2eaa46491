"""A snapshot goes to a remote and comes back on another machine; what is there is not sent again, and nothing altered is used."""

from __future__ import annotations

import errno
import itertools
import random
import re
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from obstore.exceptions import PermissionDeniedError

from jupyter_gpuckpt.errors import (
    AccessDenied,
    ConfigurationError,
    ObjectCorrupt,
    OperationCancelled,
    RemoteObjectInvalid,
    RemoteObjectMissing,
    SnapshotExists,
    SnapshotNotFound,
    StoreFull,
    StoreUnavailable,
)
from jupyter_gpuckpt.remote import (
    epochs,
    index_objects,
    pack_sender,
    remote_manifests,
    remote_packs,
    store_key,
)
from jupyter_gpuckpt.remote.buckets import Bucket, open_bucket
from jupyter_gpuckpt.remote.checking import GAP_BYTES, SPAN_BYTES
from jupyter_gpuckpt.remote.fetch import _READERS as READERS
from jupyter_gpuckpt.remote.retries import Retries
from jupyter_gpuckpt.remote.sealing import HEADER_BYTES
from jupyter_gpuckpt.remote.upload_progress import Journal, unfinished
from jupyter_gpuckpt.store.codecs import RAW, digest_of
from tests.manifests import manifest
from tests.remote import servers
from tests.remote.conftest import CopyingStore, memory_bucket, quick
from tests.remote.stores import FACTS, OWN, Machine, chunks
from tests.unit.test_store_local import pack_files

ROOT = Path(__file__).parents[2]
FIRST = chunks(1)
#: That they go up as.
PACKS = 3


@pytest.fixture
def machine(tmp_path):
    """Return machines with one remote, in memory unless another is given."""
    made = []
    there = memory_bucket()

    def make(name="a", bucket=None, **options):
        made.append(Machine(bucket or there, tmp_path / name, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def content_of(store, snapshot_id):
    return [
        store.load(chunk.digest)
        for stream in store.manifest(snapshot_id).streams
        for chunk in stream.chunks
    ]


def test_a_snapshot_comes_back_on_another_machine(bucket, machine):
    a, b = machine("a", bucket), machine("b", bucket)
    a.save("s1", *FIRST)
    done = a.upload("s1")
    assert done.sent.packs > 2
    assert b.sessions.ids() == ["session-1"]
    session = b.sessions.get("session-1")
    assert session.facts == FACTS
    assert [one.snapshot_id for one in session.listed] == ["s1"]
    b.fetch("s1")
    assert content_of(b.store, "s1") == FIRST
    assert b.store.manifest("s1") == a.store.manifest("s1")
    with pytest.raises(SnapshotExists):
        b.fetch("s1")


def test_the_remote_holds_nothing_that_can_be_read(machine):
    a = machine()
    a.save("s1", *FIRST)
    a.upload("s1")
    names = ["", "packs", "indexes", "manifests", "sessions"]
    found = [one for name in names for one in a.bucket.list(name)]
    everything = b"".join(a.bucket.get(one.name).data for one in found)
    assert len(found) > 5
    for secret in (*FIRST, *map(digest_of, FIRST), b"notes.ipynb", b"ada lovelace"):
        assert secret[:100] not in everything


def test_what_the_remote_has_is_not_sent_again(bucket, machine):
    a = machine("a", bucket)
    a.save("s1", *FIRST)
    a.upload("s1")
    new = chunks(2, 2)
    a.save("s2", *FIRST[:15], *new)
    done = a.upload("s2")
    assert done.sent.packs == 1
    assert 20_000 < done.sent.count_bytes < 45_000
    again = a.upload("s2")
    assert (again.sent.packs, again.snapshot) == (0, done.snapshot)
    b = machine("b", bucket)
    b.fetch("s2")
    assert content_of(b.store, "s2") == [*FIRST[:15], *new]
    # And what the machine has is not fetched again.
    b.fetch("s1")
    assert content_of(b.store, "s1") == FIRST


def test_two_machines_share_what_both_uploaded(machine):
    a, b = machine("a"), machine("b", machine_id="other")
    a.save("s1", *FIRST)
    a.upload("s1")
    b.save("s2", *FIRST)
    assert b.upload("s2").sent.packs == 0
    assert [one.snapshot_id for one in b.sessions.get("session-1").snapshots] == ["s1", "s2"]


def test_the_newest_snapshot_says_where_the_notebook_is(machine):
    a = machine()
    for number, snapshot_id in enumerate(("old", "new")):
        made = manifest(snapshot_id, kernel_id="session-1", created=1.0 + number)
        a.store.publish(made)
    moved = msgspec.structs.replace(FACTS, path="moved.ipynb")
    a.uploader().upload(a.store, "new", moved)
    # What was waiting longer goes up later.
    a.uploader().upload(a.store, "old", FACTS)
    session = a.sessions.get("session-1")
    assert session.facts == moved
    assert len(session.listed) == 2


def test_small_local_packs_go_up_as_few_large_ones(machine):
    a = machine()
    for number in range(6):
        a.save(f"part{number}", *FIRST[number * 3 : number * 3 + 3])
    a.save("s1", *FIRST[:18])
    assert len(pack_files(a.store)) == 6
    assert a.upload("s1", pack_bytes=1 << 20).sent.packs == 1


def test_the_packs_are_there_before_the_index_the_manifest_and_the_session(machine):
    a = machine()
    a.save("s1", *FIRST)
    order = []
    create = a.bucket.create

    def noted(name, data):
        done = create(name, data)
        order.append(name.partition("/")[0])
        return done

    a.bucket.create = noted
    a.upload("s1")
    assert order == [
        "key",
        *["packs"] * order.count("packs"),
        "indexes",
        "manifests",
        "sessions",
    ]


class Failing(Bucket):
    """A bucket that fails for good after some writes."""

    left = 1_000_000

    def create(self, name, data):
        if type(self).left <= 0:
            raise StoreUnavailable("The network is gone.")
        type(self).left -= 1
        return super().create(name, data)


@pytest.mark.parametrize("left", range(6))
def test_an_upload_that_failed_is_listed_nowhere_and_goes_on_where_it_was(
    machine, left, tmp_path, monkeypatch
):
    a = machine("a", Failing(CopyingStore(), "failing", retries=quick()))
    a.save("s1", *FIRST)
    assert a.key
    monkeypatch.setattr(Failing, "left", left)
    # Packs, index, manifest, session.
    with pytest.raises(StoreUnavailable):
        a.upload("s1")
    monkeypatch.undo()
    with pytest.raises(RemoteObjectMissing):
        a.sessions.get("session-1")
    there = len(a.bucket.list("packs"))
    assert a.upload("s1").sent.packs == PACKS - there
    assert len(a.bucket.list("packs")) == PACKS
    assert len(a.bucket.list("manifests")) == 1
    assert not list((tmp_path / "a/state/uploads").iterdir())
    b = machine("b", a.bucket)
    b.fetch("s1")
    assert content_of(b.store, "s1") == FIRST


def test_a_journal_that_was_cut_off_anywhere_costs_nothing_but_packs(
    machine, tmp_path, monkeypatch
):
    kept = []
    end = Journal.end

    def keep(journal):
        kept.append(journal._path.read_bytes())
        end(journal)

    a = machine()
    a.save("s1", *FIRST)
    monkeypatch.setattr(Journal, "end", keep)
    a.upload("s1")
    whole, path = kept[0], tmp_path / "a/state/uploads/s1.jsonl"
    for cut in range(0, len(whole), 500):
        # As if the session had not been written yet.
        a.bucket.delete(["sessions/session-1"])
        path.write_bytes(whole[:cut])
        assert a.upload("s1").sent.packs == 0
        assert not path.exists()
    b = machine("b")
    b.fetch("s1")
    assert content_of(b.store, "s1") == FIRST


def test_an_uploader_that_is_killed_lists_nothing_that_is_not_complete_and_goes_on(
    machine, seaweedfs, tmp_path, monkeypatch
):
    for name, value in servers.s3_variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    remote = servers.s3_remote(seaweedfs, f"p{secrets.token_hex(6)}")
    bucket = open_bucket(remote, retries=quick())
    a = machine("a", bucket)
    content = chunks(5, 150)
    a.save("s1", *content)
    assert a.key
    a.close()
    words = [sys.executable, "-m", "tests.remote.uploading", str(tmp_path / "a")]
    words += [msgspec.json.encode(remote).decode(), "s1"]
    killed, sent, chance = 0, set(), random.Random()
    for _ in range(100):
        lines = chance.randint(1, 12)
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            told = list(itertools.islice(process.stdout, lines))
            process.kill()
            told += process.stdout
            status = process.wait()
        # The last line may have been cut off.
        sent |= {line.split()[1] for line in told if re.match(r"done packs/.*\n", line)}
        if status == 0:
            break
        killed += 1
        if a.sessions.ids():  # killed after the last write
            break
    assert killed
    b = machine("b", bucket)
    b.fetch("s1")
    assert content_of(b.store, "s1") == content
    # Only what was on its way was sent again: eight at once, each time.
    there = len(bucket.list("packs"))
    needed = len(
        remote_manifests.read(
            bucket, b.seal, b.sessions.get("session-1").snapshots[0].manifest
        ).packs
    )
    assert there <= needed + 8 * killed
    assert sent <= {one.name for one in bucket.list("packs")}


def test_an_upload_can_be_cancelled_and_goes_on(machine):
    a = machine()
    a.save("s1", *FIRST)
    stopping = Bucket(a.bucket._store, "memory", retries=Retries(first_seconds=0.01))
    a.bucket = stopping
    uploader = a.uploader()
    progress = []

    def stop(done, total):
        progress.append((done, total))
        stopping.retries.stop.set()

    with pytest.raises(OperationCancelled):
        uploader.upload(a.store, "s1", FACTS, stop)
    assert progress
    stopping.retries.stop.clear()
    assert a.upload("s1").snapshot.snapshot_id == "s1"


def test_the_next_packs_are_made_while_eight_are_sent(machine, monkeypatch):
    a = machine()
    a.save("s1", *chunks(1, 120))
    made, sending, most = set(), set(), []
    ninth_is_made, eight_are_sent = threading.Event(), threading.Event()
    fill, create = remote_packs.NewPack.fill, a.bucket.create

    def making(pack, *arguments):
        fill(pack, *arguments)
        made.add(pack)
        if len(made) > 8:
            ninth_is_made.set()

    def sent(name, data):
        if name.startswith("packs/"):
            sending.add(name)
            most.append(len(sending))
            if len(sending) == 8:
                eight_are_sent.set()
            assert ninth_is_made.wait(60)
            assert eight_are_sent.wait(60)
        done = create(name, data)
        sending.discard(name)
        return done

    monkeypatch.setattr(remote_packs.NewPack, "fill", making)
    a.bucket.create = sent
    assert a.upload("s1").sent.packs == len(made) > 9
    assert max(most) == 8
    b = machine("b")
    b.fetch("s1")
    b.store.verify("s1")


def test_all_makers_make_the_first_pack_together(machine, monkeypatch):
    monkeypatch.setattr(remote_packs, "workers", lambda: 4)
    a = machine()
    a.save("s1", *chunks(1, 40))
    fill = remote_packs.NewPack.fill
    together = threading.Barrier(4)
    packs = []

    def making(pack, *arguments):
        together.wait(60)  # each of the four has a part of this pack
        packs.append(pack)
        fill(pack, *arguments)

    monkeypatch.setattr(remote_packs.NewPack, "fill", making)
    assert a.upload("s1", pack_bytes=1 << 20).sent.packs == len(set(packs)) == 1
    b = machine("b")
    b.fetch("s1")
    b.store.verify("s1")


def test_no_more_packs_are_in_memory_than_ten(machine, monkeypatch):
    a = machine()
    a.save("s1", *chunks(1, 200))
    made, sent, most = [], [], []
    new, create = remote_packs.NewPack.__init__, a.bucket.create

    def making(pack, *arguments):
        most.append(len(made) - len(sent))
        made.append(pack)
        new(pack, *arguments)

    def sending(name, data):
        done = create(name, data)
        if name.startswith("packs/"):
            sent.append(name)
        return done

    monkeypatch.setattr(remote_packs.NewPack, "__init__", making)
    a.bucket.create = sending
    assert a.upload("s1").sent.packs == len(made) > 20
    assert max(most) < pack_sender.MAX_PACKS == 10


def test_a_chunk_that_was_replaced_by_a_longer_one_ends_the_upload(machine, monkeypatch):
    a = machine()
    a.save("s1", *FIRST)
    read, replaced = a.store.read, digest_of(FIRST[3])
    assert read(replaced)[0] != RAW

    def longer(digest):
        return (RAW, FIRST[3], len(FIRST[3])) if digest == replaced else read(digest)

    monkeypatch.setattr(a.store, "read", longer)
    with pytest.raises(StoreUnavailable, match="replaced during the upload"):
        a.upload("s1")
    with pytest.raises(RemoteObjectMissing):
        a.sessions.get("session-1")
    monkeypatch.undo()
    a.upload("s1")


def test_after_a_pack_that_cannot_be_sent_no_other_one_is_begun(machine):
    a = machine()
    a.save("s1", *chunks(1, 120))
    begun, all_begun, has_failed = [], threading.Event(), threading.Event()
    create = a.bucket.create

    def failing(name, data):
        if not name.startswith("packs/"):
            return create(name, data)
        begun.append(name)
        if len(begun) == 8:
            all_begun.set()
        assert all_begun.wait(60)
        if name == begun[3]:
            has_failed.set()
            raise AccessDenied("No right to write.")
        assert has_failed.wait(60)
        time.sleep(0.2)  # those that wait for their turn could begin now
        raise StoreUnavailable("The remote does not answer.")

    a.bucket.create = failing
    with pytest.raises((AccessDenied, StoreUnavailable)):
        a.upload("s1")
    assert len(begun) == 8


def test_no_more_is_sent_per_second_than_is_allowed(machine):
    a = machine()
    a.save("s1", *FIRST)
    began = time.monotonic()
    sent = a.upload("s1", upload_rate=400_000).sent
    # The last pack's own time is for whoever comes next.
    assert time.monotonic() - began > (sent.count_bytes - 130_000) / 400_000


def test_a_manifest_that_was_not_written_is_not_listed(machine):
    a = machine()
    a.save("s1", *FIRST[:2])
    create = a.bucket.create
    a.bucket.create = lambda name, data: not name.startswith("manifests/") and create(name, data)
    with pytest.raises(StoreUnavailable):
        a.upload("s1")
    with pytest.raises(RemoteObjectMissing):
        a.sessions.get("session-1")


def test_a_chunk_that_is_damaged_here_does_not_travel(machine):
    a = machine()
    a.save("s1", *FIRST)
    [pack] = pack_files(a.store)
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    with pytest.raises(ObjectCorrupt):
        a.upload("s1")
    with pytest.raises(RemoteObjectMissing):
        a.sessions.get("session-1")


def test_a_snapshot_that_is_not_there_is_not_uploaded(machine):
    with pytest.raises(SnapshotNotFound):
        machine().upload("none")


def test_only_one_machine_writes_where_nothing_can_be_swapped(machine, tmp_path):
    a, b = machine("a"), machine("b", machine_id="other")
    store_key.create(a.bucket, a.seen, [OWN], only_machine="one machine")
    for one in (a, b):
        one.save("s1", *FIRST[:2])
    a.upload("s1")
    with pytest.raises(ConfigurationError, match="Only the machine"):
        b.upload("s1")
    c = machine("c")
    c.fetch("s1")


def test_many_indexes_become_few(machine, monkeypatch):
    monkeypatch.setattr(index_objects, "MAX_INDEXES", 3)
    a = machine()
    for number in range(6):
        a.save(f"s{number}", *chunks(number, 2))
        a.upload(f"s{number}")
    assert len(a.bucket.list("indexes")) <= 4
    b = machine("b")
    for number in range(6):
        b.save(f"s{number}", *chunks(number, 2))
        assert b.upload(f"s{number}").sent.packs == 0


def test_each_index_is_received_once(machine, monkeypatch):
    a, b = machine(), machine("b")
    received = []
    get = b.bucket.get

    def count(name, **limits):
        stored = get(name, **limits)
        received[-1] += len(stored.data)
        return stored

    def upload(number):
        b.save(f"s{number}", *chunks(number, 1))
        monkeypatch.setattr(b.bucket, "get", count)
        received.append(0)
        b.upload(f"s{number}")

    a.save("many", *(secrets.token_bytes(32) for _ in range(2000)))
    a.upload("many", pack_bytes=1 << 20)
    [index] = a.bucket.list("indexes")
    upload(1)
    upload(2)
    assert received[0] > index.size > received[1]
    # A damaged copy is replaced, and a copy whose object is gone is removed.
    copies = b.folder / "state/indexes"
    copy = copies / Path(index.name).name
    whole = copy.read_bytes()
    copy.write_bytes(whole[:-1])
    upload(3)
    assert received[2] > index.size
    assert copy.read_bytes() == whole
    monkeypatch.setattr(index_objects, "MAX_INDEXES", 1)
    upload(4)  # joins the index objects
    upload(5)
    assert not copy.exists()
    # A disk without room for copies costs a request, and no upload.
    monkeypatch.setattr(index_objects, "replace_file", full_disk)
    for one in copies.iterdir():
        one.unlink()
    upload(6)
    assert list(copies.iterdir()) == []


def full_disk(path, content):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_index_that_is_lost_or_altered_costs_an_upload_and_nothing_else(machine, caplog):
    a = machine()
    a.save("s1", *FIRST)
    sent = a.upload("s1").sent.packs
    [index] = a.bucket.list("indexes")
    data = bytearray(a.bucket.get(index.name).data)
    data[-1] ^= 1
    a.bucket.overwrite(index.name, bytes(data))
    b = machine("b")
    b.fetch("s1")
    b.save("s2", *FIRST)
    assert b.upload("s2").sent.packs == sent
    assert "uploaded again" in caplog.text


def test_a_session_that_is_set_back_is_refused_where_the_newer_was_seen(machine):
    a = machine()
    for snapshot_id in ("s1", "s2"):
        a.save(snapshot_id, *FIRST[:3])
    a.upload("s1")
    old = a.bucket.get("sessions/session-1").data
    a.upload("s2")
    a.bucket.overwrite("sessions/session-1", old)
    with pytest.raises(RemoteObjectInvalid, match="older"):
        a.sessions.get("session-1")
    assert [one.snapshot_id for one in machine("b").sessions.get("session-1").listed] == ["s1"]


def test_a_manifest_in_anothers_place_is_refused(machine):
    a = machine()
    for snapshot_id, chunk in (("s1", FIRST[0]), ("s2", FIRST[1])):
        a.save(snapshot_id, chunk)
        a.upload(snapshot_id)
    first, second = a.sessions.get("session-1").snapshots
    at_remote = remote_manifests.read(a.bucket, a.seal, first.manifest)
    # By whoever has the key: another attempt's manifest under the listed name.
    a.bucket.overwrite(first.manifest, a.seal.seal_record(first.manifest, at_remote))
    b = machine("b")
    with pytest.raises(RemoteObjectInvalid, match="not the object that its session lists"):
        b.fetch("s1")
    # By whoever has not.
    a.bucket.overwrite(second.manifest, a.bucket.get(first.manifest).data)
    with pytest.raises(RemoteObjectInvalid):
        b.fetch("s2")
    assert b.store.snapshots() == []


def test_a_pack_that_is_gone_altered_or_short_fails_the_fetch(machine):
    a = machine()
    a.save("s1", *FIRST)
    a.upload("s1")
    name = a.bucket.list("packs")[0].name
    data = a.bucket.get(name).data
    b = machine("b")
    for changed in (data[:-10], data[:100] + b"x" + data[101:], data[:60_000], bytes(len(data))):
        a.bucket.overwrite(name, changed)
        with pytest.raises(RemoteObjectInvalid):
            b.fetch("s1")
    a.bucket.delete([name])
    with pytest.raises(RemoteObjectMissing):
        b.fetch("s1")
    assert b.store.snapshots() == []
    a.bucket.overwrite(name, data)
    b.fetch("s1")
    assert content_of(b.store, "s1") == FIRST


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_after_an_error_or_a_cancel_no_more_is_read_than_was_begun(machine, how):
    a, b = machine("a"), machine("b")
    a.save("s1", *chunks(1, 60))
    a.upload("s1", pack_bytes=1)
    packs, looks = len(a.bucket.list("packs")), itertools.count()
    ended, later = threading.Event(), []
    get_range = b.bucket.get_range

    def read(name, start, end):
        if ended.is_set():
            later.append(name)
        elif start == 0 and next(looks) > 2 * READERS:
            # Of packs that are not looked at yet.
            assert ended.wait(60)
        elif start == HEADER_BYTES:
            ended.set()
            if how == "cancelled":
                b.bucket.retries.stop.set()
            else:
                raise RemoteObjectInvalid("It is damaged.")
        return get_range(name, start, end)

    b.bucket.get_range = read
    with pytest.raises(OperationCancelled if how == "cancelled" else RemoteObjectInvalid):
        b.fetch("s1")
    # Of each pack there are two reads of its rows and one of its chunk.
    assert packs == 60
    assert len(later) <= 3 * READERS
    b.bucket.retries.stop.clear()
    b.bucket.get_range = get_range
    b.fetch("s1")
    assert content_of(b.store, "s1") == chunks(1, 60)


def test_a_full_disk_is_found_before_anything_is_read(machine, monkeypatch):
    a = machine()
    a.save("s1", *FIRST)
    a.upload("s1")
    b = machine("b")
    monkeypatch.setattr(b.store, "free_bytes", lambda: 1000)
    with pytest.raises(StoreFull):
        b.fetch("s1")


def test_neighbours_are_read_together_and_gaps_are_jumped(machine):
    a = machine()
    first = chunks(1, 60)
    a.save("s1", *first)
    a.upload("s1", pack_bytes=64 << 20)
    reads = []
    b = machine("b")
    get_range = b.bucket.get_range

    def counted(name, start, end):
        reads.append(end - start)
        return get_range(name, start, end)

    b.bucket.get_range = counted
    b.fetch("s1")
    # Header, end, and everything between at once.
    assert len(reads) == 3
    assert max(reads) <= SPAN_BYTES
    assert GAP_BYTES < SPAN_BYTES


def test_a_pack_that_a_collector_condemned_answers_no_question(machine):
    a = machine()
    a.save("s1", *FIRST)
    a.upload("s1")
    condemn(a, {one.name for one in a.bucket.list("packs")})
    a.save("s2", *FIRST)
    assert a.upload("s2").sent.packs > 2


def test_a_pack_that_goes_during_an_upload_is_sent_again_before_the_snapshot_is_listed(machine):
    a = machine()
    a.save("s1", *FIRST)
    a.upload("s1")
    a.save("s2", *FIRST, *chunks(2, 2))
    old = {one.name for one in a.bucket.list("packs")}
    create = a.bucket.create

    def overtaken(name, data):
        done = create(name, data)
        if name.startswith("manifests/"):
            a.bucket.create = create
            # Two epochs, and a collector that did not see the manifest.
            condemn(a, old)
            a.bucket.delete(sorted(old))
            epochs_later(a)
        return done

    a.bucket.create = overtaken
    a.upload("s2")
    b = machine("b")
    b.fetch("s2")
    assert content_of(b.store, "s2") == [*FIRST, *chunks(2, 2)]
    assert len([one for one in a.bucket.list("manifests") if "/s2." in one.name]) == 1


def test_an_epoch_that_is_set_back_is_refused(machine):
    a = machine()
    condemn(a, set())
    old = a.bucket.get(epochs.NAME).data
    epochs_later(a)
    a.save("s1", *FIRST[:1])
    a.upload("s1")
    a.bucket.overwrite(epochs.NAME, old)
    a.save("s2", *FIRST[:1])
    # What is wrong with all of the remote is no fault of the snapshot.
    with pytest.raises(StoreUnavailable, match="older"):
        a.upload("s2")
    a.bucket.delete([epochs.NAME])
    with pytest.raises(StoreUnavailable, match="missing"):
        a.upload("s2")


@pytest.fixture
def cut_off(machine, monkeypatch):
    """Return a machine whose upload of s1 has written a manifest that no remote session lists."""
    a = machine()
    a.save("s1", *FIRST)
    create = Bucket.create

    def cut(bucket, name, data):
        if name.startswith("sessions/"):
            raise StoreUnavailable("The network is gone.")
        return create(bucket, name, data)

    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "create", cut)
        with pytest.raises(StoreUnavailable):
            a.upload("s1")
    assert len(a.bucket.list("manifests")) == 1
    return a


def test_an_upload_that_is_given_up_leaves_nothing_that_protects_packs(cut_off, tmp_path):
    state = tmp_path / "a/state"
    assert unfinished(state) == ["s1"]
    cut_off.uploader().give_up("s1")
    assert cut_off.bucket.list("manifests") == []
    assert unfinished(state) == []
    # And can begin anew.
    cut_off.upload("s1")
    assert len(cut_off.bucket.list("manifests")) == 1


def test_an_upload_that_is_given_up_after_it_was_listed_stays_listed(cut_off, machine, tmp_path):
    journal = tmp_path / "a/state/uploads/s1.jsonl"
    content = journal.read_bytes()
    cut_off.upload("s1")
    [listed] = cut_off.bucket.list("manifests")
    # As if the machine had stopped before the journal was removed.
    journal.write_bytes(content + manifest_line(listed.name))
    cut_off.uploader().give_up("s1")
    assert [one.name for one in cut_off.bucket.list("manifests")] == [listed.name]
    b = machine("b")
    b.fetch("s1")
    assert content_of(b.store, "s1") == FIRST


def test_what_was_left_stays_where_it_cannot_be_known_whether_it_is_listed(cut_off, tmp_path):
    [before] = cut_off.bucket.list("manifests")
    cut_off.bucket.overwrite("sessions/session-1", b"nothing that makes sense" * 10)
    cut_off.uploader().give_up("s1")
    assert [one.name for one in cut_off.bucket.list("manifests")] == [before.name]
    assert unfinished(tmp_path / "a/state") == []


def manifest_line(name):
    """Return the line of a journal that names a manifest."""
    return b'\n{"manifest":"%s","session_id":"session-1"}\n' % name.encode()


def test_a_manifest_that_may_not_be_deleted_stops_no_upload(cut_off, caplog):
    store = cut_off.bucket._store
    cut_off.bucket = Bucket(Undeletable(store), "undeletable", retries=quick())
    cut_off.upload("s1")
    assert len(cut_off.bucket.list("manifests")) == 2
    assert "refused to delete 1 object (" in caplog.text
    assert cut_off.upload("s1").sent.packs == 0


class Undeletable:
    """A store that lets nothing be deleted."""

    def __init__(self, below):
        self._below = below

    def __getattr__(self, name):
        return getattr(self._below, name)

    def delete(self, path):
        raise PermissionDeniedError("status 403 <Error><Code>AccessDenied</Code></Error>")


def condemn(machine, packs):
    """Do what a collector's first phase does."""
    now = epochs.read(machine.bucket, machine.seal, machine.seen)
    number = now.epoch.number
    assert epochs.write_list(machine.bucket, machine.seal, number + 1, packs)
    after = epochs.Epoch(number + 2, number + 1)
    assert epochs.advance(machine.bucket, machine.seal, now, after)


def epochs_later(machine):
    """Begin another epoch."""
    now = epochs.read(machine.bucket, machine.seal, machine.seen)
    after = epochs.Epoch(now.epoch.number + 1, now.epoch.condemned)
    assert epochs.advance(machine.bucket, machine.seal, now, after)


@pytest.mark.parametrize(("processors", "workers"), [(1, 2), (2, 2), (8, 2), (12, 3), (64, 4)])
def test_packs_are_made_and_checked_by_two_to_four_threads(monkeypatch, processors, workers):
    monkeypatch.setattr(remote_packs, "processors", lambda: processors)
    assert remote_packs.workers() == workers
