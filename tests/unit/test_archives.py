"""A snapshot goes out as an archive and comes in elsewhere; an archive that is not whole changes nothing."""

import io
import os
import tarfile
import threading

import msgspec
import pytest

from jupyter_gpuckpt.errors import (
    ArchiveInvalid,
    FormatTooNew,
    ObjectCorrupt,
    OperationCancelled,
    SnapshotExists,
    SnapshotNotFound,
)
from jupyter_gpuckpt.images.compression import Compressor
from jupyter_gpuckpt.snapshots.export import export
from jupyter_gpuckpt.snapshots.imports import import_archive
from jupyter_gpuckpt.snapshots.save import EarlierSnapshots
from jupyter_gpuckpt.snapshots.verify import MAX_PROBLEMS, verify
from jupyter_gpuckpt.store.codecs import digest_of
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.packs import RECORD_BYTES
from jupyter_gpuckpt.store.writer import Record
from jupyter_gpuckpt.wire.snapshot_order import MAX_ARRIVING_NUMBER, Making
from tests.manifests import manifest
from tests.unit.test_store_local import pack_files

#: Of both codecs, and enough for several packs.
CHUNKS = [os.urandom(20_000) for _ in range(20)] + [bytes([n]) * 30_000 for n in range(1, 10)]
OTHER = os.urandom(5_000)


@pytest.fixture
def make_store(tmp_path):
    made = []

    def make(name):
        made.append(LocalStore(tmp_path / name))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def store(make_store):
    """Return a store with two snapshots, whose chunks lie in the same packs."""
    store = make_store("store")
    fill(store, "s1", *CHUNKS)
    fill(store, "s2", *CHUNKS[:3], OTHER)
    return store


def fill(store, snapshot_id, *chunks, **fields):
    with store.writer() as writer:
        for chunk in chunks:
            codec, payload = Compressor().compress(memoryview(chunk))
            writer.append_all([Record(digest_of(chunk), payload, len(chunk), codec)])
    made = manifest(snapshot_id, *chunks)
    info = msgspec.structs.replace(made.info, **fields)
    store.publish(msgspec.structs.replace(made, info=info))


def exported(store, snapshot_id="s1", pack_bytes=150_000):
    with export(store, snapshot_id, pack_bytes=pack_bytes) as made:
        content = b"".join(made.pieces())
        assert len(content) == made.length
    return content


def imported(store, content):
    return import_archive(store, io.BytesIO(content).read)


def members(content):
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return [
            (member, archive.extractfile(member).read()) for member in archive if member.isreg()
        ]


