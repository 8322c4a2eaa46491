"""Disks that are full, read-only, or no disks at all."""

import os
import subprocess
from contextlib import suppress

import pytest

from jupyter_gpuckpt.errors import StoreFull, StoreUnavailable
from jupyter_gpuckpt.images.pack import BytesSource, pack
from jupyter_gpuckpt.images.unpack import read_stream
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.manifest_records import SnapshotInfo
from jupyter_gpuckpt.wire.progress import Progress
from tests.manifests import manifest_of


@pytest.fixture
def mount(tmp_path):
    """Mounts a tmpfs with these options."""
    mounted = []

    def tmpfs(options: str):
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "gpuckpt-test", path]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a tmpfs is not permitted here")
        mounted.append(path)
        return path

    yield tmpfs
    for path in mounted:
        subprocess.run(["umount", "--lazy", path], check=True)


def test_a_read_only_disk_is_refused_with_a_hint_that_names_the_directory(mount):
    disk = mount("ro")
    with pytest.raises(StoreUnavailable, match="Read-only") as caught:
        LocalStore(disk / "store")
    assert str(disk / "store") in caught.value.hint


def test_a_store_on_a_disk_that_became_read_only_is_refused(mount):
    disk = mount("size=10m")
    LocalStore(disk / "store").close()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(StoreUnavailable, match="Read-only"):
        LocalStore(disk / "store")


def test_a_disk_that_becomes_read_only_while_in_use_fails_the_write(mount):
    disk = mount("size=10m")
    with LocalStore(disk / "store") as store:
        # SQLite and the lock hold files open for writing, so the change needs force: a second, read-only view of it.
        subprocess.run(["mount", "--bind", disk, disk], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
            with pytest.raises(StoreUnavailable, match="Read-only") as caught:
                pack([BytesSource("a", b"x" * 9999)], store, threads=2, progress=Progress())
            assert str(store.root) in caught.value.hint
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_path_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("here")
    for path in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(StoreUnavailable, match=str(path)) as caught:
            LocalStore(path)
        assert str(path) in caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_directory_without_permission_is_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(StoreUnavailable, match="Permission denied"):
        LocalStore(tmp_path / "closed" / "store")


@pytest.mark.parametrize("size", [3, 5, 17])
def test_a_full_disk_is_said_with_sizes_and_leaves_the_store_as_it_was(mount, size):
    disk = mount(f"size={size}m")
    kept = os.urandom(1 << 20)
    with LocalStore(disk / "store", pack_bytes=2 << 20) as store:
        stream = pack([BytesSource("a", kept)], store, threads=2, progress=Progress()).streams[0]
        before, free = set((store.root / "packs").iterdir()), store.free_bytes()
        data = os.urandom(20 << 20)
        with pytest.raises(StoreFull, match=r"is full: .*[\d,]+ bytes are free") as e:
            pack([BytesSource("b", data)], store, threads=3, progress=Progress())
        assert "Delete snapshots" in e.value.hint
        # What was written of it is gone, or the disk would stay full.
        assert set((store.root / "packs").iterdir()) == before
        # The rest is the catalog's log, which has some pages for each pack.
        assert store.free_bytes() > free - (384 << 10)
        assert read_stream(stream, store) == kept
        small = os.urandom(100_000)
        stream = pack([BytesSource("c", small)], store, threads=2, progress=Progress()).streams[0]
        assert read_stream(stream, store) == small


def fill(disk):
    with (disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass


def test_a_manifest_that_finds_no_room_gives_back_what_its_snapshot_took(mount):
    disk = mount("size=4m")
    with LocalStore(disk / "store") as store:
        data = os.urandom(2 << 20)
        streams = pack([BytesSource("a", data)], store, threads=2, progress=Progress()).streams
        fill(disk)
        with pytest.raises(StoreFull):
            store.publish(manifest_of(SnapshotInfo("s1", "k", 1, "save"), *streams))
        assert store.snapshots() == []
        assert not list((store.root / "packs").iterdir())
        assert not list((store.root / "manifests").iterdir())


def test_a_snapshot_can_be_deleted_from_a_full_disk(mount):
    disk = mount("size=4m")
    with LocalStore(disk / "store") as store:
        data = os.urandom(2 << 20)
        streams = pack([BytesSource("a", data)], store, threads=2, progress=Progress()).streams
        store.publish(manifest_of(SnapshotInfo("s1", "k", 1, "save"), *streams))
        fill(disk)
        store.delete("s1")
        assert store.free_bytes() > 1 << 20
        assert pack(
            [BytesSource("a", data[:9999])], store, threads=2, progress=Progress()
        ).new_bytes


def test_a_deletion_on_a_full_disk_makes_room_at_once(mount):
    disk = mount("size=4m")
    with LocalStore(disk / "store") as store:
        streams = pack(
            [BytesSource("a", os.urandom(2 << 20))], store, threads=2, progress=Progress()
        ).streams
        store.publish(manifest_of(SnapshotInfo("s1", "k", 1, "save"), *streams))
        fill(disk)
        store.mark_deleted("s1", 60)
        assert store.deleted() == []
        assert store.free_bytes() > 1 << 20


def test_a_disk_without_a_byte_left_is_said_when_the_store_is_opened(mount):
    disk = mount("size=1m")
    fill(disk)
    with pytest.raises(StoreFull):
        LocalStore(disk / "store")
