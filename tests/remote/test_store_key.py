"""The key of a remote: who opens it, what is noticed, and what comes back."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyter_gpuckpt.errors import (
    ConfigurationError,
    FormatTooNew,
    KeyUnavailable,
    RemoteObjectInvalid,
    RemoteObjectMissing,
)
from jupyter_gpuckpt.remote import store_key
from jupyter_gpuckpt.remote.buckets import Bucket
from jupyter_gpuckpt.remote.objects import Version
from jupyter_gpuckpt.remote.seen import Seen
from jupyter_gpuckpt.remote.store_key import Secret
from jupyter_gpuckpt.wire import join_line
from jupyter_gpuckpt.wire.remote_records import EntryKind
from tests.remote.conftest import CopyingStore, memory_bucket, quick
from tests.remote.mutations import mutations
from tests.remote.stores import FACTS, Machine, chunks

OWN = Secret(EntryKind.FILE, b"o" * 32)
OTHER = Secret(EntryKind.FILE, b"p" * 32)
WORDS = store_key.password("correct horse battery staple")


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    """Guessing is not to be made hard here."""
    monkeypatch.setattr(store_key, "_COST", 10)


@pytest.fixture
def seen(tmp_path):
    return Seen(tmp_path / "seen.json")


def made(bucket, seen, *secrets):
    key = store_key.create(bucket, seen, secrets or [OWN])
    assert key is not None
    return key


def test_a_store_is_made_once(bucket, seen):
    key = made(bucket, seen)
    assert store_key.create(bucket, seen, [OTHER]) is None
    assert store_key.open_with(bucket, seen, OWN).masters == key.masters


def test_every_secret_opens_its_own_entry_only(seen, tmp_path):
    bucket = memory_bucket()
    key = made(bucket, seen)
    for new in (WORDS, OTHER):
        added = store_key.add_entry(bucket, seen, OWN, new)
        assert added.masters == key.masters
    assert [one.kind for one in added.entries] == [OWN.kind, WORDS.kind, OTHER.kind]
    assert all(one.host and one.user for one in added.entries)
    elsewhere = Seen(tmp_path / "elsewhere.json")
    assert store_key.open_with(bucket, elsewhere, WORDS).masters == key.masters
    for wrong in (
        store_key.password("correct horse battery stable"),
        Secret(EntryKind.CODE, OWN.value),
    ):
        with pytest.raises(KeyUnavailable):
            store_key.open_with(bucket, elsewhere, wrong)


def test_the_secret_of_a_removed_entry_does_not_open_it(seen):
    bucket = memory_bucket()
    made(bucket, seen)
    key = store_key.add_entry(bucket, seen, OWN, WORDS)
    with pytest.raises(ConfigurationError, match="its own entry"):
        store_key.remove_entry(bucket, seen, WORDS, key.entries[-1].entry_id)
    with pytest.raises(ConfigurationError, match="no entry"):
        store_key.remove_entry(bucket, seen, OWN, "nobody")
    store_key.remove_entry(bucket, seen, OWN, key.entries[-1].entry_id)
    with pytest.raises(KeyUnavailable, match="removed"):
        store_key.open_with(bucket, seen, WORDS)


def test_a_rotation_keeps_old_objects_and_shuts_others_out_of_new_ones(seen):
    bucket = memory_bucket()
    old = made(bucket, seen)
    store_key.add_entry(bucket, seen, OWN, OTHER)
    sealed = old.seal.seal("a", b"before")
    new = store_key.rotate(bucket, seen, [OWN, WORDS])
    assert new.seal.open("a", sealed) == b"before"
    with pytest.raises(RemoteObjectInvalid):
        old.seal.open("b", new.seal.seal("b", b"after"))
    assert store_key.open_with(bucket, seen, WORDS).masters == new.masters
    with pytest.raises(KeyUnavailable):
        store_key.open_with(bucket, seen, OTHER)


def test_machines_that_add_themselves_at_once_lose_nothing(bucket, seen, tmp_path):
    code = store_key.new_code()
    made(bucket, seen, OWN, code)
    new = {Secret(EntryKind.FILE, os.urandom(32)): Seen(tmp_path / f"{n}.json") for n in range(4)}

    def add(one):
        store_key.add_entry(bucket, new[one], code, one)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, new))
    assert len(store_key.open_with(bucket, seen, OWN).entries) == 6
    for secret, its in new.items():
        store_key.open_with(bucket, its, secret)


class Forgetful(Bucket):
    """A bucket that loses the answer of the next swap, so that it looks like a lost race."""

    loses = False

    def swap(self, name: str, data: bytes, old: Version) -> bool:
        done = super().swap(name, data, old)
        if self.loses:
            self.loses = False
            return False
        return done


@pytest.mark.parametrize("action", ["add", "remove", "rotate"])
def test_a_change_whose_answer_was_lost_is_made_once(seen, action):
    bucket = Forgetful(CopyingStore(), "forgetful", retries=quick())
    made(bucket, seen)
    key = store_key.add_entry(bucket, seen, OWN, WORDS)
    bucket.loses = True
    if action == "add":
        store_key.add_entry(bucket, seen, OWN, OTHER)
    elif action == "remove":
        store_key.remove_entry(bucket, seen, OWN, key.entries[-1].entry_id)
    else:
        store_key.rotate(bucket, seen, [OWN, WORDS])
    after = store_key.open_with(bucket, seen, OWN)
    assert after.public.generation == key.public.generation + 1
    assert len(after.entries) == {"add": 3, "remove": 1, "rotate": 2}[action]
    assert len(after.masters) == (2 if action == "rotate" else 1)


def test_an_older_key_is_refused_by_machines_and_lines_that_know_the_newer(seen, tmp_path):
    bucket = memory_bucket()
    made(bucket, seen)
    old = bucket.get(store_key.NAME).data
    line = store_key.add_entry(bucket, seen, OWN, WORDS).line("s3://b")
    bucket.overwrite(store_key.NAME, old)
    with pytest.raises(RemoteObjectInvalid, match="older copy of its key"):
        store_key.open_with(bucket, seen, OWN)
    newcomer = Seen(tmp_path / "new.json")
    with pytest.raises(RemoteObjectInvalid, match="older copy of its store"):
        store_key.open_with(bucket, newcomer, OWN, line)
    # Without a line a machine that is new cannot know.
    store_key.open_with(bucket, newcomer, OWN)


def test_another_store_in_its_place_is_refused_before_a_secret_is_tried(
    seen, tmp_path, monkeypatch
):
    bucket = memory_bucket()
    line = made(bucket, seen).line("s3://b")
    bucket.delete([store_key.NAME])
    made(bucket, Seen(tmp_path / "thief.json"))
    tried = []
    monkeypatch.setattr(store_key, "_unwrap", lambda *words: tried.append(words))
    with pytest.raises(RemoteObjectInvalid, match="it was replaced"):
        store_key.open_with(bucket, seen, OWN)
    with pytest.raises(RemoteObjectInvalid, match="than the line names"):
        store_key.open_with(bucket, Seen(tmp_path / "new.json"), OWN, line)
    assert tried == []


def test_a_lost_key_comes_back_from_a_machine_and_takes_no_others_place(bucket, seen, tmp_path):
    key = made(bucket, seen)
    bucket.delete([store_key.NAME])
    with pytest.raises(RemoteObjectMissing) as caught:
        store_key.open_with(bucket, seen, OWN)
    assert f"remote key restore {bucket.name}" in caught.value.hint
    with pytest.raises(KeyUnavailable, match="keeps no copy"):
        store_key.restore(bucket, Seen(tmp_path / "new.json"), OWN)
    seen.key_path.write_bytes((data := seen.key_path.read_bytes())[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises((RemoteObjectInvalid, KeyUnavailable)):
        store_key.restore(bucket, seen, OWN)
    assert bucket.head(store_key.NAME) is None
    seen.key_path.write_bytes(data)
    assert store_key.restore(bucket, seen, OWN).masters == key.masters
    store_key.add_entry(bucket, Seen(tmp_path / "b.json"), OWN, OTHER)
    with pytest.raises(ConfigurationError, match="has a key already"):
        store_key.restore(bucket, seen, OWN)
    assert len(store_key.open_with(bucket, seen, OTHER).entries) == 2


def test_a_rotation_disturbs_no_upload_that_runs(tmp_path):
    bucket = memory_bucket()
    one, two = Machine(bucket, tmp_path / "one"), Machine(bucket, tmp_path / "two", "another")
    try:
        content = chunks(1)
        one.save("s1", *content)
        uploader = one.uploader()
        store_key.rotate(bucket, two.seen, [OWN, WORDS])
        uploader.upload(one.store, "s1", FACTS)
        # Whoever has the new key reads what was sealed with the old one.
        two.fetch("s1")
        one.save("s2", *chunks(2))
        one.upload("s2")
        two.fetch("s2")
        assert {one.snapshot_id for one in two.store.snapshots()} == {"s1", "s2"}
    finally:
        one.close()
        two.close()


def test_a_deleted_session_is_noticed_and_its_next_upload_lists_it_again(tmp_path):
    one = Machine(memory_bucket(), tmp_path / "one")
    try:
        for number in (1, 2):
            one.save(f"s{number}", *chunks(number))
            one.upload(f"s{number}")
        one.bucket.delete([f"sessions/{FACTS.session_id}"])
        with pytest.raises(RemoteObjectMissing, match="was deleted in remote"):
            one.sessions.get(FACTS.session_id)
        for number in (1, 2):
            one.upload(f"s{number}")
        # The new object is no older state of the deleted one to a machine that has seen that.
        session = one.sessions.get(FACTS.session_id)
        assert {each.snapshot_id for each in session.listed} == {"s1", "s2"}
    finally:
        one.close()


def _sound():
    bucket = memory_bucket()
    master = os.urandom(32)
    entry = store_key._wrap(master, OWN, b"s" * 16)
    public = store_key._Public(b"s" * 16, 1, [entry])
    bucket.create(store_key.NAME, store_key._encoded(public, [master]))
    return bucket.get(store_key.NAME).data


SOUND = _sound()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_no_altered_key_opens(tmp_path_factory, chance):
    bucket = memory_bucket()
    seen = Seen(tmp_path_factory.getbasetemp() / "mutated.json")
    header = store_key._HEADER.size
    # But for what only tells writings apart.
    for data in mutations(chance, SOUND[:12] + SOUND[header:]):
        bucket.overwrite(store_key.NAME, data[:12] + bytes(header - 12) + data[12:])
        with pytest.raises((RemoteObjectInvalid, FormatTooNew, KeyUnavailable)):
            store_key.open_with(bucket, seen, OWN)


@given(st.integers(1, 1 << 40), st.binary(min_size=0, max_size=20), st.integers(0, 10_000))
def test_a_line_is_read_as_it_was_printed_and_no_mistyped_one_is(generation, code, place):
    line = join_line.JoinLine("file:///a folder/b", b"s" * 16, generation, code)
    text = line.text()
    assert join_line.parse(f"  {text}\n") == line
    start = len(line.url) + 1
    place = start + place % (len(text) - start)
    if text[place] not in " =":
        wrong = text[:place] + ("2" if text[place] != "2" else "3") + text[place + 1 :]
        with pytest.raises(ConfigurationError, match="mistyped"):
            join_line.parse(wrong)


def test_a_short_password_is_refused():
    with pytest.raises(ConfigurationError, match="8 characters"):
        store_key.password("seven77")


def test_a_secret_does_not_show():
    line = join_line.JoinLine("s3://b", b"s" * 16, 1, b"horse")
    assert "horse" not in f"{WORDS!r} {WORDS} {line!r} {line}"


def test_nothing_opens_a_key_that_was_destroyed(bucket, seen):
    code = store_key.new_code()
    made(bucket, seen, OWN, code)
    store_key.destroy(bucket)
    for secret in (OWN, code):
        with pytest.raises(KeyUnavailable):
            store_key.open_with(bucket, seen, secret)
    # Nor does anybody take the place for an empty one.
    assert store_key.create(bucket, seen, [OWN]) is None
    store_key.destroy(bucket)
    bucket.delete([store_key.NAME])
    store_key.destroy(bucket)
