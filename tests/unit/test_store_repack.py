"""Packs of which little is needed are written anew, and what snapshots weigh together."""

import errno
import os
import threading

import pytest

from jupyter_gpuckpt.store import repack
from jupyter_gpuckpt.store.codecs import RAW, digest_of
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.packs import RECORD_BYTES
from jupyter_gpuckpt.store.snapshot_rows import Records
from jupyter_gpuckpt.store.writer import Record
from jupyter_gpuckpt.wire.manifest_records import Chunk, Sizes, SnapshotInfo, Stream
from tests.manifests import manifest_of

SIZE = 10_000


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store") as store:
        yield store


def chunks(count):
    return [os.urandom(SIZE) for _ in range(count)]


def info(name):
    return SnapshotInfo(name, "k", 1.0, "save", sizes=Sizes(stored_bytes=5))


def save(store, name, data):
    """Publish a snapshot of these chunks, the new ones in a pack of their own."""
    with store.writer() as writer:
        for chunk in data:
            if not writer.known([digest_of(chunk)]):
                writer.append_all([Record(digest_of(chunk), chunk, len(chunk), RAW)])
    stream = Stream("a", sum(map(len, data)), [Chunk(digest_of(c), len(c)) for c in data])
    store.publish(manifest_of(info(name), stream))


def on_disk(store):
    return sum(path.stat().st_size for path in (store.root / "packs").iterdir())


def place_of(store, chunk):
    [place] = store.locate([digest_of(chunk)])
    return place


def flip(store, chunk):
    """Damage a chunk where it lies."""
    place = place_of(store, chunk)
    path = store.root / "packs" / f"{place.pack}.pack"
    data = bytearray(path.read_bytes())
    data[place.offset + 100] ^= 1
    path.write_bytes(data)


def test_saved_over_and_over_the_store_holds_what_is_needed_and_little_more(store):
    # Of each save one chunk stays for ever: without repacking none of the packs would ever go.
    lasting = []
    for count in range(12):
        new = chunks(10)
        lasting.append(new[0])
        save(store, f"s{count}", [*lasting, *new[1:]])
        if count:
            assert store.delete(f"s{count - 1}") > 0
    needed = (len(lasting) + 9) * (SIZE + RECORD_BYTES)
    assert on_disk(store) < 2 * needed
    store.verify("s11")
    root = store.root
    store.close()
    with LocalStore(root) as again:
        again.verify("s11")


def test_what_became_free_is_told(store):
    mine, both = chunks(9), chunks(1)
    save(store, "s1", [*mine, *both])
    save(store, "s2", both)
    before = on_disk(store)
    freed = store.delete("s1")
    assert freed == before - on_disk(store) > 9 * SIZE


def test_a_pack_of_which_half_is_needed_stays(store):
    mine, both = chunks(4), chunks(6)
    save(store, "s1", [*mine, *both])
    save(store, "s2", both)
    assert store.delete("s1") == 0
    store.verify("s2")


def test_a_pack_that_is_being_read_stays(store):
    mine, both = chunks(9), chunks(1)
    save(store, "s1", [*mine, *both])
    save(store, "s2", both)
    with store.holding([digest_of(both[0])]):
        place = place_of(store, both[0])
        store.delete("s1")
        assert place_of(store, both[0]) == place
    # The next delete finds it.
    save(store, "s3", chunks(1))
    assert store.delete("s3") > 9 * SIZE
    store.verify("s2")


@pytest.mark.parametrize("when", ["reader", "manifest"])
def test_what_comes_between_the_copy_and_its_use_is_seen(store, monkeypatch, when):
    mine, both, late = chunks(9), chunks(1), None
    save(store, "s1", [*mine, *both])
    save(store, "s2", both)
    copy = repack.Repacking._copy
    held = []

    def copy_and_more(self, *arguments):
        nonlocal late
        done = copy(self, *arguments)
        if when == "reader":
            context = store.holding([digest_of(both[0])])
            context.__enter__()
            held.append(context)
        else:
            save(store, "s4", [mine[0], *both])
        return done

    monkeypatch.setattr(repack.Repacking, "_copy", copy_and_more)
    store.delete("s1")
    monkeypatch.undo()
    for context in held:
        context.__exit__(None, None, None)
    store.verify("s2")
    if when == "manifest":
        store.verify("s4")
    assert len(list((store.root / "packs").iterdir())) == 1


def test_a_save_beside_one_that_fails_ends_nothing_of_it(store, monkeypatch):
    mine, both = chunks(9), chunks(1)
    save(store, "s1", [*mine, *both])
    save(store, "s2", both)

    def fail(self, moves, name, count):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Records, "move", fail)
        store.delete("s1")
    save(store, "s3", chunks(1))
    store.close()
    with LocalStore(store.root) as again:
        again.sweep()
        # The catalog knows what it is in, not only the packs.
        assert again._catalog.known([digest_of(both[0])])
        again.verify("s2")


def test_damage_is_not_copied_as_if_it_were_none(store):
    mine, both = chunks(9), chunks(1)
    save(store, "s1", [*mine, *both])
    save(store, "s2", both)
    flip(store, both[0])
    assert store.delete("s1") == 0
    with pytest.raises(Exception, match="damaged"):
        store.load(digest_of(both[0]))
    # The next save stores it again, and then the old pack goes.
    save(store, "s3", both)
    store.delete("s3")
    store.verify("s2")
    assert on_disk(store) < 3 * SIZE


def test_saves_beside_it_lose_nothing(store):
    """A thread saves and deletes while another repacks all the time."""
    stop, lasting, errors = threading.Event(), chunks(3), []

    def work(letter):
        try:
            for count in range(15):
                save(store, f"{letter}{count}", [*lasting, *chunks(3)])
                if count:
                    store.delete(f"{letter}{count - 1}")
                store.verify(f"{letter}{count}")
        except BaseException as error:
            errors.append(error)

    def rewrite():
        while not stop.is_set():
            store._repacking.run()

    others = [threading.Thread(target=work, args=(letter,)) for letter in "ab"]
    repacker = threading.Thread(target=rewrite)
    for thread in (*others, repacker):
        thread.start()
    for thread in others:
        thread.join()
    stop.set()
    repacker.join()
    assert not errors
    store.verify("a14")
    store.verify("b14")


def test_what_snapshots_share_weighs_once(store):
    one, two, both = chunks(2), chunks(3), chunks(4)
    save(store, "s1", [*one, *both])
    save(store, "s2", [*two, *both])
    scales = store.weights()
    assert scales.weight(info("s1")) == 6 * SIZE
    scales.add(info("s1"))
    assert scales.weight(info("s1")) == 0
    assert scales.weight(info("s2")) == 3 * SIZE
    assert scales.weight(info("gone")) == 5


def test_several_are_deleted_at_once_or_none(store):
    for name in ("s1", "s2", "s3"):
        save(store, name, chunks(2))
    with pytest.raises(Exception, match="no snapshot other"):
        store.delete("s1", "other")
    assert len(store.snapshots()) == 3
    assert store.delete("s1", "s3") > 4 * SIZE
    assert [found.snapshot_id for found in store.snapshots()] == ["s2"]
