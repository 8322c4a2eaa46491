"""A store of another user is read without a lock or a catalog; what its owner changes is noticed, and nothing is written."""

import os

import pytest

from jupyter_gpuckpt.errors import (
    ManifestInvalid,
    ObjectCorrupt,
    SnapshotNotFound,
    StoreUnavailable,
)
from jupyter_gpuckpt.images.unpack import read_stream
from jupyter_gpuckpt.store import manifests
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.read_only import ReadOnlyStore
from tests.remote.installations import save, some_chunks

OLD, NEW = (some_chunks(number, 3) for number in (1, 2))


@pytest.fixture
def theirs(tmp_path):
    """Yield the store of another user, which stays open, with one snapshot."""
    with LocalStore(tmp_path / "theirs") as store:
        save(store, "s1", *OLD)
        yield store


@pytest.fixture
def ours(theirs):
    """Return a reader of the same store, as another user has it."""
    return ReadOnlyStore(theirs.root)


def content(store, snapshot_id):
    manifest = store.manifest(snapshot_id)
    return {stream.name: read_stream(stream, store) for stream in manifest.streams}


def state_of(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def packs_of(store):
    return sorted((store.root / "packs").glob("*.pack"))


def test_it_reads_what_its_owner_reads_and_writes_nothing(theirs, ours):
    before = state_of(theirs.root)
    assert content(ours, "s1") == content(theirs, "s1")
    digests = manifests.references(ours.manifest("s1"))
    assert ours.locate(digests).digests == theirs.locate(digests).digests
    with pytest.raises(SnapshotNotFound):
        ours.manifest("s2")
    with pytest.raises(SnapshotNotFound):
        ours.manifest("../manifests/s1")
    assert state_of(theirs.root) == before


def test_what_the_owner_adds_is_found_and_what_it_removes_is_missing(theirs, ours):
    content(ours, "s1")
    old = manifests.references(theirs.manifest("s1"))
    save(theirs, "s2", *NEW)
    assert content(ours, "s2") == content(theirs, "s2")
    theirs.delete("s1")
    assert content(ours, "s2") == content(theirs, "s2")
    with pytest.raises(ObjectCorrupt, match="is not in the store"):
        ours.locate(old)


def test_a_chunk_that_was_altered_is_named(theirs, ours):
    digest = sorted(manifests.references(theirs.manifest("s1")))[0]
    place = next(iter(theirs.locate((digest,))))
    with theirs.path_of(place.pack).open("r+b") as file:
        file.seek(place.offset + place.stored_length // 2)
        file.write(b"altered")
    with pytest.raises(ObjectCorrupt, match="is damaged"):
        ours.load(digest)
    with pytest.raises(ObjectCorrupt):
        content(ours, "s1")


@pytest.mark.parametrize("what", ["a pipe", "a folder", "a manifest of another snapshot"])
def test_what_is_no_manifest_is_refused_without_waiting(what, theirs, ours):
    path = manifests.path_of(theirs.root / "manifests", "s2")
    if what == "a pipe":
        os.mkfifo(path)
    elif what == "a folder":
        path.mkdir()
    else:
        path.write_bytes(manifests.path_of(path.parent, "s1").read_bytes())
    with pytest.raises((StoreUnavailable, ManifestInvalid)):
        ours.manifest("s2")


def test_a_pipe_among_the_packs_is_refused_without_waiting(theirs, ours):
    os.mkfifo(theirs.root / "packs" / "zzz.pack")
    with pytest.raises(StoreUnavailable, match="is not a file"):
        content(ours, "s1")
    (theirs.root / "packs" / "zzz.pack").unlink()
