"""Packs that something else damaged, copied or touched: what a store still relies on, and what it stores again."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.errors import ObjectCorrupt
from jupyter_gpuckpt.images.chunking import PAGE
from jupyter_gpuckpt.images.composing import Predecessor
from jupyter_gpuckpt.images.pack import BytesSource, pack
from jupyter_gpuckpt.images.unpack import read_stream
from jupyter_gpuckpt.snapshots import save as saving
from jupyter_gpuckpt.store import manifests, pack_identity, pack_reading, packs
from jupyter_gpuckpt.store.bringing import bring
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.pack_identity import Identity, Trust
from jupyter_gpuckpt.store.pack_reading import read_pack
from jupyter_gpuckpt.wire.manifest_records import Cause, SnapshotInfo
from jupyter_gpuckpt.wire.progress import Progress
from tests.manifests import manifest_of
from tests.parameters import some_slow

LENGTH = 3 << 20
FIRST = random.Random(1).randbytes(LENGTH)
#: The same with a page in fifty changed, so that chunks are composed.
SECOND = b"".join(
    os.urandom(PAGE) if at // PAGE % 50 == 7 else FIRST[at : at + PAGE]
    for at in range(0, LENGTH, PAGE)
)
IN_TIME, LATE = Cause.MANUAL, Cause.RECLAIM


class Refused(Exception):  # noqa: N818 - an event
    """The event that a suspend would be refused."""


def save(
    store: LocalStore, name: str, data: bytes, cause: Cause = IN_TIME
) -> tuple[int, list[str]]:
    """Store a snapshot as a suspend does; return the new bytes and the warnings. Raises Refused."""
    newest = next(iter(store.snapshots("k")), None)
    before = Predecessor(store.manifest(newest.snapshot_id).streams) if newest else None
    saving.settle_packs(store, before, cause, threads=2, progress=Progress())
    packed = pack(
        [BytesSource("a", data)], store, threads=1, progress=Progress(), predecessor=before
    )
    needed = store.needed(packed.streams)
    info = SnapshotInfo(name, "k", float(len(store.snapshots())), "suspend")
    with store.staged(manifest_of(info, *packed.streams), needed) as staged:
        problems, warnings = saving.pack_problems(store, needed.digests, cause)
        if problems:
            raise Refused(problems)
        staged.publish()
    return packed.new_bytes, warnings


def content(store: LocalStore, name: str) -> bytes:
    return read_stream(store.manifest(name).streams[0], store)


def pack_paths(store: LocalStore) -> list[Path]:
    return sorted((store.root / "packs").glob("*.pack"))


def flip(path: Path) -> None:
    overwrite(path, bytes([path.read_bytes()[path.stat().st_size // 3] ^ 1]))


def zero(path: Path) -> None:
    overwrite(path, bytes(min(1 << 20, path.stat().st_size // 2)))


def overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 3)
        file.write(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def restore_time(path: Path, facts: os.stat_result) -> None:
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def replace(path: Path) -> None:
    """Put a damaged copy in its place, with the time of the original."""
    copy = path.with_suffix(".copy")
    shutil.copyfile(path, copy)
    zero(copy)
    restore_time(copy, path.stat())
    copy.rename(path)


def flip_silently(path: Path) -> None:
    """Change a byte in place without changing the time of modification."""
    facts = path.stat()
    flip(path)
    restore_time(path, facts)


DAMAGES = {
    "flip": flip,
    "zero": zero,
    "truncate": truncate,
    "remove": Path.unlink,
    "replace": replace,
    "flip silently": flip_silently,
}
#: Those after which a pack has the same length and time of modification as before.
SILENT = {"replace", "flip silently"}


@pytest.fixture
def store(tmp_path):
    """Return a store with two snapshots; the second has composed chunks."""
    with LocalStore(tmp_path / "store") as opened:
        save(opened, "s1", FIRST)
        save(opened, "s2", SECOND)
        assert any(chunk.parts for chunk in opened.manifest("s2").streams[0].chunks)
        assert len(pack_paths(opened)) == 2
        yield opened


def reopened(store: LocalStore) -> LocalStore:
    store.close()
    return LocalStore(store.root)


#: Each damage, of the packs with the first snapshot and with the changes since, when time is short or not, while the store is open or not.
CASES = list(product(DAMAGES, (0, 1), (IN_TIME, LATE), (False, True)))
QUICK = [
    (damage, at % 2, cause, at % 2 == 0)
    for at, damage in enumerate(DAMAGES)
    for cause in (IN_TIME, LATE)
]


@pytest.mark.parametrize(("damage", "number", "cause", "is_reopened"), some_slow(CASES, QUICK))
def test_what_was_damaged_is_stored_again_although_nothing_changed(
    store, damage, number, cause, is_reopened
):
    DAMAGES[damage](pack_paths(store)[number])
    if is_reopened:
        store = reopened(store)
    with store:
        new_bytes, warnings = save(store, "s3", SECOND, cause)
        # What is left of a pack that was cut short is relied on as well.
        assert bool(warnings) == (cause is LATE and damage in {*SILENT, "truncate"})
        if damage in SILENT and cause is LATE:
            return
        assert new_bytes
        store.verify("s3")
        assert content(store, "s3") == SECOND
        assert save(store, "s4", SECOND, cause)[0] == 0
        read_due(store)
        assert store.damage.snapshots() == [name for name in ("s1", "s2") if is_lost(store, name)]
        assert save(store, "s5", SECOND, LATE) == (0, [])


def read_due(store: LocalStore) -> None:
    for name in store.pack_checks.due(1e9):
        store.pack_checks.note(name, read_pack(store.path_of(name), lambda: None))
    assert store.pack_checks.due(1e9) == []


def is_lost(store: LocalStore, name: str) -> bool:
    try:
        store.verify(name)
    except ObjectCorrupt:
        return True
    return False


def copy_back(store: LocalStore) -> None:
    """Replace the store by a copy, as a move to another disk does."""
    aside = store.root.with_name("aside")
    store.root.rename(aside)
    shutil.copytree(aside, store.root)
    for path in aside.rglob("*"):
        restore_time(store.root / path.relative_to(aside), path.stat())


def link(store: LocalStore) -> None:
    for path in pack_paths(store):
        os.link(path, store.root.parent / path.name)


def lose_catalog(store: LocalStore) -> None:
    (store.root / "catalog.sqlite").unlink()


HARMLESS: dict[str, Callable[[LocalStore], None]] = {
    "copied": copy_back,
    "linked": link,
    "catalog lost": lose_catalog,
}


@pytest.mark.parametrize("cause", [IN_TIME, LATE], ids=["in time", "late"])
@pytest.mark.parametrize("what", HARMLESS)
def test_nothing_is_stored_twice_because_files_were_copied_or_linked(store, what, cause):
    store.close()
    HARMLESS[what](store)
    with LocalStore(store.root) as again:
        new_bytes, warnings = save(again, "s3", SECOND, cause)
        assert new_bytes == 0
        assert bool(warnings) == (cause is LATE)
        assert bool(again.pack_checks.due(1e9)) == (cause is LATE)
        read_due(again)
        assert save(again, "s4", SECOND, LATE) == (0, [])


def test_a_changed_pack_is_not_read_when_time_is_short(store, monkeypatch):
    flip(pack_paths(store)[0])
    monkeypatch.setattr(saving, "read_pack", lambda *_: pytest.fail("it was read"))
    new_bytes, _ = save(store, "s3", SECOND, LATE)
    assert new_bytes > LENGTH // 2
    store.verify("s3")


def test_only_the_damaged_chunk_is_stored_again_when_there_is_time(store):
    flip(pack_paths(store)[0])
    new_bytes, _ = save(store, "s3", SECOND)
    assert 0 < new_bytes < LENGTH // 2


def test_a_pack_that_was_touched_is_read_once_and_not_distrusted(store):
    (path, _) = pack_paths(store)
    path.touch()
    assert save(store, "s3", SECOND) == (0, [])
    assert store.pack_checks.due(1e9) == []


@pytest.mark.parametrize(
    ("damage", "number"),
    some_slow(
        product(DAMAGES, (0, 1)),
        [("remove", 0), ("flip", 1), ("replace", 0), ("flip silently", 1)],
    ),
)
def test_damage_during_a_suspend_is_found_before_the_kernel_is_killed(store, damage, number):
    before = Predecessor(store.manifest("s2").streams)
    saving.settle_packs(store, before, LATE, threads=1, progress=Progress())
    packed = pack(
        [BytesSource("a", SECOND)], store, threads=1, progress=Progress(), predecessor=before
    )
    needed = store.needed(packed.streams)
    assert saving.pack_problems(store, needed.digests, LATE) == ([], [])
    DAMAGES[damage](pack_paths(store)[number])
    problems, warnings = saving.pack_problems(store, needed.digests, IN_TIME)
    assert len(problems) == 1, (problems, warnings)
    assert "next attempt" in problems[0]
    save(store, "s3", SECOND)
    store.verify("s3")


def test_a_pack_that_may_not_be_read_any_more_is_stored_again(store, monkeypatch):
    path = pack_paths(store)[0]
    path.chmod(0)
    access = os.access

    def refuse(asked, mode):  # root may read everything
        return access(asked, mode) and bool(asked.stat().st_mode & 0o400)

    def refuse_open(path, *arguments):
        assert path.stat().st_mode & 0o400, "it was opened"
        return read_span(path, *arguments)

    read_span = packs.read_span
    monkeypatch.setattr(os, "access", refuse)
    monkeypatch.setattr(packs, "read_span", refuse_open)
    new_bytes, _ = save(store, "s3", SECOND, LATE)
    assert new_bytes > LENGTH // 2
    store.verify("s3")
    path.chmod(0o600)
    assert save(store, "s4", SECOND, LATE) == (0, [])


def test_no_other_operation_relies_on_a_pack_that_is_gone(store, tmp_path):
    digests = manifests.references(store.manifest("s2"))
    with LocalStore(tmp_path / "other") as other:
        assert bring(other, store.root, "s2")
        for path in pack_paths(other):
            path.unlink()
        assert bring(other, store.root, "s1")
        other.verify("s1")
    pack_paths(store)[0].unlink()
    store.pack_checks.look()
    with store.writer() as writer:
        assert not writer.known(digests).keys() >= digests
    assert store.missing(digests)


def test_a_pack_that_is_put_back_is_used_again(store, tmp_path):
    path = pack_paths(store)[0]
    aside = tmp_path / "aside"
    path.rename(aside)
    store.pack_checks.look()
    assert store.missing(manifests.references(store.manifest("s1")))
    assert store.damage.snapshots() == ["s1", "s2"]
    aside.rename(path)
    assert content(store, "s1") == FIRST
    assert store.damage.snapshots() == []


def test_silent_damage_is_found_by_reading_and_repaired_by_the_next_save(store):
    path = pack_paths(store)[0]
    flip_silently(path)
    new_bytes, [warning] = save(store, "s3", SECOND, LATE)
    assert not new_bytes
    assert "no time to read them" in warning
    assert store.damage.snapshots() == []
    assert path.stem in store.pack_checks.due(0)
    assert store.pack_checks.note(path.stem, read_pack(path, lambda: None)) == 1
    assert {"s1", "s3"} <= set(store.damage.snapshots())
    assert store.space().damaged == store.damage.snapshots()
    assert path.stem not in store.pack_checks.due(1e9)
    with reopened(store) as again:
        assert {"s1", "s3"} <= set(again.damage.note())
        new_bytes, _ = save(again, "s4", FIRST, LATE)
        assert new_bytes
        for name in ("s1", "s2", "s3", "s4"):
            again.verify(name)
        assert again.damage.note() == []


def test_a_rebuilt_catalog_keeps_what_is_known_of_sound_packs_only(store):
    first = pack_paths(store)[0]
    flip_silently(first)
    store.pack_checks.note(first.stem, read_pack(first, lambda: None))
    store._catalog.database.remake()
    assert store.pack_checks.due(1e9) == [first.stem]
    assert store.pack_checks.note(first.stem, read_pack(first, lambda: None)) == 1


def test_a_chunk_that_the_disk_cannot_read_is_damaged(store, monkeypatch):
    path = pack_paths(store)[0]
    chosen = packs.read_index(path)[1]
    read_span = packs.read_span

    def fail(path, offset, into):
        if offset <= chosen.offset < offset + len(into):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_span(path, offset, into)

    monkeypatch.setattr(packs, "read_span", fail)
    found = read_pack(path, lambda: None)
    assert {one.digest for one in packs.read_index(path)} - found.intact == {chosen.digest}


def test_a_pack_whose_index_the_disk_cannot_read_is_read_by_its_records(store, monkeypatch):
    path = pack_paths(store)[0]
    every = {one.digest for one in packs.read_index(path)}

    def fail(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(packs, "read_index", fail)
    assert read_pack(path, lambda: None).intact == every


def test_what_changes_while_it_is_read_is_not_noted(store):
    path = pack_paths(store)[0]
    assert read_pack(path, path.touch) is None
    assert read_pack(path, lambda: path.unlink(missing_ok=True)) is None


def test_a_long_pack_is_read_in_pieces(store, monkeypatch):
    monkeypatch.setattr(pack_reading, "_PIECE_BYTES", 1 << 20)
    pieces = []
    path = pack_paths(store)[0]
    found = read_pack(path, lambda: pieces.append(1))
    assert len(pieces) > LENGTH >> 21
    assert found.intact == {one.digest for one in packs.read_index(path)}


@pytest.mark.parametrize(
    ("changes", "trust"),
    [
        ({}, Trust.SAME),
        ({"changed": 9}, Trust.UNREAD),
        ({"device": 9}, Trust.UNREAD),
        ({"device": 9, "boot": "b"}, Trust.SAME),
        ({"inode": 9}, Trust.UNREAD),
        ({"modified": 9}, Trust.CHANGED),
        ({"length": 9}, Trust.CHANGED),
        ({"inode": 9, "modified": 9, "boot": "b"}, Trust.CHANGED),
    ],
)
def test_a_file_is_judged_by_its_identity(changes, trust):
    before = Identity(1, 2, 3, 4, 5, "a")
    now = msgspec.structs.replace(before, **changes)
    assert now.trust(before) is trust
    assert now.trust(None) is Trust.UNREAD


def test_another_boot_changes_nothing(store, monkeypatch):
    monkeypatch.setattr(pack_identity, "boot_id", lambda: "another")
    with reopened(store) as again:
        assert save(again, "s3", SECOND) == (0, [])
        assert again.pack_checks.due(1e9) == []
