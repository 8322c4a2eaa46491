"""Whatever is made of an object of a remote, with its key or without: an error that names it, or a sound record; nothing else.

Without the key nothing opens. Whoever has the key, or a defect of an earlier version, can seal what makes no sense.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpuckpt.errors import FormatTooNew, ManifestInvalid, RemoteObjectInvalid
from jupyter_gpuckpt.remote import (
    epochs,
    index_objects,
    pack_refs,
    remote_manifests,
    remote_packs,
)
from jupyter_gpuckpt.remote.sealing import HEADER_BYTES, NONCE_BYTES, Seal
from jupyter_gpuckpt.store.codecs import CodecError, decompress
from tests.fuzz.inputs import tries
from tests.remote.conftest import memory_bucket
from tests.remote.mutations import mutations
from tests.remote.stores import Machine, chunks

REFUSED = (RemoteObjectInvalid, FormatTooNew)
#: Of the fuzzers' inputs, for each test; each is 25 changed objects.
SOME = tries(0.0025)


class Kind(NamedTuple):
    """An object of the remote, and what reads it."""

    name: str
    data: bytes
    read: Callable[[], object]


class World(NamedTuple):
    """A remote with one object of each kind."""

    machine: Machine
    seal: Seal
    kinds: dict[str, Kind]


@cache
def world() -> World:
    """Return a remote with one object of each kind."""
    machine = Machine(memory_bucket(), Path(tempfile.mkdtemp(prefix="gpuckpt-")))
    machine.save("s1", *chunks(1, 6))
    snapshot = machine.upload("s1", pack_bytes=1 << 20).snapshot
    bucket, seal = machine.bucket, machine.seal
    now = epochs.read(bucket, seal, machine.seen)
    [pack] = [one.name for one in bucket.list("packs")]
    epochs.write_list(bucket, seal, 1, {pack})
    epochs.advance(bucket, seal, now, epochs.Epoch(2, 1))
    [index] = [one.name for one in bucket.list("indexes")]
    sessions = machine.sessions
    readers = {
        "sessions/session-1": lambda: sessions.get("session-1"),
        snapshot.manifest: lambda: remote_manifests.read(
            bucket, seal, snapshot.manifest
        ).manifest(),
        index: lambda: index_objects.RemoteIndex(
            index_objects._opened(seal, index, bucket.get(index).data)
        ),
        epochs.NAME: lambda: epochs.read(bucket, seal, machine.seen),
        epochs.list_name(1): lambda: epochs.read_list(bucket, seal, 1),
    }
    machine.close()
    kinds = {
        name.partition("/")[0]: Kind(name, bucket.get(name).data, read)
        for name, read in readers.items()
    }
    return World(machine, seal, kinds)


KINDS = ["sessions", "manifests", "indexes", "epoch", "condemned"]


@pytest.mark.parametrize("kind", KINDS)
@SOME
@given(chance=st.randoms(use_true_random=False))
def test_an_object_that_was_altered_is_refused(kind, chance):
    machine, _, kinds = world()
    name, data, read = kinds[kind]
    for changed in mutations(chance, data):
        machine.bucket.overwrite(name, changed)
        with pytest.raises(REFUSED):
            read()
    machine.bucket.overwrite(name, data)


@pytest.mark.parametrize("kind", KINDS)
@SOME
@given(chance=st.randoms(use_true_random=False))
def test_a_sealed_object_that_makes_no_sense_is_refused_or_is_sound(kind, chance):
    machine, seal, kinds = world()
    name, data, read = kinds[kind]
    content = zstandard.decompress(seal.open(name, data))
    for changed in mutations(chance, content):
        sealed = seal.seal(name, zstandard.compress(changed))
        machine.bucket.overwrite(name, sealed)
        with suppress(*REFUSED):
            read()
    machine.bucket.overwrite(name, data)


@SOME
@given(st.randoms(use_true_random=False))
def test_a_pack_that_was_altered_is_refused(chance):
    machine, seal, kinds = world()
    ref, data = _pack(machine, seal, kinds)
    whole = _chunks_in(seal, ref, data)
    for changed in mutations(chance, data):
        try:
            found = _chunks_in(seal, ref, changed)
        except REFUSED:
            continue
        # An end that was lengthened is not read.
        assert found == whole
        assert changed[: len(data)] == data


@SOME
@given(st.randoms(use_true_random=False))
def test_a_sealed_index_of_a_pack_that_leads_elsewhere_is_refused(chance):
    machine, seal, kinds = world()
    ref, data = _pack(machine, seal, kinds)
    header = data[:HEADER_BYTES]
    rows = remote_packs.rows_of(seal, ref, header, data[-ref.index_length :]).tobytes()
    key, nonce = seal.key_of(ref.name, header), bytes(NONCE_BYTES)
    for changed in mutations(chance, rows):
        sealed = nonce + key.encrypt(nonce, changed, seal.associated_data(ref.name, header))
        end = sealed + remote_packs._TRAILER.pack(
            len(sealed), len(changed) // remote_packs.ROW.itemsize, remote_packs._TRAILER_MAGIC
        )
        altered = data[: -ref.index_length] + end
        its = pack_refs.PackRef(ref.name, len(altered), len(end))
        with suppress(*REFUSED, CodecError):
            _chunks_in(seal, its, altered)


def _pack(machine, seal, kinds):
    at_remote = remote_manifests.read(machine.bucket, seal, kinds["manifests"].name)
    return at_remote.packs[0], machine.bucket.get(at_remote.packs[0].name).data


def _chunks_in(seal, ref, data):
    """Everything that is in a pack."""
    header, end = data[:HEADER_BYTES], data[ref.length - ref.index_length : ref.length]
    rows = remote_packs.rows_of(seal, ref, header, end)
    key = seal.key_of(ref.name, header)
    room = memoryview(bytearray(int(rows["stored_length"].sum())))
    chunks = remote_packs.open_chunks(ref.name, key, rows, memoryview(data), 0, room)
    return [decompress(one.codec, one.payload, one.raw_length) for one in chunks]


def test_an_index_finds_every_chunk_and_no_other():
    _, seal, kinds = world()
    found = kinds["indexes"]
    packs = index_objects._opened(seal, found.name, found.data)
    index = index_objects.RemoteIndex(packs)
    ids = [row["id"].tobytes() for row in np.frombuffer(packs[0].rows, remote_packs.ROW)]
    assert len(index) == len(ids) == 6
    almost = [one[:8] + bytes(24) for one in ids]
    found = index.find([*ids, *almost, bytes(32), b"\xff" * 32])
    assert set(found) == set(ids)
    assert index.find(ids, {packs[0].ref.name}) == {}
    assert index_objects.RemoteIndex([]).find(ids) == {}


def test_a_manifest_of_another_snapshot_is_refused():
    machine, seal, kinds = world()
    name = kinds["manifests"].name
    at_remote = remote_manifests.read(machine.bucket, seal, name)
    other = remote_manifests.RemoteManifest("s2", at_remote.content, at_remote.packs, "one")
    with pytest.raises((RemoteObjectInvalid, ManifestInvalid)):
        other.manifest()
    machine.bucket.overwrite(name, seal.seal_record(name, other))
    with pytest.raises(RemoteObjectInvalid, match="a pack in it is impossible"):
        remote_manifests.read(machine.bucket, seal, name)
    machine.bucket.overwrite(name, kinds["manifests"].data)
