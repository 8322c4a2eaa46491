"""Removing what nothing needs goes on beside everything else, and takes nothing that somebody came to need meanwhile."""

import errno
import os
import sqlite3
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from jupyter_gpuckpt.errors import ObjectCorrupt, SnapshotExists, StoreUnavailable
from jupyter_gpuckpt.store import manifests, snapshot_rows
from jupyter_gpuckpt.store.codecs import digest_of
from jupyter_gpuckpt.store.index.catalog import Catalog
from jupyter_gpuckpt.store.index.database import sealed
from jupyter_gpuckpt.store.index.needs import encoded
from jupyter_gpuckpt.store.local import LocalStore, Upkeep
from jupyter_gpuckpt.store.snapshot_rows import Records
from jupyter_gpuckpt.store.unreferenced_packs import Collector
from tests.conftest import wait_for
from tests.manifests import manifest
from tests.unit.test_store_local import ONE, THREE, TWO, pack_files, put

FOUR = os.urandom(10_000)


@pytest.fixture
def store(tmp_path):
    """In packs of their own: ONE, which nothing needs but s1, and TWO, which s2 needs."""
    with LocalStore(tmp_path / "store") as store:
        for name, chunk in (("s1", ONE), ("s2", TWO)):
            put(store, chunk)
            store.publish(manifest(name, chunk))
        yield store


def publish(store, stack):
    """Save a chunk that is in the store already, from the look-up to the snapshot."""
    with store.writer() as writer:
        assert writer.known([digest_of(ONE)])
    store.publish(manifest("s3", ONE))


def publish_without_a_record(store, stack):
    """Publish while the catalog cannot be written."""

    def fail(self, info, digests, identity, located=None):
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Records, "add", fail)
        store.publish(manifest("s3", ONE))


def publish_without_a_look(store, stack):
    """Publish while the manifest's status cannot be read."""
    stat = Path.stat

    def fail(self, **options):
        if self.name == "s3.manifest" and os.path.exists(self):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return stat(self, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "stat", fail)
        publish(store, stack)


def publish_without_a_sync(store, stack):
    """Publish an import while the disk fails to sync; the snapshot may exist."""

    def fail(directory):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(manifests, "sync_directory", fail)
        with pytest.raises(StoreUnavailable):
            store.publish(manifest("s3", ONE))


def publish_after_a_rebuild(store, stack):
    """Save after a resume that missed a chunk, so that the numbers of records begin anew."""
    with pytest.raises(ObjectCorrupt):
        store.locate([os.urandom(32)])
    publish(store, stack)


def ask(store, stack):
    """Begin a save that relies on the chunk in the store."""
    assert stack.enter_context(store.writer()).known([digest_of(ONE)])


def hold(store, stack):
    """Begin a resume that is about to read."""
    stack.enter_context(store.holding([digest_of(ONE)]))


@pytest.mark.parametrize(
    "come",
    [
        publish,
        publish_without_a_record,
        publish_without_a_look,
        publish_without_a_sync,
        publish_after_a_rebuild,
        ask,
        hold,
    ],
)
def test_what_is_needed_in_between_stays(store, monkeypatch, come):
    condemn = Collector._condemn
    with ExitStack() as stack:

        def condemn_later(self, name, newest):
            monkeypatch.undo()
            come(store, stack)
            return condemn(self, name, newest)

        monkeypatch.setattr(Collector, "_condemn", condemn_later)
        store.delete("s1")
        assert store.load(digest_of(ONE)) == ONE
    for info in store.snapshots():
        store.verify(info.snapshot_id)


@pytest.mark.parametrize("found", ["by a delete", "afterwards"])
def test_the_record_of_a_newer_snapshot_of_the_same_id_stays(store, monkeypatch, found):
    forget, condemn = Records.forget, Collector._condemn

    def forget_late(self, gone):
        def condemn_late(self, name, newest):
            monkeypatch.undo()
            with store.writer() as writer:
                assert writer.known([digest_of(ONE)])
            store.publish(manifest("s1", ONE))
            forget(store._records, gone)
            return condemn(self, name, newest)

        monkeypatch.undo()
        monkeypatch.setattr(Collector, "_condemn", condemn_late)
        store.sweep()

    monkeypatch.setattr(Records, "forget", forget_late)
    if found == "by a delete":
        store.delete("s1")
    else:
        (store.root / "manifests" / "s1.manifest").unlink()
        list(store._records.all())
    store.verify("s1")


