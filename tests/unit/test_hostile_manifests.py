"""A manifest may come from anybody: what it says stays in the kernel's own places, and little of it does not become much."""

import subprocess
import sys

import msgspec
import pytest
import zstandard

from jupyter_gpuckpt.engine.tcp.remake import RemadeConnections
from jupyter_gpuckpt.errors import ArchiveInvalid, ManifestInvalid, SnapshotNotFound
from jupyter_gpuckpt.snapshots.imports import import_archive
from jupyter_gpuckpt.store import manifests
from jupyter_gpuckpt.store.codecs import RAW, digest_of
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.writer import Record
from jupyter_gpuckpt.wire.chunk_parts import Part, encoded_parts
from jupyter_gpuckpt.wire.file_records import KeptFile, MappedFile, OpenFile
from jupyter_gpuckpt.wire.manifest_records import (
    CapturedFile,
    Chunk,
    GpuProcess,
    ImageFile,
    Manifest,
    Stream,
    TcpConnection,
    TcpEnd,
)
from tests.manifests import manifest
from tests.unit.test_archives import imported, packed, state_of

pytestmark = pytest.mark.thorough

SHM, SCRATCH = "/dev/shm/", "/dev/shm/.gpuckpt/"
CONTENT = b"#!/bin/sh\n"
STREAM = Stream("x", len(CONTENT), [Chunk(digest_of(CONTENT), len(CONTENT))])


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store") as store:
        yield store


def forged(**changes):
    """Return a manifest that nobody checked. What is not changed is sound."""
    changes.setdefault("streams", [STREAM])
    return msgspec.structs.replace(manifest("s1"), **changes)


def file(path, **fields):
    return CapturedFile(path, fields.pop("kind", "file"), **{"stream": "x", **fields})


def captured(*files):
    return {"captured": list(files)}


def left_open(*files):
    return {"open_files": list(files)}


def kept(*paths, digest="0" * 64, mode=0o644):
    files = [KeptFile(path, len(CONTENT), digest, mode) for path in paths]
    streams = {file.stream: msgspec.structs.replace(STREAM, name=file.stream) for file in files}
    return {"kept": files, "streams": [STREAM, *streams.values()]}


def zeros(length, *chunks):
    return [Stream("x", length, [Chunk(b"", size) for size in chunks])]


def connected(**changes):
    end = TcpEnd(1, 2, ["127.0.0.1", 80], ["127.0.0.1", 81], 0, [])
    return {"connections": [TcpConnection("x", [msgspec.structs.replace(end, **changes)])]}


def composed(parts):
    """Return a stream whose only chunk has these parts."""
    return [Stream("x", 4096, [Chunk(digest_of(b"x"), 4096, parts)])]


