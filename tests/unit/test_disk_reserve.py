"""The reserve on a disk, with a small real file system."""

import sqlite3
from pathlib import Path

import pytest

from jupyter_gpuckpt.linux.disk_reserve import (
    BYTES,
    FILES,
    FILES_NAME,
    LEFT_BYTES,
    NAME,
    fill,
    room_beside,
    with_room,
)
from tests import full_disks
from tests.full_disks import small_disk


@pytest.fixture
def disk(tmp_path):
    """Yield a full disk with a reserve."""
    with small_disk(tmp_path / "disk", tmp_path / "image", megabytes=32) as mounted:
        fill(mounted)
        full_disks.fill(mounted)
        yield mounted


def size(disk):
    return (disk / NAME).stat().st_size


def test_a_write_gets_room_and_the_rest_is_taken_back(disk):
    folder = disk / "a" / "b"
    with_room(folder, lambda: folder.mkdir(parents=True))
    with_room(folder / "file", lambda: (folder / "file").write_bytes(b"x" * 10_000))
    assert (folder / "file").read_bytes() == b"x" * 10_000
    assert BYTES - (64 << 10) < size(disk) < BYTES
    assert full_disks.is_full(disk)


def test_what_the_reserve_must_keep_stays_and_the_error_is_that_of_the_write(disk):
    path = disk / "large"
    with pytest.raises(OSError, match="No space left"):
        with_room(path, lambda: path.write_bytes(bytes(2 * BYTES)), left_bytes=LEFT_BYTES)
    path.unlink()
    assert size(disk) >= LEFT_BYTES
    # It is whole again when there is room for it, and as much besides.
    fill(disk)
    assert size(disk) < BYTES
    full_disks.empty(disk)
    fill(disk)
    assert size(disk) == BYTES


def test_a_write_gets_files_where_the_disk_allows_no_further_ones(disk):
    full_disks.empty(disk)
    fill(disk)
    full_disks.use_all_files(disk)
    path = disk / "folder" / "file"
    with pytest.raises(OSError, match="No space left"):
        path.parent.mkdir()
    with_room(path, lambda: (path.parent.mkdir(exist_ok=True), path.touch()))
    assert len(list((disk / FILES_NAME).iterdir())) == FILES - 2
    assert size(disk) == BYTES
    with room_beside(disk, path):
        path.with_name("other").touch()
    assert full_disks.has_no_file_left(disk)


def test_a_database_on_a_full_disk_goes_on(disk):
    connection = sqlite3.connect(disk / "database")

    def write():
        with connection:
            connection.execute("CREATE TABLE IF NOT EXISTS rows (content)")
            connection.execute("INSERT INTO rows VALUES (?)", (b"x" * 100_000,))

    with pytest.raises(sqlite3.OperationalError, match="full"):
        write()
    with_room(disk / "database", write)
    assert connection.execute("SELECT count(*) FROM rows").fetchone() == (1,)
    connection.close()


def test_other_programs_have_room_on_the_same_disk_only(disk, tmp_path):
    with room_beside(disk, disk / "elsewhere" / "file"):
        (disk / "elsewhere").mkdir()
        (disk / "elsewhere" / "file").write_bytes(b"x" * 5000)
    assert full_disks.is_full(disk)
    before = size(disk)
    with room_beside(disk, tmp_path / "file"):
        assert size(disk) == before


def test_without_a_reserve_a_write_fails_as_it_would(tmp_path):
    assert not Path(tmp_path, NAME).exists()
    with pytest.raises(FileNotFoundError):
        with_room(tmp_path / "file", (tmp_path / "none" / "file").read_bytes)
    with room_beside(tmp_path, tmp_path / "file"):
        pass


def test_an_error_of_another_kind_is_not_repeated(disk):
    calls = []

    def write():
        calls.append(1)
        raise PermissionError

    with pytest.raises(PermissionError):
        with_room(disk / "file", write)
    assert calls == [1]


def test_a_file_that_another_user_could_have_put_there_is_left_alone(disk):
    (disk / NAME).rename(disk / "users")
    (disk / NAME).symlink_to("users")
    path = disk / "folder" / "file"
    with pytest.raises(OSError, match="No space left"):
        with_room(path, lambda: (disk / "file").write_bytes(b"x" * 5000))
    (disk / NAME).unlink()
    (disk / "users").rename(disk / NAME)
    disk.chmod(0o777)
    with pytest.raises(OSError, match="No space left"):
        with_room(path, lambda: (disk / "file").write_bytes(b"x" * 5000))
    assert size(disk) == BYTES