def test_what_was_read_of_an_older_snapshot_of_the_same_id_is_not_put_on_record(store, monkeypatch):
    store.publish(manifest("s3", ONE))
    put(store, THREE)
    store._catalog.database.run(lambda c: c.execute("UPDATE snapshots SET needs = NULL"))
    before, read = store._records.newest(), manifests.read

    def read_early(path, kind):
        found = read(path, kind)
        monkeypatch.undo()
        store.delete("s1")
        store.publish(manifest("s1", THREE))
        return found

    monkeypatch.setattr(manifests, "read", read_early)
    store._records.of("s1")
    [pack] = store.locate([digest_of(THREE)]).packs
    assert store._records.newer_needs(pack, before)
    store.sweep()
    store.verify("s1")


def test_a_pack_that_could_not_be_removed_is_a_pack_as_any(store, monkeypatch):
    def fail(self, missing_ok=False):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (store.root / "manifests" / "s1.manifest").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", fail)
        with pytest.raises(StoreUnavailable):
            store.sweep()
    with store.writer() as writer:
        assert writer.known([digest_of(ONE)])
    store.publish(manifest("s3", ONE))
    store._catalog.database.remake()
    store.verify("s3")


def test_a_pack_that_is_being_removed_is_not_counted_on(store, monkeypatch, caplog):
    remove = Catalog.remove
    stored = []

    def remove_later(self, names):
        # Its file is there for a moment: a save stores the chunk again all the same.
        stored.append(put(store, ONE))
        store.publish(manifest("s3", ONE))
        return remove(self, names)

    monkeypatch.setattr(Catalog, "remove", remove_later)
    store.delete("s1")
    assert stored == [len(ONE)]
    assert store.load(digest_of(ONE)) == ONE
    store.verify("s3")
    assert "made again" not in caplog.text
    root = store.root
    store.close()
    with LocalStore(root) as again:
        again.verify("s3")
        assert len(pack_files(again)) == 2


def test_nobody_waits_for_a_delete(store, monkeypatch):
    removing, go_on = threading.Event(), threading.Event()
    remove = Catalog.remove

    def remove_slowly(self, names):
        removing.set()
        assert go_on.wait(120)
        return remove(self, names)

    monkeypatch.setattr(Catalog, "remove", remove_slowly)
    deleting = threading.Thread(target=store.delete, args=("s1",))
    deleting.start()
    try:
        assert removing.wait(120)
        put(store, THREE)
        store.publish(manifest("s3", THREE))
        store.annotate("s3", {"title": "new"})
        assert {info.snapshot_id for info in store.snapshots()} == {"s2", "s3"}
        assert store.space().stored_bytes == len(TWO + THREE)
        store.verify("s3")
    finally:
        go_on.set()
        deleting.join()
    assert len(pack_files(store)) == 2


def test_a_rehearsal_holds_nobody_up_and_keeps_its_id(store):
    with store.staged(manifest("s3", ONE)) as staged:
        found = []
        other = threading.Thread(target=lambda: found.append(store.delete("s1")))
        other.start()
        other.join(120)
        assert found == [0], "what is staged stays"
        with pytest.raises(SnapshotExists), store.staged(manifest("s3", TWO)):
            pass
        staged.publish()
    store.verify("s3")


def test_a_record_that_is_damaged_is_made_again(store):
    root = store.root
    store.close()
    with closing(sqlite3.connect(root / "catalog.sqlite")) as connection:
        connection.execute("UPDATE snapshots SET needs = zeroblob(length(needs)), info = x'00'")
        connection.commit()
    with LocalStore(root) as again:
        assert len(again.snapshots()) == 2
        again.delete("s1")
        again.verify("s2")
        assert len(pack_files(again)) == 1


def test_a_record_that_names_packs_which_are_not_there_is_made_again(store):
    """A catalog of which a part is older than the rest says so."""
    root, other = store.root, encoded({"other": np.ones(1, np.uint8)})
    store.close()
    with closing(sqlite3.connect(root / "catalog.sqlite")) as connection:
        connection.create_function("of", 2, lambda *names: sealed("".join(names), other))
        connection.execute("UPDATE snapshots SET needs = of(name, identity)")
        connection.commit()
    with LocalStore(root) as again:
        again.delete("s1")
        again.verify("s2")
        assert again.weights().weight(again.manifest("s2").info) == len(TWO)


