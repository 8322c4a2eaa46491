"""Whatever lies in a file of the store, or in an archive: it is read, or refused with an error of ours, and nothing else."""

import io
import os
import posixpath
import tarfile
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import given

from jupyter_gpuckpt.daemon.kernels.kernel_records import Records
from jupyter_gpuckpt.errors import StoreError
from jupyter_gpuckpt.snapshots.imports import import_archive
from jupyter_gpuckpt.store import (
    annotation_files,
    codecs,
    manifests,
    pack_streams,
    packs,
    stub_files,
)
from jupyter_gpuckpt.store.codecs import CodecError, digest_of
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.ids import is_id
from jupyter_gpuckpt.wire.manifest_records import Manifest
from jupyter_gpuckpt.wire.place import this_place
from tests.fuzz.inputs import altered, distorted, tries

GOLDEN = Path(__file__).parent.parent / "golden" / "files"
CORPUS = Path(__file__).parent / "corpus"

MANIFEST = (GOLDEN / "store/manifests/saved.manifest").read_bytes()
BODY = zstandard.ZstdDecompressor().decompress(MANIFEST[manifests._HEADER.size :])
PACK = next((GOLDEN / "store/packs").iterdir()).read_bytes()
ARCHIVE = (GOLDEN / "saved.tar").read_bytes()
ANNOTATIONS = [path.read_bytes() for path in (GOLDEN / "store/manifests").glob("*.annotations")]
RECORD = next((GOLDEN / "state/kernels").glob("*/record.json")).read_bytes()
PAYLOADS = [
    b"raw",
    zstandard.compress(bytes(4096)),
    b"\1" + bytes(2048) + zstandard.compress(bytes(2048)),
]


def sealed(body):
    """Return a manifest whose digest is right, whatever is in it."""
    packed = zstandard.ZstdCompressor(level=1).compress(body)
    return manifests._HEADER.pack(manifests._MAGIC, 1, digest_of(packed)) + packed


def look_at_manifest(data):
    for kind in (manifests.Listed, manifests.References, Manifest):
        try:
            found = manifests.parse(Path("saved.manifest"), data, kind)
        except StoreError:
            continue
        if kind is Manifest:
            assert_contained(found)
            msgspec.json.decode(msgspec.json.encode(found))


def assert_contained(manifest):
    """Said in another way than the checks say it."""
    private = (
        "/dev/shm/.gpuckpt/",
        *(["/dev/shm/"] if manifest.launch.private_shm else []),
    )
    real = {"/": "directory"}
    for record in manifest.captured:
        path = posixpath.normpath(record.path)
        assert path == record.path
        assert path.startswith(private) or "/link_remap." in path
        assert record.mode & 0o4000 == 0
        assert real.get(posixpath.dirname(path), "directory") == "directory"
        real[path] = record.kind
    for image in manifest.images:
        assert posixpath.join("/images", image.name).count("/") == 2
        assert image.name not in {"", ".", ".."}
    for process in manifest.gpu:
        for path in process.staging:
            folder = posixpath.dirname(posixpath.normpath(path))
            assert folder in {"/run/gpuckpt/gpu", "/dev/shm/.gpuckpt/gpu"}
    for stream in manifest.streams:
        assert sum(chunk.length for chunk in stream.chunks) == stream.length


def look_at_body(data):
    look_at_manifest(sealed(data))


def look_at_annotations(data):
    try:
        said = annotation_files.parse("x", data)
    except (StoreError, msgspec.DecodeError):
        return
    annotation_files.encoded(said)


def look_at_pack(data, folder="/dev/shm"):
    path = Path(folder) / f"fuzz-{os.getpid()}.pack"
    path.write_bytes(data)
    try:
        for read in (packs.read_index, packs.scan):
            try:
                entries = list(read(path))
            except StoreError:
                continue
            for entry in entries[:50]:
                assert 0 <= entry.offset <= entry.offset + entry.stored_length <= len(data)
                assert entry.raw_length <= codecs.MAX_CHUNK_BYTES
        source = io.BytesIO(data)

        def take(count):
            assert count <= max(len(data), packs.RECORD_BYTES), "would be held"
            return source.read(count).ljust(count, b"\0")

        try:
            for record in pack_streams.records("x", len(data), take):
                assert len(record.digest) == 32
        except StoreError:
            pass
    finally:
        path.unlink()