def packed(*files):
    """Return a tar archive of names (or members) and contents."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files:
            member = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def state_of(store):
    """All that a failed import must leave as it is."""
    files = sorted(
        (path.name, path.stat().st_size)
        for folder in ("packs", "manifests")
        for path in (store.root / folder).iterdir()
    )
    return files, store.snapshots()


def test_an_export_holds_this_snapshot_alone_and_is_a_store_of_its_own(store, make_store, tmp_path):
    store.annotate("s1", {"title": "mine", "note": "of it", "pinned": True})
    content = exported(store)
    names = [member.name for member, _ in members(content)]
    assert names[0] == "manifests/s1.annotations"
    assert names[-1] == "manifests/s1.manifest"
    assert len([name for name in names if name.startswith("packs/")]) >= 3
    payload = sum(len(Compressor().compress(memoryview(chunk))[1]) for chunk in CHUNKS)
    assert payload < len(content) < payload + 30_000
    assert OTHER not in content
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    unpacked = make_store("unpacked")
    assert unpacked.snapshots() == [store.manifest("s1").info]
    unpacked.verify("s1")
    assert all(unpacked.load(digest_of(chunk)) == chunk for chunk in CHUNKS)


def test_what_went_out_comes_in_elsewhere_and_is_not_stored_twice(store, make_store):
    store.annotate("s1", {"title": "mine", "note": "of it", "pinned": True})
    content = exported(store)
    other = make_store("other")
    assert imported(other, content) == [store.manifest("s1").info] == other.snapshots()
    other.verify("s1")
    assert other.manifest("s1") == store.manifest("s1")
    before = sum(path.stat().st_size for path in pack_files(other))
    assert imported(other, exported(store, "s2"))[0].snapshot_id == "s2"
    assert sum(path.stat().st_size for path in pack_files(other)) < before + len(OTHER) + 2_000
    other.verify("s2")


def test_an_import_stores_again_what_was_in_a_pack_that_is_gone(store, make_store):
    other = make_store("other")
    imported(other, exported(store, "s2"))
    for path in pack_files(other):
        path.unlink()
    imported(other, exported(store))
    other.verify("s1")


def test_a_tar_of_a_whole_store_is_taken_as_well(store, make_store):
    store.mark_deleted("s2", 60)
    with tarfile.open(
        fileobj=(out := io.BytesIO()), mode="w", format=tarfile.GNU_FORMAT
    ) as archive:
        archive.add(store.root, ".")
    infos = imported(other := make_store("other"), out.getvalue())
    assert {info.snapshot_id for info in infos} == {"s1", "s2"}  # it was there
    other.verify("s1")
    other.verify("s2")


def test_one_that_is_there_already_is_refused_before_much_is_read(store, make_store):
    content = exported(store)
    source = io.BytesIO(content)
    before = state_of(store)
    with pytest.raises(SnapshotExists, match="s1") as caught:
        import_archive(store, source.read)
    assert caught.value.hint
    assert source.tell() < 3_000
    assert state_of(store) == before
    store.mark_deleted("s1", 60)
    with pytest.raises(SnapshotExists):
        imported(store, content)


@pytest.mark.parametrize("part", [0, 0.0005, 0.01, 0.3, 0.9, 0.999])
def test_one_that_was_cut_off_changes_nothing(store, make_store, part):
    content = exported(store)
    other = make_store("other")
    fill(other, "s0", CHUNKS[0])
    before = state_of(other)
    with pytest.raises(ArchiveInvalid):
        imported(other, content[: int(len(content) * part)])
    assert state_of(other) == before
    imported(other, content)
    other.verify("s0")
    other.verify("s1")


def test_a_byte_that_differs_anywhere_is_found_and_changes_nothing(store, make_store):
    content = exported(store)
    other = make_store("other")
    payload = content.index(CHUNKS[5])
    header = payload - RECORD_BYTES
    places = [payload, payload + 19_999, *(header + n for n in (0, 4, 8, 12, 16, 47)), 0, 100, 140]
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            if not member.name.endswith("annotations"):
                places += [member.offset, member.offset_data, member.offset_data + 9]
        places += [member.offset_data + member.size - 1]
    for place in places:
        altered = bytearray(content)
        altered[place] ^= 0x41
        with pytest.raises((ArchiveInvalid, FormatTooNew)):
            imported(other, bytes(altered))
        assert state_of(other) == ([], []), place


def symlink(name):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return member


def long_name(length):
    member = tarfile.TarInfo("././@LongLink")
    member.type = tarfile.GNUTYPE_LONGNAME
    return packed((member, b"x" * length))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive at all" * 100,
        bytes(10_240),
        packed(),
        packed(("../../packs/a.pack", b"x")),
        packed(("/etc/passwd", b"x")),
        packed(("packs/../../a.pack", b"x")),
        packed(("manifests/..manifest", b"x")),
        packed(("manifests/a.manifest.tmp", b"x")),
        packed(("other.txt", b"x")),
        packed((symlink("packs/a.pack"), b"")),
        long_name(100_000),
        packed(("packs/a.pack", b"")),
        packed(("packs/a.pack", b"GPUCKPK\n\1\0\0\0" + bytes(200))),
        packed(("manifests/a.manifest", b"")),
        packed(("manifests/a.annotations", b"{")),
    ],
)
def test_what_is_no_export_is_refused_and_changes_nothing(make_store, content):
    other = make_store("other")
    with pytest.raises(ArchiveInvalid) as caught:
        imported(other, content)
    assert caught.value.hint
    assert state_of(other) == ([], [])


def test_a_manifest_whose_chunks_are_missing_is_refused(store, make_store):
    files = members(exported(store))
    without = [(m, c) for m, c in files if m.name != files[2][0].name]
    other = make_store("other")
    with pytest.raises(ArchiveInvalid, match="chunks of snapshot s1 are missing"):
        imported(other, packed(*without))
    assert state_of(other) == ([], [])


def test_what_is_long_is_never_held(make_store):
    """A record and a manifest that say they are gigabytes are refused before they are read."""
    other = make_store("other")
    header = b"GPUCKPK\n\1\0\0\0\0\0\0\0" + b"CHNK\0\0\0\0" + 2 * (0xF0000000).to_bytes(4, "little")
    pack, long = tarfile.TarInfo("packs/a.pack"), tarfile.TarInfo("manifests/a.manifest")
    pack.size = long.size = 1 << 32
    for start in (pack.tobuf() + header + bytes(32), long.tobuf()):
        source = io.BytesIO(start)

        def take(count, source=source):
            assert count <= 1 << 20, "held in memory"
            return source.read(count) or bytes(count)

        with pytest.raises(ArchiveInvalid, match="longer than can be"):
            import_archive(other, take)
    assert state_of(other) == ([], [])


def test_an_export_ends_at_a_damaged_chunk(store):
    damage(store, CHUNKS[7])
    with pytest.raises(ObjectCorrupt, match=digest_of(CHUNKS[7]).hex()[:16]):
        exported(store)
    exported(store, "s2")


def test_what_is_being_exported_survives_its_deletion(store):
    with export(store, "s1") as made:
        store.delete("s1")
        content = b"".join(made.pieces())
    with pytest.raises(SnapshotNotFound):
        exported(store)
    imported(store, content)
    store.verify("s1")


def damage(store, *chunks):
    for path in pack_files(store):
        data = bytearray(path.read_bytes())
        for chunk in chunks:
            payload = Compressor().compress(memoryview(chunk))[1]
            if payload in data:
                data[data.index(payload) + len(payload) // 2] ^= 1
        path.write_bytes(data)


def verified(store, snapshot_id):
    return verify(store, snapshot_id, threads=2, cancelled=threading.Event())


def test_a_verification_reads_everything(store):
    found = verified(store, "s1")
    assert (found.ok, found.problems) == (True, [])
    assert found.checked_bytes == sum(map(len, CHUNKS))
    assert found.seconds > 0
    with pytest.raises(SnapshotNotFound):
        verified(store, "s9")


def test_a_verification_names_all_that_is_damaged(store):
    damage(store, CHUNKS[1], CHUNKS[8], CHUNKS[-1])
    found = verified(store, "s1")
    assert not found.ok
    named = {digest_of(CHUNKS[number]).hex()[:16] for number in (1, 8, -1)}
    assert len(found.problems) == 3
    assert {problem.split()[1] for problem in found.problems} == named
    assert all(pack_files(store)[0].name in problem for problem in found.problems)
    assert found.checked_bytes == sum(map(len, CHUNKS)) - 20_000 * 2 - 30_000
    # What others share is damaged for them too, and the next save heals it.
    assert [problem.split()[1] for problem in verified(store, "s2").problems] == [
        digest_of(CHUNKS[1]).hex()[:16]
    ]
    fill(store, "s3", *CHUNKS)
    assert verified(store, "s1").ok


def test_a_verification_of_a_lost_pack_or_manifest_is_an_answer(store):
    chunks = [os.urandom(100) for _ in range(MAX_PROBLEMS + 5)]
    before = set(pack_files(store))
    fill(store, "s4", *chunks)
    for path in set(pack_files(store)) - before:
        path.unlink()
    found = verified(store, "s4")
    assert (found.ok, found.checked_bytes) == (False, 0)
    assert len(found.problems) == MAX_PROBLEMS + 1
    assert found.problems[-1] == "5 more chunks are damaged."
    os.truncate(store.root / "manifests" / "s1.manifest", 100)
    found = verified(store, "s1")
    assert (found.ok, len(found.problems)) == (False, 1)
    assert "s1" in found.problems[0]


def test_a_verification_can_be_cancelled(store):
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(OperationCancelled):
        verify(store, "s1", threads=2, cancelled=cancelled)


def test_an_archive_comes_in_at_its_place_among_the_snapshots_of_its_kernel(store, make_store):
    """Whatever the clock of the machine showed on which it was made."""
    for number, created in ((1, 300.0), (2, 100.0), (3, 200.0)):
        fill(store, f"n{number}", OTHER, number=number, created=created)
    other = make_store("other")
    for snapshot_id in ("n2", "n3", "n1"):
        imported(other, exported(store, snapshot_id))
    assert [one.snapshot_id for one in other.snapshots()] == ["n3", "n2", "n1"]
    assert EarlierSnapshots(other, "k").number_of(Making("s")) == 4


def test_an_archive_cannot_take_the_last_number_of_its_kernel(store, make_store):
    """Then nothing could be told to be newer."""
    fill(store, "last", OTHER, number=MAX_ARRIVING_NUMBER + 1)
    fill(store, "fair", OTHER, number=MAX_ARRIVING_NUMBER)
    other = make_store("other")
    with pytest.raises(ArchiveInvalid, match="invalid number"):
        imported(other, exported(store, "last"))
    imported(other, exported(store, "fair"))
    assert EarlierSnapshots(other, "k").number_of(Making("s")) == MAX_ARRIVING_NUMBER + 1
