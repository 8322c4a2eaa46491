"""Removing what nothing needs while somebody saves, imports or resumes, in orders that are drawn: nothing that is needed goes.

Of the threads in a race one goes on at a time, from one look at the store's database or lock to the next.
"""

import io
import threading
from contextlib import contextmanager
from itertools import chain, count, repeat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyter_gpuckpt.snapshots.export import export
from jupyter_gpuckpt.snapshots.imports import import_archive
from jupyter_gpuckpt.store.codecs import RAW, digest_of
from jupyter_gpuckpt.store.index.database import Database
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.writer import Record
from tests.manifests import manifest
from tests.unit.test_store_local import ONE, THREE, TWO, pack_files, put

pytestmark = pytest.mark.thorough


class Steps:
    """Threads of which one goes on at a time; `order` says which, by its place among those that could."""

    def __init__(self, order):
        self._order = iter(order)
        self._changed = threading.Condition()
        self._waiting, self._alive = set(), set()
        self._chosen = None
        self._here = threading.local()
        self.errors = []

    def point(self):
        """Wait until this thread is chosen; a thread that is not in the race, or has a lock, goes on."""
        me = getattr(self._here, "name", None)
        if me is None or self._here.locks:
            return
        with self._changed:
            self._waiting.add(me)
            self._chosen = None
            self._choose()
            self._changed.wait_for(lambda: self._chosen == me)
            self._waiting.remove(me)

    def _choose(self):
        if self._chosen is None and self._waiting and self._waiting == self._alive:
            ready = sorted(self._waiting)
            self._chosen = ready[next(self._order, 0) % len(ready)]
            self._changed.notify_all()

    @contextmanager
    def holding(self, lock):
        self.point()
        with lock:
            self._here.locks = getattr(self._here, "locks", 0) + 1
            try:
                yield
            finally:
                self._here.locks -= 1

    def race(self, *works):
        def run(name, work):
            self._here.name, self._here.locks = name, 0
            try:
                self.point()
                work()
            except BaseException as error:
                self.errors.append(error)
            finally:
                with self._changed:
                    self._alive.remove(name)
                    self._chosen = None
                    self._choose()

        self._alive = set(range(len(works)))
        threads = [threading.Thread(target=run, args=each) for each in enumerate(works)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self.errors, self.errors


class SteppingLock:
    """A reentrant lock before which a thread of a race waits until it is chosen."""

    def __init__(self, lock, steps):
        self._lock, self._steps, self._held = lock, steps, []

    def __enter__(self):
        holding = self._steps.holding(self._lock)
        holding.__enter__()
        # Only the thread that has the lock gets here.
        self._held.append(holding)

    def __exit__(self, *exc):
        self._held.pop().__exit__(*exc)


def put_between(store, steps, monkeypatch):
    """Let the threads of a race stop before every turn of the database and before the store's locks."""
    timed = Database._timed

    def step(self, work):
        steps.point()
        return timed(self, work)

    monkeypatch.setattr(Database, "_timed", step)
    lock, changing = SteppingLock(store._lock, steps), SteppingLock(store._changing, steps)
    store._lock, store._changing = lock, changing
    for part in (store._staging, store._collector, store._repacking):
        part._lock = lock


def save(store, archive):
    """Save one chunk that is in the store and a new one."""
    with store.writer() as writer:
        if not writer.known([digest_of(ONE)]):
            writer.append_all([Record(digest_of(ONE), ONE, len(ONE), RAW)])
        writer.append_all([Record(digest_of(THREE), THREE, len(THREE), RAW)])
    store.publish(manifest("s3", ONE, THREE))


def bring_in(store, archive):
    """Import a snapshot whose chunk is in the store."""
    import_archive(store, io.BytesIO(archive).read)


def read(store, archive):
    """Read the snapshot that is being deleted, if the read began in time."""
    with store.holding([digest_of(ONE)]):
        if store.find([digest_of(ONE)]):
            assert store.load(digest_of(ONE)) == ONE


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    with LocalStore(tmp_path_factory.mktemp("other") / "store") as store:
        put(store, ONE)
        store.publish(manifest("s4", ONE))
        with export(store, "s4") as made:
            return b"".join(made.pieces())


def raced(root, archive, order, monkeypatch, *others):
    """Race a deletion of s1, which alone needs ONE, against others; then all that is listed must be whole."""
    with LocalStore(root) as store, monkeypatch.context() as patched:
        for name, chunk in (("s1", ONE), ("s2", TWO)):
            put(store, chunk)
            store.publish(manifest(name, chunk))
        steps = Steps(order)
        put_between(store, steps, patched)
        steps.race(lambda: store.delete("s1"), *(lambda o=o: o(store, archive) for o in others))
        check(store)
    with LocalStore(root) as again:
        check(again)
        again.delete(*(info.snapshot_id for info in again.snapshots()))
        again.sweep()
        assert not pack_files(again)


def check(store):
    store.sweep()
    for info in store.snapshots():
        store.verify(info.snapshot_id)


#: Which thread goes on, and for how many steps.
TURNS = st.tuples(st.integers(0, 2), st.integers(1, 40))
ORDERS = st.lists(TURNS, max_size=12).map(lambda turns: [who for who, n in turns for _ in range(n)])
MANY = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("other", [save, bring_in])
def test_what_comes_and_is_published_between_any_two_steps_keeps_what_it_needs(
    tmp_path, archive, monkeypatch, other
):
    """After each number of steps of the deletion the other goes on to its end."""
    for steps in count():
        order = iter([0] * steps)
        raced(tmp_path / f"{steps}", archive, chain(order, repeat(1)), monkeypatch, other)
        if next(order, None) is not None:  # the deletion had ended before
            break
    assert steps > 10


@pytest.mark.parametrize("other", [save, bring_in, read])
@MANY
@given(order=ORDERS)
def test_whatever_comes_while_packs_are_removed_keeps_what_it_needs(
    tmp_path_factory, archive, monkeypatch, other, order
):
    raced(tmp_path_factory.mktemp("race") / "store", archive, order, monkeypatch, other)


@MANY
@given(order=ORDERS)
def test_so_do_a_save_and_an_import_together(tmp_path_factory, archive, monkeypatch, order):
    raced(tmp_path_factory.mktemp("race") / "store", archive, order, monkeypatch, save, bring_in)