def look_at_payload(data):
    for codec in (codecs.RAW, codecs.ZSTD, *codecs.GROUPED.values(), 200):
        for length in (0, 1, 7, 4096, len(data), 65536, 1 << 40):
            try:
                found = codecs.decompress(codec, data, length)
            except CodecError:
                continue
            assert len(found) == length


def look_at_record(data):
    folder = Path("/dev/shm") / f"fuzz-{os.getpid()}"
    place = this_place(folder)
    path = folder / "kernels" / "kernel" / "record.json"
    records = Records(folder, place)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    try:
        for record in records.all():
            msgspec.json.encode(record)
    finally:
        path.unlink()


LOOKS = {
    "manifest": look_at_manifest,
    "manifest_body": look_at_body,
    "annotations": look_at_annotations,
    "pack": look_at_pack,
    "payload": look_at_payload,
    "record": look_at_record,
}
FOUND = sorted(path for name in LOOKS for path in (CORPUS / name).glob("*"))


@pytest.mark.parametrize("path", FOUND, ids=[f"{p.parent.name}/{p.name}" for p in FOUND])
def test_what_was_found_once_is_no_trouble(path):
    LOOKS[path.parent.name](path.read_bytes())


@tries(0.05)
@given(altered([MANIFEST]))
def test_manifest_files(data):
    look_at_manifest(data)


@tries(0.1)
@given(altered([BODY]))
def test_manifest_bodies(data):
    look_at_body(data)


@tries(0.25)
@given(distorted([msgspec.msgpack.decode(BODY)]))
def test_manifests_that_say_something_else(value):
    look_at_body(msgspec.msgpack.encode(value))


@tries(0.1)
@given(altered(ANNOTATIONS))
def test_annotations(data):
    look_at_annotations(data)


@tries(0.05)
@given(altered([b'{"remote":"offsite","keeps":["file/dev/shm/.gpuckpt/secrets"],"version":1}']))
def test_stubs(data):
    with suppress(msgspec.DecodeError):
        found = stub_files.parse(data)
        assert not found.remote or is_id(found.remote)
        msgspec.json.encode(found)


@tries(0.05)
@given(altered([PACK[:400] + PACK[-600:], PACK[:2000], PACK[:16] + PACK[-900:]]))
def test_packs(data):
    look_at_pack(data)


@tries(0.05)
@given(altered(PAYLOADS))
def test_payloads(data):
    look_at_payload(data)


@tries(0.05)
@given(altered([RECORD]))
def test_records_of_kernels(data):
    look_at_record(data)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with LocalStore(tmp_path_factory.mktemp("fuzz") / "store") as store:
        yield store


def import_is_clean(store, data):
    """Import an archive; check that a failed import leaves the store empty, and that imported snapshots can be read."""
    try:
        infos = import_archive(store, io.BytesIO(data).read)
    except StoreError:
        infos = []
    for info in infos:
        store.manifest(info.snapshot_id)
        store.verify(info.snapshot_id)
    if infos:
        store.delete(*(info.snapshot_id for info in infos))
    assert store.snapshots() == []
    assert list((store.root / "manifests").iterdir()) == []
    assert list((store.root / "packs").iterdir()) == []


def tar(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


SMALL = tar((("manifests/saved.annotations", ANNOTATIONS[0]), ("packs/a.pack", PACK[:5000])))


@tries(0.01)
@given(altered([ARCHIVE, SMALL]))
def test_archives(store, data):
    import_is_clean(store, data)


@tries(0.02)
@given(distorted([msgspec.msgpack.decode(BODY)]))
def test_archives_that_say_something_else(store, value):
    content = sealed(msgspec.msgpack.encode(value))
    import_is_clean(store, tar((("packs/a.pack", PACK), ("manifests/saved.manifest", content))))
