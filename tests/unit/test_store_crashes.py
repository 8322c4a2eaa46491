"""The store's process is killed at every step of a delete, a save's end and an opening: no snapshot that is left loses a chunk."""

import logging
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import traceback
from contextlib import closing
from pathlib import Path

import pytest

from jupyter_gpuckpt.store import packs
from jupyter_gpuckpt.store.codecs import RAW, digest_of
from jupyter_gpuckpt.store.index import database
from jupyter_gpuckpt.store.index.database import Database
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.writer import Record
from tests.manifests import manifest

pytestmark = pytest.mark.thorough

SIZE = 2000
#: A run of all tests tries one step in three; the order of the steps is the same in every run.
EVERY_STEP = [3, pytest.param(1, marks=pytest.mark.slow)]
SOME = random.Random(1)
LASTING, FIRST, SECOND, LATE = (
    [SOME.randbytes(SIZE) for _ in range(count)] for count in (3, 6, 6, 3)
)


def put(store, chunks):
    with store.writer() as writer:
        for chunk in chunks:
            if not writer.known([digest_of(chunk)]):
                writer.append_all([Record(digest_of(chunk), chunk, len(chunk), RAW)])


def save(store, name, chunks):
    put(store, chunks)
    store.publish(manifest(name, *chunks))


def delete(store):
    """Delete snapshots so that one pack is removed and two are rewritten as one."""
    store.delete("s1", "s2", "s3")


def publish(store):
    save(store, "s5", LASTING + LATE)


def finish_opening(store):
    """Finish the background work of the store's opening."""
    store.sweep()


@pytest.fixture(scope="module")
def memory():
    """Yield a folder in memory, because syncing to a disk at every step would be slow."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def template(memory):
    """Make a store in which `delete` and `publish` have something to do, and close it."""
    root = memory / "template"
    with LocalStore(root) as store:
        save(store, "s1", LASTING[:2] + FIRST)
        save(store, "s2", LASTING[2:] + SECOND)
        save(store, "s3", LATE[:1])
        save(store, "s4", LASTING)
        assert len(list((root / "packs").iterdir())) == 3
    return root


def without_records(root):
    """Take away from the catalog what is entered again when a store is open."""
    with closing(sqlite3.connect(root / "catalog.sqlite")) as connection:
        for table in ("contents", "snapshots", "moving"):
            connection.execute(f"DROP TABLE {table}")
        connection.commit()


def with_a_pack_gone(root):
    """Take away the pack that nothing needs but s3."""
    (root / "packs" / f"{pack_of(root, LATE[0])}.pack").unlink()
    (root / "manifests" / "s3.manifest").unlink()


def pack_of(root, chunk):
    with closing(sqlite3.connect(root / "catalog.sqlite")) as connection:
        query = "SELECT name FROM packs JOIN chunks ON pack = id WHERE digest = ?"
        return connection.execute(query, (digest_of(chunk),)).fetchone()[0]


def killed_at(step, root, work):
    """Whether the process that did `work` in the store had so many steps, and was killed before this one."""
    child = os.fork()
    if not child:
        try:
            count_steps(step)
            with LocalStore(root) as store:
                work(store)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in {0, -signal.SIGKILL}
    return status != 0


def count_steps(last):
    """End this process before the step `last`: before anything that others could find changed on the disk."""
    done = 0
    database._CHANGES = database._MIN_CHANGES = 2

    def counted(work):
        def step(*arguments, **named):
            nonlocal done
            done += 1
            if done == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return work(*arguments, **named)

        return step

    for owner, name in (
        (Database, "_timed"),
        (Path, "unlink"),
        (Path, "rename"),
        (packs, "pwrite_all"),
    ):
        setattr(owner, name, counted(getattr(owner, name)))


def check(root, caplog, *, made_again=False):
    """Whatever was left on the disk: every snapshot is whole, and garbage goes."""
    caplog.clear()
    with caplog.at_level(logging.INFO), LocalStore(root) as store:
        left = [info.snapshot_id for info in store.snapshots()]
        assert "s4" in left
        for name in left:
            store.verify(name)
        store.sweep()
        for name in left:
            store.verify(name)
        store.delete(*(name for name in left if name != "s4"))
        store.verify("s4")
        assert on_disk(root) < 2 * len(LASTING) * SIZE, "garbage stays"
        assert store.space().stored_bytes == len(LASTING) * SIZE
    assert ("made again" in caplog.text) == made_again, caplog.text
    with LocalStore(root) as store:
        assert [info.snapshot_id for info in store.snapshots()] == ["s4"]
        store.verify("s4")


def on_disk(root):
    return sum(path.stat().st_size for path in (root / "packs").iterdir())


@pytest.mark.parametrize("stride", EVERY_STEP)
@pytest.mark.parametrize(
    ("prepare", "work"),
    [
        (None, delete),
        (None, publish),
        (without_records, finish_opening),
        (with_a_pack_gone, finish_opening),
    ],
)
def test_killed_at_any_step(template, memory, caplog, prepare, work, stride):
    steps = 0
    while True:
        steps += stride
        root = memory / "store"
        shutil.copytree(template, root)
        if prepare:
            prepare(root)
        if not killed_at(steps, root, work):
            break
        check(root, caplog)
        shutil.rmtree(root)
    assert steps > 10
    check(root, caplog)
    shutil.rmtree(root)


@pytest.mark.parametrize("stride", EVERY_STEP)
def test_a_catalog_of_any_earlier_moment_of_a_delete(template, memory, caplog, stride):
    """As a power cut leaves it, which takes back the last changes of the catalog, not those of files."""
    after = memory / "after"
    shutil.copytree(template, after)
    with LocalStore(after) as store:
        delete(store)
    steps = checked = 0
    former: list[bytes] = []
    while True:
        steps += stride
        before, root = memory / "before", memory / "store"
        shutil.copytree(template, before)
        if not killed_at(steps, before, delete):
            break
        catalog = [path.read_bytes() for path in sorted(before.glob("catalog.sqlite*"))]
        if catalog != former:  # most steps change other files only
            former = catalog
            shutil.copytree(after, root)
            for path in before.glob("catalog.sqlite*"):
                shutil.copy(path, root)
            check(root, caplog)
            checked += 1
            shutil.rmtree(root)
        shutil.rmtree(before)
    shutil.rmtree(before)
    shutil.rmtree(after)
    assert steps > checked * stride > 5