NO_PLACE = {
    "a connection to a name": connected(remote=["example.org", 80]),
    "a connection to no port": connected(local=["127.0.0.1", 1 << 20]),
    "a connection without an address": connected(local=[]),
    "a connection of another kind": connected(family=16),
    "a connection with an endless queue": connected(unread=1 << 50),
    "a connection without its queue": connected(unread=1),
    "a file of the host": captured(file("/etc/cron.d/evil")),
    "dots": captured(file(SHM + "../../etc/evil")),
    "dots in a link": captured(file("/tmp/../etc/link_remap.1")),
    "relative": captured(file("link_remap.1")),
    "a double slash": captured(file("//etc/link_remap.1")),
    "a zero byte": captured(file(SHM + "a\0b")),
    "scratch": captured(file(SCRATCH + "standstill")),
    "a fifo on scratch": captured(file(SCRATCH + "servers", kind="fifo")),
    "a fifo of the user's": captured(file("/tmp/link_remap.1", kind="fifo")),
    "a link on scratch": captured(file(SCRATCH + "servers", kind="symlink", target="/etc")),
    "a folder of the host": captured(CapturedFile("/etc/new", "directory")),
    "a symlink beside a file": captured(
        file("/tmp/link_remap.1", kind="symlink", target="/etc/passwd")
    ),
    "through a symlink": captured(
        file(SHM + "a", kind="symlink", target="/etc"), file(SHM + "a/passwd")
    ),
    "through a later symlink": captured(
        file(SHM + "a/passwd"), file(SHM + "a", kind="symlink", target="/etc")
    ),
    "twice": captured(file(SHM + "a"), file(SHM + "a")),
    "setuid": captured(file(SHM + "a", mode=0o4755)),
    "setgid": captured(file(SHM + "a", mode=0o2755)),
    "a device": captured(file(SHM + "a", kind="device")),
    "a mode that is none": captured(file(SHM + "a", mode=0o100644)),
    "an owner that is none": captured(file(SHM + "a", uid=1 << 40)),
    "a time that is none": captured(file(SHM + "a", mtime_ns=1 << 63)),
    "a hard link to the host": captured(file(SHM + "a", kind="hardlink", target="/etc/shadow")),
    "no content": captured(file(SHM + "a", stream="y")),
    "the host's /dev/shm": {
        **captured(file(SHM + "a")),
        "launch": msgspec.structs.replace(manifest("s1").launch, private_shm=False),
    },
    "an image elsewhere": {"images": [ImageFile("../../etc/evil", 10, stream="x")]},
    "an image twice": {"images": 2 * [ImageFile("core-1.img", 10, stream="x")]},
    "an image past its stream": {"images": [ImageFile("core-1.img", 1, offset=1)]},
    "memory of a GPU elsewhere": {"gpu": [GpuProcess(1, ["/etc/passwd"], 1)]},
    "scratch itself": captured(CapturedFile("/dev/shm/.gpuckpt", "symlink", target="/etc")),
    "images on scratch": captured(file("/dev/shm/.gpuckpt/images/core-1.img")),
    "a file that travels with dots": kept("/tmp/../etc/x"),
    "one that is relative": kept("x"),
    "one on scratch": kept(SCRATCH + "keeper"),
    "one of the system": kept("/proc/kcore"),
    "one that is two": kept("/tmp/x", "/tmp/x"),
    "one that is captured as well": {
        **captured(file("/tmp/link_remap.1")),
        **kept("/tmp/link_remap.1"),
    },
    "one of another length": {**kept("/tmp/x"), "streams": [STREAM, Stream("kept/tmp/x", 0, [])]},
    "one with setuid": kept("/tmp/x", mode=0o4755),
    "one without content": {**kept("/tmp/x"), "streams": [STREAM]},
    "one whose digest is a path": kept("/tmp/x", digest="../" * 21 + "x"),
    "memory of a GPU with dots": {"gpu": [GpuProcess(1, [SCRATCH + "gpu/../../../etc/x"], 1)]},
    "a user that is none": {"uid": -1},
    "a process that is none": {"keeper_pid": -1},
    "an open file that is one of the system's": left_open(OpenFile("/proc/kmsg")),
    "an open file that is not named plainly": left_open(OpenFile("/data/../proc/kmsg")),
    "an open file without a path": left_open(OpenFile("data.csv")),
    "an open file with a zero in its path": left_open(OpenFile("/data\0")),
    "an open file that is in it twice": left_open(OpenFile("/data"), OpenFile("/data", 1)),
    "an open file of a negative length": left_open(OpenFile("/data", -1)),
    "an open file that is mapped beyond all ends": left_open(OpenFile("/data", 1, 1 << 63)),
    "an open file with a digest that is none": left_open(OpenFile("/data", digest="../x")),
    "more open files than a kernel has": left_open(*(OpenFile(f"/d/{n}") for n in range(10_001))),
    "a program without a path": {"mapped": [MappedFile("/usr/bin/x\0y", 1)]},
    "a folder without a path": {
        "launch": msgspec.structs.replace(manifest("s1").launch, cwd="/a\0b")
    },
    "a port that is none": {
        "launch": msgspec.structs.replace(manifest("s1").launch, own_ports=[70_000])
    },
    "the id of a kernel": {
        "launch": msgspec.structs.replace(manifest("s1").launch, kernel_id="../k")
    },
    "an id in the list": {
        "info": msgspec.structs.replace(manifest("s1").info, kernel_id="../../k")
    },
    "a time without a date": {"info": msgspec.structs.replace(manifest("s1").info, created=1e300)},
    "no number": {"info": msgspec.structs.replace(manifest("s1").info, seconds=float("nan"))},
    "lengths that differ": {"streams": zeros(3, 1, 1)},
    "a length below zero": {"streams": zeros(0, 5, -5)},
    "an empty chunk": {"streams": zeros(0, 0)},
    "a digest that is none": {"streams": [Stream("x", 1, [Chunk(b"x", 1)])]},
    "half a part": {"streams": composed(b"x" * 41)},
    "parts of another length": {"streams": composed(encoded_parts([Part(b"x" * 32, 0, 4095)]))},
    "parts of zeros": {"streams": [Stream("x", 1, [Chunk(b"", 1, b"x" * 40)])]},
    "an empty part": {
        "streams": composed(encoded_parts([Part(b"x" * 32, 0, n) for n in (0, 4096)]))
    },
    "a part of more than a chunk": {
        "streams": composed(encoded_parts([Part(b"x" * 32, 1 << 30, 4096)]))
    },
    "one name for two": {"streams": 2 * [STREAM]},
    "endless images": {"streams": [Stream("images", 1 << 40, [Chunk(b"", 1 << 40)])]},
}


