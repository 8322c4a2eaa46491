"""Manifests: whole or refused by name."""

import os
import struct
from pathlib import Path

import msgspec
import pytest
import zstandard

from jupyter_gpuckpt.errors import FormatTooNew, ManifestInvalid, SnapshotNotFound
from jupyter_gpuckpt.store import manifests
from jupyter_gpuckpt.store.codecs import digest_of
from jupyter_gpuckpt.wire.manifest_records import (
    Chunk,
    Host,
    LaunchSpec,
    Manifest,
    SnapshotInfo,
    Stream,
)


def manifest(snapshot_id: str = "s1") -> Manifest:
    return Manifest(
        info=SnapshotInfo(snapshot_id, "k1", 1.5, "save"),
        launch=LaunchSpec("k1", ["python"], {"A": "b"}, "/", "/log", jupyter={"x": [1, None]}),
        host=Host("here", "x86_64", "6.1", ["sse"], "", [], "/root", "boot"),
        method="skeleton",
        keeper_pid=2,
        kernel_pid=3,
        highest_pid=9,
        processes=[],
        images=[],
        streams=[
            Stream("a", 4096 * 3, [Chunk(os.urandom(32), 4096), Chunk(b"", 8192)]),
            Stream("b", 10, [Chunk(b"\1" * 32, 10)]),
        ],
    )


def test_a_manifest_is_read_back_whole_and_in_parts(tmp_path):
    original = manifest()
    manifests.commit(manifests.stage(tmp_path, original)[0])
    path = manifests.path_of(tmp_path, "s1")
    assert path == tmp_path / "s1.manifest"
    assert manifests.read(path, Manifest) == original
    assert manifests.read(path, manifests.Listed).info == original.info
    digests = {original.streams[0].chunks[0].digest, b"\1" * 32}
    assert manifests.read(path, manifests.References).digests() == digests
    assert manifests.references(original) == digests
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["s1.manifest"]


@pytest.mark.parametrize("part", [0, 0.01, 0.05, 0.1, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_manifest_is_refused_by_name(tmp_path, part):
    path = written(tmp_path)
    os.truncate(path, int(path.stat().st_size * part))
    refused(path)


@pytest.mark.parametrize("place", [0, 7, 12, 13, 30, 43, 44, 45, 60, 100, -20, -1])
def test_an_altered_manifest_is_refused_by_name(tmp_path, place):
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    data[place] ^= 0x40
    path.write_bytes(data)
    refused(path)


def test_a_lengthened_manifest_is_refused(tmp_path):
    path = written(tmp_path)
    path.write_bytes(path.read_bytes() + b"x")
    refused(path)


def test_a_manifest_of_another_name_is_refused(tmp_path):
    path = written(tmp_path).rename(tmp_path / "other.manifest")
    with pytest.raises(ManifestInvalid, match=r"snapshot other .* snapshot s1"):
        manifests.read(path, Manifest)


def test_a_body_that_is_whole_but_makes_no_sense_is_refused(tmp_path):
    body = zstandard.ZstdCompressor().compress(msgspec.msgpack.encode({"info": 3}))
    path = tmp_path / "s1.manifest"
    path.write_bytes(struct.pack("<8sI32s", b"GPUCKPT\n", 1, digest_of(body)) + body)
    refused(path)


@pytest.mark.parametrize("version", [2, 3, 2**32 - 1])
def test_a_newer_format_is_refused_with_both_versions(tmp_path, version):
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 8, version)
    path.write_bytes(data)
    with pytest.raises(FormatTooNew, match=f"version {version};.*up to 1"):
        manifests.read(path, Manifest)


@pytest.mark.parametrize("name", ["", ".", "..", "../s1", "a/b", "/etc/passwd", "a\0b", "x" * 200])
def test_what_cannot_be_an_id_names_no_snapshot(tmp_path, name):
    with pytest.raises(SnapshotNotFound):
        manifests.path_of(tmp_path, name)


def test_a_missing_manifest_is_a_missing_snapshot(tmp_path):
    with pytest.raises(SnapshotNotFound, match="s9"):
        manifests.read(tmp_path / "s9.manifest", Manifest)


def written(folder: Path) -> Path:
    manifests.commit(manifests.stage(folder, manifest())[0])
    return folder / "s1.manifest"


def refused(path: Path) -> None:
    for kind in (Manifest, manifests.Listed, manifests.References):
        with pytest.raises(ManifestInvalid, match="s1") as caught:
            manifests.read(path, kind)
        assert caught.value.details == str(path)
