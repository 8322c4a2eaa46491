"""The order of snapshots, and deadlines: neither follows a time of day that somebody sets."""

import itertools
import time
from types import SimpleNamespace

import msgspec
import pytest

from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire import deadlines
from jupyter_gpuckpt.wire.deadlines import Deadline, after
from jupyter_gpuckpt.wire.manifest_records import SnapshotInfo
from jupyter_gpuckpt.wire.snapshot_order import MAX_NUMBER, newest_first, next_number
from tests.conftest import wait_for
from tests.manifests import manifest

HOUR = 3600.0


def snapshot(name, number, created, kernel="k"):
    return SnapshotInfo(name, kernel, created, "save", number=number)


def names(snapshots):
    return [one.snapshot_id for one in newest_first(snapshots)]


def test_within_a_kernel_numbers_decide_and_between_kernels_times():
    made = [
        snapshot("first", 1, 100.0),
        snapshot("second", 2, 40.0),
        snapshot("third", 3, 60.0),
        snapshot("fourth", 4, 120.0),
        snapshot("earlier", 7, 50.0, "other"),
        snapshot("between", 8, 110.0, "other"),
        snapshot("latest", 1, 130.0, "another"),
    ]
    wanted = ["latest", "fourth", "between", "third", "second", "first", "earlier"]
    for each in itertools.permutations(made):
        assert names(each) == wanted


def test_without_numbers_times_decide_and_then_names():
    assert names([snapshot("a", 0, 1.0), snapshot("b", 0, 1.0), snapshot("c", 0, 2.0)]) == [
        "c",
        "b",
        "a",
    ]


def test_a_number_follows_all_that_are_known():
    assert [next_number(), next_number(0, 0), next_number(3, 9, 4)] == [1, 1, 10]
    assert next_number(MAX_NUMBER) == MAX_NUMBER


@pytest.fixture
def wall(monkeypatch):
    """Return the time of day, which a test sets."""
    clock = SimpleNamespace(at=1e9)
    monkeypatch.setattr(time, "time", lambda: clock.at)
    return clock


@pytest.mark.parametrize("step", [-HOUR, HOUR, 1e8])
def test_a_deadline_does_not_move_with_the_clock(wall, step):
    deadline = after(60.0)
    assert deadline.at == wall.at + 60
    wall.at += step
    assert 55 < deadline.left <= 60
    assert not after(0.0).left


@pytest.mark.parametrize(("later", "left"), [(0, 60), (20, 40), (70, 0), (-1e8, 60), (1e8, 0)])
def test_a_deadline_of_another_boot_ends_by_the_clock_but_never_later_than_its_time(
    wall, monkeypatch, later, left
):
    deadline = after(60.0)
    monkeypatch.setattr(deadlines, "boot_id", lambda: "next boot")
    wall.at += later
    assert deadline.left == left


def test_no_deadline_is_false_and_comes_back_from_the_disk():
    assert not Deadline()
    deadline = after(5.0)
    assert deadline
    assert msgspec.json.decode(msgspec.json.encode(deadline), type=Deadline) == deadline


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_deletion_can_be_undone_as_long_as_was_said(wall, tmp_path, step):
    with LocalStore(tmp_path / "store") as store:
        store.publish(manifest("s1"))
        store.mark_deleted("s1", 600)
    wall.at += step
    with LocalStore(tmp_path / "store") as store:
        assert store.purge() == []
        assert store.undelete("s1").snapshot_id == "s1"
        store.mark_deleted("s1", 0.001)
        wall.at -= 2 * HOUR
        wait_for(lambda: store.purge() == ["s1"])
