"""The golden store, archive and record are read. `make.py` says how they came about."""

import io
import shutil
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from jupyter_gpuckpt.daemon.kernels.kernel_records import Records
from jupyter_gpuckpt.images.unpack import read_stream
from jupyter_gpuckpt.snapshots.export import export
from jupyter_gpuckpt.snapshots.imports import import_archive
from jupyter_gpuckpt.store.codecs import GROUPED, RAW, ZSTD
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.manifest_records import Manifest, SnapshotInfo
from jupyter_gpuckpt.wire.place import this_place
from jupyter_gpuckpt.wire.states import KernelState
from tests.golden.programs import FILES


class Expected(msgspec.Struct):
    """What is in the folder. `streams`: digests of their whole content."""

    snapshots: list[SnapshotInfo]
    deleted: list[SnapshotInfo]
    manifest: Manifest
    streams: dict[str, str]


@pytest.fixture
def golden(tmp_path):
    """Return a copy of the files."""
    return Path(shutil.copytree(FILES, tmp_path / "golden"))


@pytest.fixture(params=["as it is", "without its catalog"])
def store(request, golden):
    if request.param != "as it is":
        for path in (golden / "store").glob("catalog*"):
            path.unlink()
    with LocalStore(golden / "store") as store:
        yield store


@pytest.fixture
def expected(golden):
    return msgspec.json.decode((golden / "expected.json").read_bytes(), type=Expected)


def assert_as_expected(store, expected):
    """Check that the snapshot equals `saved` byte for byte."""
    manifest = store.manifest("saved")
    assert manifest == expected.manifest
    digests = {
        stream.name: blake3(read_stream(stream, store)).hexdigest() for stream in manifest.streams
    }
    assert digests == expected.streams
    store.verify("saved")


def test_a_store_is_listed_and_read_whole(store, expected):
    assert store.snapshots() == expected.snapshots
    assert [one.info for one in store.deleted()] == expected.deleted
    assert_as_expected(store, expected)
    chunks = {c.digest for s in store.manifest("saved").streams for c in s.chunks} - {b""}
    codecs = {store.read(digest)[0] for digest in chunks}
    assert codecs == {RAW, ZSTD, *GROUPED.values()}


def test_what_is_deleted_comes_back_and_the_rest_can_go(store, expected):
    store.undelete("deleted")
    store.delete("saved", "suspended")
    assert [info.snapshot_id for info in store.snapshots()] == ["deleted"]
    store.verify("deleted")


def test_its_snapshots_go_out_and_come_in(golden, expected, tmp_path):
    with LocalStore(golden / "store") as store, export(store, "saved") as archive:
        ours = b"".join(archive.pieces())
    for number, content in enumerate((ours, (golden / "saved.tar").read_bytes())):
        with LocalStore(tmp_path / f"other-{number}") as other:
            (info,) = import_archive(other, io.BytesIO(content).read)
            assert (info.title, info.note, info.pinned) == ("Größe", "two\nlines", True)
            assert_as_expected(other, expected)


def test_a_kernel_on_record_is_known(golden, tmp_path):
    (record,) = Records(golden / "state", this_place(tmp_path)).all()
    assert (record.kernel_id, record.state) == ("kernel", KernelState.SUSPENDED)
    assert record.snapshot_id == "suspended"
