"""Holders of a remote's key come and go, and what others make of the keyring is found out."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyter_gpuckpt.errors import (
    ConfigurationError,
    FarObjectInvalid,
    FormatTooNew,
    KeyUnavailable,
)
from jupyter_gpuckpt.remote import holders, keyring
from jupyter_gpuckpt.remote.holders import Secret
from jupyter_gpuckpt.remote.seen import Seen
from jupyter_gpuckpt.wire.remote_records import HolderKind
from tests.remote.conftest import memory_bucket
from tests.remote.mutations import mutations

#: Guessing is not to be made hard here.
CHEAP = 10
OWN = Secret(HolderKind.FILE, b"o" * 32)
OTHER = Secret(HolderKind.FILE, b"p" * 32)
WORDS = holders.passphrase("correct horse battery staple")


@pytest.fixture
def seen(tmp_path):
    return Seen(tmp_path / "seen.json")


def made(bucket, seen, names=None):
    ring = keyring.create(bucket, seen, names or {"this machine": OWN}, cost=CHEAP)
    assert ring is not None
    return ring


def test_a_store_is_made_once(bucket, seen):
    ring = made(bucket, seen)
    assert keyring.create(bucket, seen, {"other": OTHER}, cost=CHEAP) is None
    assert keyring.open_with(bucket, seen, OWN).masters == ring.masters


def test_every_holder_opens_it_with_his_own_secret_only(seen, tmp_path):
    bucket = memory_bucket()
    ring = made(bucket, seen)
    for name, new in (("words", WORDS), ("other machine", OTHER)):
        added = keyring.add_holder(bucket, seen, OWN, name, new, cost=CHEAP)
        assert added.masters == ring.masters
    assert [one.name for one in added.holders] == ["this machine", "words", "other machine"]
    elsewhere = Seen(tmp_path / "elsewhere.json")
    assert keyring.open_with(bucket, elsewhere, WORDS).masters == ring.masters
    with pytest.raises(KeyUnavailable):
        keyring.open_with(bucket, elsewhere, holders.passphrase("correct horse battery stable"))
    with pytest.raises(KeyUnavailable):
        keyring.open_with(bucket, elsewhere, Secret(HolderKind.COMMAND, OWN.value))


def test_a_holder_who_was_removed_does_not_get_in(seen):
    bucket = memory_bucket()
    made(bucket, seen)
    ring = keyring.add_holder(bucket, seen, OWN, "words", WORDS, cost=CHEAP)
    with pytest.raises(ConfigurationError, match="its own secret"):
        keyring.remove_holder(bucket, seen, WORDS, ring.holder_id)
    with pytest.raises(ConfigurationError, match="no holder"):
        keyring.remove_holder(bucket, seen, OWN, "nobody")
    keyring.remove_holder(bucket, seen, OWN, ring.holder_id)
    with pytest.raises(KeyUnavailable, match="removed"):
        keyring.open_with(bucket, seen, WORDS)


def test_rekeying_keeps_old_objects_and_shuts_others_out_of_new_ones(seen):
    bucket = memory_bucket()
    old = made(bucket, seen)
    keyring.add_holder(bucket, seen, OWN, "other", OTHER, cost=CHEAP)
    sealed = old.seal.seal("a", b"before")
    new = keyring.rekey(bucket, seen, OWN, {"own": OWN, "words": WORDS}, cost=CHEAP)
    assert new.seal.open("a", sealed) == b"before"
    with pytest.raises(FarObjectInvalid):
        old.seal.open("b", new.seal.seal("b", b"after"))
    assert keyring.open_with(bucket, seen, WORDS).masters == new.masters
    with pytest.raises(KeyUnavailable):
        keyring.open_with(bucket, seen, OTHER)


def test_many_that_change_it_at_once_lose_nothing(bucket, seen):
    made(bucket, seen)
    new = [Secret(HolderKind.FILE, os.urandom(32)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(lambda one: keyring.add_holder(bucket, seen, OWN, "new", one, cost=CHEAP), new)
        )
    assert len(keyring.open_with(bucket, seen, OWN).holders) == 5
    for one in new:
        keyring.open_with(bucket, seen, one)


def test_an_older_keyring_is_refused_where_the_newer_was_seen(seen, tmp_path):
    bucket = memory_bucket()
    made(bucket, seen)
    old = bucket.get(keyring.NAME).data
    keyring.add_holder(bucket, seen, OWN, "words", WORDS, cost=CHEAP)
    bucket.overwrite(keyring.NAME, old)
    with pytest.raises(FarObjectInvalid, match="older"):
        keyring.open_with(bucket, seen, OWN)
    # A machine that is new cannot know.
    keyring.open_with(bucket, Seen(tmp_path / "new.json"), OWN)


def test_another_store_in_its_place_is_refused(seen, tmp_path):
    bucket = memory_bucket()
    made(bucket, seen)
    bucket.delete([keyring.NAME])
    made(bucket, Seen(tmp_path / "thief.json"))
    with pytest.raises(FarObjectInvalid, match="another store"):
        keyring.open_with(bucket, seen, OWN)


def _sound():
    bucket = memory_bucket()
    master = os.urandom(32)
    public = keyring._Public(
        b"s" * 16, 1, [holders.wrap(master, OWN, store_id=b"s" * 16, name="own", cost=CHEAP)]
    )
    bucket.create(keyring.NAME, keyring._encoded(public, [master]))
    return bucket.get(keyring.NAME).data


SOUND = _sound()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_no_altered_keyring_opens(tmp_path_factory, chance):
    bucket = memory_bucket()
    seen = Seen(tmp_path_factory.getbasetemp() / "mutated.json")
    header = keyring._HEADER.size
    # But for what only tells writings apart.
    for data in mutations(chance, SOUND[:12] + SOUND[header:]):
        bucket.overwrite(keyring.NAME, data[:12] + bytes(header - 12) + data[12:])
        with pytest.raises((FarObjectInvalid, FormatTooNew, KeyUnavailable)):
            keyring.open_with(bucket, seen, OWN)


def test_a_recovery_phrase_opens_it_as_it_was_typed(seen):
    bucket = memory_bucket()
    words, recovery = holders.new_recovery_phrase()
    assert len(words.split()) == 24
    made(bucket, seen, {"own": OWN, "paper": recovery})
    typed = holders.recovery_phrase("  " + words.upper().replace(" ", "\n "))
    keyring.open_with(bucket, seen, typed)
    swapped = words.split()
    swapped[0], swapped[1] = swapped[1], swapped[0]
    for wrong in (words[:-4], words + " word", " ".join(swapped), ""):
        if wrong != words:
            with pytest.raises(ConfigurationError, match="not a recovery phrase"):
                holders.recovery_phrase(wrong)


def test_a_short_passphrase_is_refused():
    with pytest.raises(ConfigurationError, match="8 characters"):
        holders.passphrase("seven77")


def test_a_secret_does_not_show():
    assert "horse" not in f"{WORDS!r} {WORDS}"


def test_nobody_opens_a_keyring_that_was_destroyed(bucket, tmp_path):
    seen = Seen(tmp_path / "seen.json")
    file = Secret(HolderKind.FILE, b"f" * 32)
    words, recovery = holders.new_recovery_phrase()
    assert keyring.create(bucket, seen, {"file": file, "paper": recovery})
    keyring.destroy(bucket)
    for secret in (file, holders.recovery_phrase(words)):
        with pytest.raises(KeyUnavailable):
            keyring.open_with(bucket, seen, secret)
    # Nor does anybody take the place for an empty one.
    assert keyring.create(bucket, seen, {"file": file}) is None
    keyring.destroy(bucket)
    bucket.delete([keyring.NAME])
    keyring.destroy(bucket)