def test_a_snapshot_that_lacks_a_chunk_is_whole_again_after_the_next_save(store):
    (path,) = [p for p in pack_files(store) if TWO in p.read_bytes()]
    root = store.root
    store.close()
    path.unlink()
    with LocalStore(root) as again:
        assert put(again, TWO) == len(TWO)
        again.publish(manifest("s3", TWO))
        again.delete("s3")
        again.verify("s2")
        again.delete("s1", "s2")
        assert not pack_files(again)


@pytest.mark.parametrize("lacks", ["damaged", "missing"])
def test_a_snapshot_that_lacks_a_chunk_keeps_what_is_left_and_nothing_else(store, lacks):
    put(store, THREE)
    store.publish(manifest("s3", THREE))
    pack = place_of(store, ONE)
    if lacks == "damaged":
        store._catalog.mark_damaged(digest_of(ONE))
        store.sweep()
    else:
        store.path_of(pack).unlink()
        store.close()
        store = LocalStore(store.root)
    with store:
        list(store._records.all())
        assert store.delete("s3") > 0
        # What is only marked may be good after all.
        assert store.path_of(pack).exists() == (lacks == "damaged")
        store.verify("s2")


def test_many_snapshots_are_put_on_record_as_one_is(store, monkeypatch):
    """Of s3 a chunk is damaged, of s4 one is missing."""
    put(store, THREE)
    store.publish(manifest("s3", ONE, THREE))
    put(store, FOUR)
    store.publish(manifest("s4", TWO, FOUR))
    (path,) = [p for p in pack_files(store) if FOUR in p.read_bytes()]
    store._catalog.mark_damaged(digest_of(THREE))
    root, found = store.root, []
    store.close()
    path.unlink()
    for many in (1, 100):
        monkeypatch.setattr(snapshot_rows, "_MANY", many)
        with closing(sqlite3.connect(root / "catalog.sqlite")) as connection:
            connection.execute("DELETE FROM snapshots")
            connection.commit()
        with LocalStore(root) as again:
            wait_for(lambda store=again: len(store._records.infos()) == 4)
            all_needs = {name: encoded(needs) for name, needs in again._records.all()}
        with closing(sqlite3.connect(root / "catalog.sqlite")) as connection:
            query = "SELECT name FROM snapshots WHERE needs IS NULL"
            found.append((all_needs, {name for (name,) in connection.execute(query)}))
    assert found[0] == found[1]
    assert found[0][1] == {"s3", "s4"}
    assert all(all_needs for all_needs in found[0][0].values())


def test_closing_does_not_wait_until_all_is_on_record(store, monkeypatch):
    root, taken, stopped = store.root, [], threading.Event()
    store.close()
    with closing(sqlite3.connect(root / "catalog.sqlite")) as connection:
        connection.execute("DELETE FROM snapshots")
        connection.commit()
    walk, stop = Catalog.walk, Upkeep.stop

    def walk_slowly(self, numbers):
        for part in walk(self, numbers):
            taken.append(part)
            assert stopped.wait(120)
            yield part

    def stop_and_tell(self):
        self._stop.set()
        stopped.set()
        stop(self)

    monkeypatch.setattr(snapshot_rows, "_MANY", 1)
    monkeypatch.setattr(Catalog, "walk", walk_slowly)
    monkeypatch.setattr(Upkeep, "stop", stop_and_tell)
    with LocalStore(root):
        wait_for(lambda: taken)
    assert len(taken) == 1
    monkeypatch.undo()
    with LocalStore(root) as again:
        wait_for(lambda: again._records.complete)


@pytest.mark.parametrize("known", [True, False])
def test_rows_of_packs_that_are_gone_go(store, known):
    """Also where it is not known any more what lay in them."""
    root, gone = store.root, place_of(store, ONE)
    store.close()
    (root / "packs" / f"{gone}.pack").unlink()
    if not known:
        with closing(sqlite3.connect(root / "catalog.sqlite")) as connection:
            connection.execute("DELETE FROM contents")
            connection.commit()
    with LocalStore(root) as again:
        wait_for(lambda: not again._catalog.untidy)
        again.verify("s2")
    with closing(sqlite3.connect(root / "catalog.sqlite")) as connection:
        assert connection.execute("SELECT digest FROM chunks").fetchall() == [(digest_of(TWO),)]
        assert connection.execute("SELECT count(*) FROM packs").fetchone() == (1,)


def place_of(store, chunk):
    [place] = store.locate([digest_of(chunk)])
    return place.pack
