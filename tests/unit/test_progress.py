"""The one progress stream: stages, rates and canceling."""

from __future__ import annotations

from contextlib import suppress

import pytest

from jupyter_gpuckpt.errors import OperationCancelled
from jupyter_gpuckpt.wire.progress import Progress, ProgressRecord


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_stages_are_timed_and_told() -> None:
    clock, told = Clock(), list[ProgressRecord]()
    progress = Progress(told.append, clock=clock)
    with progress.stage("freeze"):
        clock.now += 0.5
    with progress.stage("store", 100):
        clock.now += 1
        progress.advance(40)
    assert progress.seconds_by_stage == {"freeze": 0.5, "store": 1.0}
    assert [(r.stage, r.done_bytes, r.total_bytes) for r in told] == [
        ("freeze", 0, None),
        ("store", 0, 100),
        ("store", 40, 100),
    ]


def test_bytes_are_told_at_most_every_interval() -> None:
    clock, told = Clock(), list[ProgressRecord]()
    progress = Progress(told.append, interval=0.2, clock=clock)
    with progress.stage("store", 1000):
        for _ in range(100):
            clock.now += 0.01
            progress.advance(10)
    assert 4 <= len(told) <= 7


def test_a_failed_stage_is_timed_too() -> None:
    clock = Clock()
    progress = Progress(clock=clock)
    with suppress(ValueError), progress.stage("freeze"):
        clock.now += 2
        raise ValueError
    assert progress.seconds_by_stage == {"freeze": 2.0}


def test_cancelling_stops_at_the_next_look() -> None:
    progress = Progress()
    assert progress.cancel()
    with pytest.raises(OperationCancelled), progress.stage("store"):
        raise AssertionError("a canceled operation must not begin a stage")
    with pytest.raises(OperationCancelled):
        progress.advance(1)


def test_an_undo_runs_although_the_operation_was_cancelled() -> None:
    progress = Progress()
    progress.cancel()
    ran = []
    with progress.stage("gpu restore", undo=True):
        ran.append(True)
    assert ran


def test_past_the_point_of_no_return_nothing_is_cancelled() -> None:
    progress = Progress()
    progress.point_of_no_return()
    assert not progress.cancel()
    with progress.stage("commit"):
        progress.advance(1)


def test_the_point_of_no_return_is_not_passed_when_cancelled_before() -> None:
    progress = Progress()
    progress.cancel()
    with pytest.raises(OperationCancelled):
        progress.point_of_no_return()
    assert progress.cancel()
