"""When kernels are saved for a notice, and when they are suspended."""

from __future__ import annotations

import msgspec
import pytest

from jupyter_gpuckpt.daemon.reclaim import reaction as timing_module
from jupyter_gpuckpt.daemon.reclaim.reaction import Timing
from jupyter_gpuckpt.wire import reclaim_records
from jupyter_gpuckpt.wire.reclaim_records import Notice, NoticeKind


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that stands, at 0, until the test sets it."""
    times = [0.0]
    for module in (reclaim_records, timing_module):
        monkeypatch.setattr(module, "now", lambda: times[0])
    return times


def done(timing, notice, need_seconds=1.0):
    changed = timing.applied(notice, need_seconds)
    assert not (changed.is_saving and changed.is_due)
    return "saving" if changed.is_saving else "due" if changed.is_due else ""


def test_kernels_are_saved_first_and_suspended_when_twice_that_time_is_left(clock):
    timing, notice = Timing(), Notice("n", NoticeKind.RECLAIM, 1000.0)
    assert done(timing, notice) == ""
    clock[0] = 700.0
    assert done(timing, notice) == "saving"
    timing.begin()
    clock[0] = 740.0
    timing.complete()
    clock[0] = 919.0
    assert done(timing, notice) == "saving"
    clock[0] = 920.0
    assert done(timing, notice) == "due"


def test_a_third_of_the_time_is_for_saves_that_do_not_end_in_time(clock):
    timing, notice = Timing(), Notice("n", NoticeKind.RECLAIM, 120.0)
    assert done(timing, notice) == "saving"
    timing.begin()
    clock[0] = 39.0
    assert done(timing, notice) == "saving"
    clock[0] = 40.0
    assert done(timing, notice) == "due"


def test_quick_saves_leave_half_a_minute_and_a_due_notice_stays_due(clock):
    timing, notice = Timing(), Notice("n", NoticeKind.RECLAIM, 120.0)
    timing.begin()
    clock[0] = 2.0
    timing.complete()
    clock[0] = 89.0
    assert done(timing, notice) == "saving"
    # A kernel that needs longer was started meanwhile.
    assert done(timing, notice, need_seconds=31.0) == "due"
    clock[0] = 90.0
    due = timing.applied(notice, 1.0)
    assert due.is_due
    clock[0] = 0.0
    assert timing.applied(due, 1.0).is_due
    later = Notice("n", NoticeKind.RECLAIM, 5000.0, is_due=True)
    assert timing.put_off(later, 1.0) == Notice("n", NoticeKind.RECLAIM, 5000.0)


@pytest.mark.parametrize(
    ("notice", "need_seconds"),
    [
        (Notice("short", NoticeKind.RECLAIM, 59.0), 1.0),
        (Notice("large kernels", NoticeKind.RECLAIM, 119.0), 40.0),
        (Notice("waited for", NoticeKind.SHUTDOWN, 299.0, ends_early=True), 1.0),
    ],
)
def test_without_time_or_a_reason_kernels_are_suspended_at_once(clock, notice, need_seconds):
    assert done(Timing(), notice, need_seconds) == "due"


def test_large_kernels_are_saved_earlier(clock):
    notice = Notice("n", NoticeKind.MAINTENANCE, 1000.0)
    assert done(Timing(), notice, need_seconds=249.0) == ""
    # Some time passes between two looks.
    assert done(Timing(), notice, need_seconds=251.0) == "saving"
    assert done(Timing(), notice, need_seconds=333.4) == "due"


@pytest.mark.parametrize("ends_early", [False, True])
def test_a_notice_stays_due_when_less_remains_to_be_suspended(clock, ends_early):
    timing = Timing()
    notice = Notice("n", NoticeKind.RECLAIM, 700.0, ends_early=ends_early)
    due = timing.applied(notice, 800.0)
    assert due.is_due
    clock[0] = 100.0
    assert timing.applied(due, 0.0) == due
    # Put off by a little, the same kernels would have to be suspended at once again.
    assert timing.put_off(msgspec.structs.replace(due, deadline=720.0), 0.0).is_due


def test_kernels_are_saved_on_when_some_have_ended(clock):
    timing, notice = Timing(), Notice("n", NoticeKind.RECLAIM, 1000.0)
    clock[0] = 103.0
    saving = timing.applied(notice, 299.0)
    assert saving.is_saving
    timing.begin()
    assert timing.applied(saving, 0.0) == saving
