"""The catalog is made again in the middle of something else, as a resume that misses a chunk has it: nothing is lost by that."""

import os
from contextlib import ExitStack

import pytest

from jupyter_gpuckpt.errors import ObjectCorrupt
from jupyter_gpuckpt.store import packs
from jupyter_gpuckpt.store.codecs import digest_of
from jupyter_gpuckpt.store.index import rows
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.snapshot_rows import Records
from tests.unit.test_store_local import ONE, THREE, TWO, pack_files
from tests.unit.test_store_repack import chunks, save


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store") as store:
        save(store, "other", [TWO])
        yield store


def rebuild(store):
    with pytest.raises(ObjectCorrupt):
        store.locate([os.urandom(32)])


def between(monkeypatch, owner, name, step):
    """Do `step` once, just after this method."""
    real = getattr(owner, name)

    def and_step(*arguments):
        done = real(*arguments)
        monkeypatch.undo()
        step()
        return done

    monkeypatch.setattr(owner, name, and_step)


def verify_all(store):
    """Also after the next opening, which finds what is on the disk."""
    store.sweep()
    store.close()
    with LocalStore(store.root) as again:
        again.sweep()
        assert again.snapshots()
        for info in again.snapshots():
            again.verify(info.snapshot_id)


def test_a_new_pack_of_a_save(store, monkeypatch):
    def others():
        rebuild(store)
        store.sweep()

    between(monkeypatch, packs.PackFile, "seal", others)
    save(store, "s1", [ONE])
    store.verify("s1")
    verify_all(store)


def test_a_new_pack_of_a_repack(store, monkeypatch):
    mine, both = chunks(9), chunks(1)
    save(store, "s1", [*mine, *both])
    save(store, "s2", both)
    with ExitStack() as stack:

        def others():
            stack.enter_context(store.holding([digest_of(both[0])]))
            rebuild(store)

        between(monkeypatch, packs.PackFile, "seal", others)
        store.delete("s1")
    verify_all(store)


def test_a_new_pack_of_a_repack_that_has_come_and_gone(store, monkeypatch):
    mine, both = chunks(9), chunks(1)
    save(store, "s1", [*mine, *both])
    save(store, "s2", both)

    def others():
        rebuild(store)
        store.delete("s2")
        assert len(pack_files(store)) == 1
        save(store, "s3", both)

    between(monkeypatch, Records, "newer_needs", others)
    store.delete("s1")
    store.verify("s3")
    verify_all(store)


def test_a_number_that_another_pack_has_by_then(store, monkeypatch):
    save(store, "gone", [ONE])
    save(store, "old", [THREE])
    catalog = store._catalog
    deletions = rows.deletions

    def others():
        # The lost pack's number is old's now, which is on its way out.
        rebuild(store)
        (store.root / "manifests" / "old.manifest").unlink()
        assert catalog.condemn(old, store._records.newest())

    def deletions_later(pack, digests):
        works = list(deletions(pack, digests))
        monkeypatch.undo()
        others()
        return works

    [old] = store.locate([digest_of(THREE)]).packs
    monkeypatch.setattr(rows, "deletions", deletions_later)
    store.delete("gone")
    catalog.remove([old])
    save(store, "s4", [THREE])
    store.verify("s4")
    verify_all(store)