@pytest.mark.parametrize("changes", NO_PLACE.values(), ids=NO_PLACE)
def test_what_no_save_would_write_is_refused_by_import_and_resume(store, tmp_path, changes):
    with store.writer() as writer:
        writer.append_all([Record(digest_of(CONTENT), CONTENT, len(CONTENT), RAW)])
    changes = {**changes}
    if any(
        chunk.digest == b"x" or chunk.parts
        for stream in changes.get("streams", [])
        for chunk in stream.chunks
    ):
        path, _ = manifests.stage(store.root / "manifests", forged(**changes))
        manifests.commit(path)
    else:
        store.publish(forged(**changes))
    content = (store.root / "manifests" / "s1.manifest").read_bytes()
    with pytest.raises((ManifestInvalid, SnapshotNotFound)):
        store.manifest("s1")
    pack = next((store.root / "packs").iterdir()).read_bytes()
    with LocalStore(tmp_path / "other") as other:
        archive = packed(("packs/a.pack", pack), ("manifests/s1.manifest", content))
        with pytest.raises(ArchiveInvalid):
            imported(other, archive)
        assert state_of(other) == ([], [])


def test_a_link_that_the_images_do_not_name_is_refused(store, tmp_path):
    with store.writer() as writer:
        writer.append_all([Record(digest_of(CONTENT), CONTENT, len(CONTENT), RAW)])
    store.publish(forged(**captured(file(f"{tmp_path}/link_remap.7", mode=0o755))))
    content = (store.root / "manifests" / "s1.manifest").read_bytes()
    pack = next((store.root / "packs").iterdir()).read_bytes()
    with LocalStore(tmp_path / "other") as other:
        archive = packed(("packs/a.pack", pack), ("manifests/s1.manifest", content))
        with pytest.raises(ArchiveInvalid, match="do not name the link"):
            imported(other, archive)
        assert state_of(other) == ([], [])


def test_a_connection_is_made_anew_on_this_machine_only():
    end = TcpEnd(1, 2, ["127.0.0.1", 0], ["192.0.2.1", 80], 0, [])
    waiting = TcpConnection("x", [end], waiting=True)
    with RemadeConnections([waiting], lambda offset, length: b"") as remade:
        remade.finish({})
        (lost,) = remade.lost
    assert "annot assign requested address" in lost


