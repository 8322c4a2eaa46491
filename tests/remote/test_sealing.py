"""What was sealed opens as it was, and nothing else opens: not altered, not renamed, not of another store."""

from __future__ import annotations

import os

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyter_gpuckpt.errors import FormatTooNew, RemoteObjectInvalid, ToolMissing
from jupyter_gpuckpt.remote.sealing import HEADER_BYTES, Seal
from tests.remote.mutations import mutations

STORE = b"s" * 16
SEAL = Seal([b"k" * 32], STORE)
NAME = "manifests/one"


class Thing(msgspec.Struct):
    name: str
    numbers: list[int] = []


SEALED = SEAL.seal_record(NAME, Thing("a name", [1, 2, 3] * 100))


def test_what_was_sealed_opens_as_it_was():
    assert SEAL.open(NAME, SEAL.seal(NAME, b"content")) == b"content"
    assert SEAL.open_record(NAME, SEALED, Thing) == Thing("a name", [1, 2, 3] * 100)


def test_an_old_version_of_the_cipher_is_refused_by_name(monkeypatch):
    old = type("AESGCM", (), {})
    monkeypatch.setattr("cryptography.hazmat.primitives.ciphers.aead.AESGCM", old)
    with pytest.raises(ToolMissing, match="cryptography, version 47 or later"):
        SEAL.seal(NAME, b"content")


def test_nothing_of_the_content_shows_and_no_two_writings_are_alike():
    first, second = SEAL.seal(NAME, b"content" * 10), SEAL.seal(NAME, b"content" * 10)
    assert b"content" not in first
    assert first[:HEADER_BYTES] != second[:HEADER_BYTES]
    assert first[HEADER_BYTES:] != second[HEADER_BYTES:]


@pytest.mark.parametrize(
    ("seal", "name"),
    [
        (SEAL, "manifests/other"),
        (SEAL, "sessions/one"),
        (Seal([b"k" * 32], b"t" * 16), NAME),
        (Seal([b"K" * 32], STORE), NAME),
    ],
)
def test_what_belongs_elsewhere_does_not_open(seal, name):
    with pytest.raises(RemoteObjectInvalid, match="copied from another store"):
        seal.open(name, SEALED)


def test_a_new_key_opens_what_older_ones_sealed_and_not_the_other_way_round():
    newer = Seal([b"k" * 32, b"n" * 32], STORE)
    assert newer.open_record(NAME, SEALED, Thing).name == "a name"
    with pytest.raises(RemoteObjectInvalid, match="a key that this store does not have"):
        SEAL.open(NAME, newer.seal(NAME, b""))


def test_remote_ids_stay_when_the_store_is_rekeyed_and_differ_between_stores():
    digest = os.urandom(32)
    there = SEAL.remote_id(digest)
    assert there == Seal([b"k" * 32, b"n" * 32], STORE).remote_id(digest) != digest
    assert there != Seal([b"k" * 32], b"t" * 16).remote_id(digest)
    assert there != Seal([b"K" * 32], STORE).remote_id(digest)


def test_a_newer_version_is_named():
    altered = SEALED[:8] + (2).to_bytes(4, "little") + SEALED[12:]
    with pytest.raises(FormatTooNew):
        SEAL.open(NAME, altered)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_no_altered_object_opens(chance):
    for data in mutations(chance, SEALED):
        with pytest.raises((RemoteObjectInvalid, FormatTooNew)):
            SEAL.open_record(NAME, data, Thing)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=300))
def test_what_makes_no_sense_is_refused_also_where_it_is_sealed(content):
    for sealed in (SEAL.seal(NAME, content), SEAL.seal(NAME, zstandard.compress(content))):
        with pytest.raises(RemoteObjectInvalid):
            SEAL.open_record(NAME, sealed, Thing)


def test_a_record_that_would_fill_the_memory_is_not_unpacked():
    bomb = zstandard.compress(bytes(256 << 20))
    assert len(bomb) < 100_000
    with pytest.raises(RemoteObjectInvalid, match="bytes long"):
        SEAL.open_record(NAME, SEAL.seal(NAME, bomb), Thing)
