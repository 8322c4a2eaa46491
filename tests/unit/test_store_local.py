"""The local store: what exists, what stays, what goes."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpuckpt.errors import (
    ConfigurationError,
    ManifestInvalid,
    ObjectCorrupt,
    SnapshotNotFound,
    StoreUnavailable,
)
from jupyter_gpuckpt.store.chunks_in_use import PUBLISH_SECONDS
from jupyter_gpuckpt.store.codecs import RAW, digest_of
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.packs import RECORD_BYTES
from jupyter_gpuckpt.store.stores import open_free
from jupyter_gpuckpt.store.writer import Record
from tests.manifests import manifest

ONE, TWO, THREE = (os.urandom(10_000) for _ in range(3))


class Clock:
    """A clock that moves when told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store") as store:
        yield store


def put(store: LocalStore, *chunks: bytes) -> int:
    with store.writer() as writer:
        return sum(writer.append_all([Record(digest_of(c), c, len(c), RAW)]) for c in chunks)


def pack_files(store: LocalStore) -> list[Path]:
    return sorted((store.root / "packs").iterdir())


def test_everything_is_for_the_owner_alone(tmp_path):
    root = tmp_path / "a" / "store"
    root.mkdir(parents=True, mode=0o755)
    with LocalStore(root) as store:
        put(store, ONE)
        store.publish(manifest("s1", ONE))
        found = [root, *root.rglob("*")]
        assert len(found) >= 7
        for path in found:
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_chunk_is_read_back(store):
    assert put(store, ONE, TWO) == len(ONE) + len(TWO)
    assert store.read(digest_of(TWO)) == (RAW, TWO, len(TWO))
    assert store.load(digest_of(ONE)) == ONE
    with pytest.raises(ObjectCorrupt, match=digest_of(THREE).hex()[:16]):
        store.read(digest_of(THREE))


def test_a_snapshot_lasts(tmp_path):
    with LocalStore(tmp_path / "store") as store:
        put(store, ONE)
        store.publish(manifest("s1", ONE))
    with LocalStore(tmp_path / "store") as store:
        assert store.manifest("s1") == manifest("s1", ONE)
        assert store.load(digest_of(ONE)) == ONE
        store.verify("s1")
    with LocalStore(tmp_path / "store") as store, store.writer() as writer:
        assert writer.known([digest_of(ONE)])
        assert not writer.known([digest_of(TWO)])


def test_snapshots_are_listed_newest_first_and_by_kernel(store, caplog):
    for number, kernel_id in enumerate(["k1", "k2", "k1"]):
        store.publish(manifest(f"s{number}", kernel_id=kernel_id, created=number))
    assert [info.snapshot_id for info in store.snapshots()] == ["s2", "s1", "s0"]
    assert [info.snapshot_id for info in store.snapshots("k1")] == ["s2", "s0"]
    assert store.snapshots("k3") == []
    os.truncate(store.root / "manifests" / "s1.manifest", 50)
    with caplog.at_level(logging.WARNING):
        assert [info.snapshot_id for info in store.snapshots()] == ["s2", "s0"]
    assert "s1" in caplog.text
    with pytest.raises(ManifestInvalid, match="s1"):
        store.manifest("s1")
    store.delete("s1")  # also what cannot be read can be removed
    with pytest.raises(SnapshotNotFound, match="s1"):
        store.manifest("s1")
    assert [info.snapshot_id for info in store.snapshots()] == ["s2", "s0"]


def test_a_manifest_whose_chunk_is_missing_is_not_published(store):
    put(store, ONE)
    with pytest.raises(ObjectCorrupt, match=digest_of(TWO).hex()[:16]):
        store.publish(manifest("s1", ONE, TWO))
    assert store.snapshots() == []
    assert not list((store.root / "manifests").iterdir())


def test_delete_keeps_what_others_share(store):
    put(store, ONE)
    store.publish(manifest("s1", ONE))
    put(store, TWO)
    store.publish(manifest("s2", ONE, TWO))
    put(store, THREE)
    store.publish(manifest("s3", THREE))
    assert len(pack_files(store)) == 3
    store.delete("s1")
    assert len(pack_files(store)) == 3
    store.delete("s3")
    assert len(pack_files(store)) == 2
    store.verify("s2")
    store.delete("s2")
    assert pack_files(store) == []
    for missing in ("s2", "never", "../x"):
        with pytest.raises(SnapshotNotFound):
            store.delete(missing)


def test_a_pack_with_one_live_chunk_stays(store):
    put(store, ONE, TWO)
    store.publish(manifest("s1", ONE, TWO))
    store.publish(manifest("s2", TWO))
    store.delete("s1")
    store.verify("s2")


def test_nothing_is_removed_while_a_manifest_cannot_be_read(store, caplog):
    for name, chunk in (("s1", ONE), ("s2", TWO)):
        put(store, chunk)
        store.publish(manifest(name, chunk))
    path = store.root / "manifests" / "s2.manifest"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with caplog.at_level(logging.WARNING):
        store.delete("s1")
    assert "s2" in caplog.text
    assert len(pack_files(store)) == 2
    path.write_bytes(whole)
    store.verify("s2")
    store.sweep()
    assert len(pack_files(store)) == 1