EMPTY, NESTED = b"\x92\xc4\0\0", b"\x90"
#: Some kilobytes each, compressed.
BOMBS = {
    "chunks": ("streams", [("name", "x"), ("length", 0), ("chunks", EMPTY)], 40_000_000),
    "fewer chunks": ("streams", [("name", "x"), ("length", 0), ("chunks", EMPTY)], 7_000_000),
    "streams": ("streams", None, 3_000_000),
    "lists": ("launch", [("jupyter", NESTED)], 30_000_000),
}


def bomb(what):
    """Return a manifest that stands for gigabytes; parts that are not looked at are left out."""
    field, parts, count = BOMBS[what]
    many = b"\xdd" + count.to_bytes(4, "big")
    if parts is None:
        value = many + count * (b"\x81\xa6chunks\x90")
    else:
        value = b"".join(
            msgspec.msgpack.encode(name)
            + (many + count * inner if isinstance(inner, bytes) else msgspec.msgpack.encode(inner))
            for name, inner in parts
        )
        value = bytes([0x80 + len(parts)]) + value
        value = b"\x91" + value if field == "streams" else value
    body = zstandard.ZstdCompressor().compress(b"\x81" + msgspec.msgpack.encode(field) + value)
    return manifests._HEADER.pack(manifests._MAGIC, 1, digest_of(body)) + body


@pytest.mark.parametrize("what", BOMBS)
def test_a_few_kilobytes_do_not_become_gigabytes(tmp_path, what):
    content = bomb(what)
    assert len(content) < 300_000
    (tmp_path / "a.tar").write_bytes(packed(("manifests/s1.manifest", content)))
    reader = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "ArchiveInvalid" in reader.stdout, reader.stderr
    assert int(reader.stdout.split()[-1]) < 200 << 10


READER = f"""
import sys, resource
from pathlib import Path
from {import_archive.__module__} import import_archive
from {LocalStore.__module__} import LocalStore
from jupyter_gpuckpt.engine.tcp.remake import RemadeConnections
from jupyter_gpuckpt.errors import ArchiveInvalid
store = LocalStore(Path(sys.argv[1]) / "store")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    import_archive(store, (Path(sys.argv[1]) / "a.tar").open("rb").read)
except ArchiveInvalid as error:
    print("ArchiveInvalid", error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_many_that_are_large_are_not_held_together(tmp_path):
    """Each stands for some twenty megabytes."""
    chunks = [one for n in range(60_000) for one in (Chunk(b"\1" * 32, 4096), Chunk(b"", 4096))]
    files = []
    for n in range(20):
        made = msgspec.structs.replace(
            manifest(f"s{n}"), streams=[Stream("x", 120_000 * 4096, chunks)]
        )
        path, _ = manifests.stage(tmp_path, made)
        files.append((f"manifests/s{n}.manifest", path.read_bytes()))
    (tmp_path / "a.tar").write_bytes(packed(*files))
    reader = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "chunks of snapshot s0 are missing" in reader.stdout, reader.stderr
    assert int(reader.stdout.split()[-1]) < 150 << 10


def test_a_large_manifest_that_is_one_is_read(tmp_path):
    """Digests, zeros between them, and much else."""
    chunks = [
        chunk
        for n in range(200_000)
        for chunk in (Chunk(digest_of(n.to_bytes(8, "big")), 4096), Chunk(b"", 4096))
    ]
    jupyter = {"states": "x" * 3_000_000, "cells": [{"id": str(n)} for n in range(20_000)]}
    made = forged(
        streams=[Stream("pages/1", 400_000 * 4096, chunks)],
        launch=msgspec.structs.replace(manifest("s1").launch, jupyter=jupyter),
    )
    manifests.commit(manifests.stage(tmp_path, made)[0])
    assert manifests.read(manifests.path_of(tmp_path, "s1"), Manifest) == made