def test_what_a_writer_counts_on_survives_a_delete(store):
    put(store, ONE)
    store.publish(manifest("s1", ONE))
    with store.writer() as writer:
        assert writer.known([digest_of(ONE)])
        writer.append_all([Record(digest_of(TWO), TWO, len(TWO), RAW)])
        store.delete("s1")
    # Between the end of the writer and the manifest as well.
    store.sweep()
    store.publish(manifest("s2", ONE, TWO))
    store.verify("s2")
    store.delete("s2")
    assert pack_files(store) == []


def test_what_is_never_published_goes_after_a_while(tmp_path):
    clock = Clock()
    with LocalStore(tmp_path / "store", clock=clock) as store:
        put(store, ONE)
        store.sweep()
        assert len(pack_files(store)) == 1
        clock.now += PUBLISH_SECONDS + 1
        store.sweep()
        assert pack_files(store) == []
        with store.writer() as writer:
            assert not writer.known([digest_of(ONE)])


def test_what_is_being_read_survives_a_delete(store):
    put(store, ONE)
    store.publish(manifest("s1", ONE))
    with store.holding({digest_of(ONE)}):
        store.delete("s1")
        assert store.load(digest_of(ONE)) == ONE
    store.sweep()
    assert pack_files(store) == []


def test_what_a_crash_left_half_written_is_removed(tmp_path):
    code = """
import os, sys, pathlib
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.writer import Record
store = LocalStore(pathlib.Path(sys.argv[1]))
writer = store.writer()
writer.append_all([Record(bytes(32), b"abc", 3, 0)])
(store.root / "manifests" / "s1.manifest.tmp").write_bytes(b"half")
os.kill(os.getpid(), 9)
"""
    root = tmp_path / "store"
    ended = subprocess.run(
        [sys.executable, "-c", code, root], cwd=Path(__file__).parents[2], check=False
    )
    assert ended.returncode == -9
    assert [path.name[:4] for path in (root / "packs").iterdir()] == ["tmp-"]
    with LocalStore(root) as store:
        assert pack_files(store) == []
        assert not list((root / "manifests").iterdir())
        assert store.snapshots() == []
        put(store, ONE)


@pytest.mark.parametrize("place", [0, 5000, 9999])
def test_a_damaged_chunk_is_named_and_the_next_save_heals_it(store, place):
    put(store, ONE, TWO)
    store.publish(manifest("s1", ONE, TWO))
    (path,) = pack_files(store)
    data = bytearray(path.read_bytes())
    data[data.index(TWO) + place] ^= 1
    before = path.stat()
    path.write_bytes(data)
    os.utime(
        path, ns=(before.st_atime_ns, before.st_mtime_ns)
    )  # else no chunk of it would be relied on
    with pytest.raises(ObjectCorrupt, match=rf"{digest_of(TWO).hex()[:16]} in pack {path.name}"):
        store.verify("s1")
    assert store.load(digest_of(ONE)) == ONE
    with store.writer() as writer:
        assert writer.known([digest_of(ONE)])
        assert not writer.known([digest_of(TWO)])
        assert writer.append_all([Record(digest_of(TWO), TWO, len(TWO), RAW)]) == len(TWO)
    store.verify("s1")
    (store.root / "catalog.sqlite").unlink()
    store.close()
    with LocalStore(store.root) as again:
        again.verify("s1")


def test_an_altered_record_header_is_found_by_verify(store):
    put(store, ONE)
    store.publish(manifest("s1", ONE))
    (path,) = pack_files(store)
    data = bytearray(path.read_bytes())
    data[data.index(ONE) - RECORD_BYTES + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(ObjectCorrupt, match=path.name):
        store.verify("s1")


def test_one_process_at_a_time(tmp_path):
    with LocalStore(tmp_path / "store"):
        with pytest.raises(StoreUnavailable, match=f"process {os.getpid()} on host") as caught:
            LocalStore(tmp_path / "store")
        assert caught.value.retryable
        assert caught.value.hint
    LocalStore(tmp_path / "store").close()


def test_a_store_that_is_no_longer_referred_to_is_released(tmp_path):
    store = LocalStore(tmp_path / "store")
    del store
    LocalStore(tmp_path / "store").close()


def test_a_directory_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("x")
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigurationError, match="other files"):
        LocalStore(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_store_whose_opening_failed_can_be_opened_when_the_cause_is_gone(tmp_path):
    root = tmp_path / "store"
    LocalStore(root).close()
    loop = root / "packs" / "loop.pack"
    loop.symlink_to(loop)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="symbolic links"):
            open_free(root, lambda: False)
    loop.unlink()
    open_free(root, lambda: False).close()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_no_pack(store, make):
    """The opening of a named pipe would wait for ever."""
    put(store, ONE)
    [pack] = pack_files(store)
    store.close()
    pack.unlink()
    make(pack)
    with LocalStore(store.root) as again:
        assert again.missing({digest_of(ONE)})
        put(again, ONE)
        assert again.load(digest_of(ONE)) == ONE


def test_a_store_whose_packs_were_removed_goes_on(store):
    put(store, ONE)
    store.close()
    shutil.rmtree(store.root / "packs")
    with LocalStore(store.root) as again:
        put(again, ONE)
        assert again.load(digest_of(ONE)) == ONE


def test_free_bytes_are_those_of_the_disk(store):
    facts = os.statvfs(store.root)
    assert abs(store.free_bytes() - facts.f_bavail * facts.f_frsize) < 1 << 30
