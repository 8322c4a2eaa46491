"""Retention: what goes, what stays, and why."""

import itertools
import random

import msgspec
import pytest

from jupyter_gpuckpt.store import retention
from jupyter_gpuckpt.store.retention import would_free
from jupyter_gpuckpt.wire.manifest_records import Cause, Sizes, SnapshotInfo
from jupyter_gpuckpt.wire.snapshot_records import RetentionPolicy

DAY = 86400.0


def snapshot(name, created=None, *, kernel="k", cause=Cause.AUTOSAVE, size=10, pinned=False):
    """Named after its age: a1 is a day older than a0 unless `created` says otherwise."""
    created = 100 * DAY - int(name[1:]) * DAY if created is None else created
    sizes = Sizes(stored_bytes=size)
    return SnapshotInfo(name, kernel, created, "save", sizes=sizes, cause=cause, pinned=pinned)


class Unshared:
    """Scales of snapshots that share nothing."""

    def weight(self, info):
        return info.sizes.stored_bytes

    def add(self, info):
        """Nothing is shared."""


def judge(snapshots, policy, needed=(), living=(), scales=None):
    return retention.judge(
        snapshots, policy, needed=needed, living=living, scales=scales or Unshared()
    )


def series(count, letter="a", **fields):
    return [snapshot(f"{letter}{age}", **fields) for age in range(count)]


def removed(snapshots, needed=(), living=(), scales=None, **policy):
    verdicts = judge(
        snapshots, RetentionPolicy(**policy), needed=needed, living=living, scales=scales
    )
    assert sorted(v.snapshot.snapshot_id for v in verdicts) == sorted(
        info.snapshot_id for info in snapshots
    )
    assert all(verdict.reason for verdict in verdicts)
    return [v.snapshot.snapshot_id for v in verdicts if v.removed]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, []),
        ({"keep_last": 2}, ["a2", "a3", "a4"]),
        ({"keep_last": 9}, []),
        ({"keep_within_seconds": 2 * DAY}, ["a3", "a4"]),
        ({"keep_within_seconds": 1}, ["a1", "a2", "a3", "a4"]),
        # Any rule that holds keeps.
        ({"keep_last": 1, "keep_within_seconds": 3 * DAY}, ["a4"]),
        ({"keep_last": 4, "keep_within_seconds": DAY}, ["a4"]),
        ({"max_bytes": 30}, ["a3", "a4"]),
        ({"max_bytes": 29}, ["a2", "a3", "a4"]),
        ({"max_bytes": 5}, ["a0", "a1", "a2", "a3", "a4"]),
        ({"max_bytes": 1000}, []),
        ({"keep_last": 4, "max_bytes": 20}, ["a2", "a3", "a4"]),
        ({"keep_last": 1, "max_bytes": 20}, ["a1", "a2", "a3", "a4"]),
    ],
)
def test_rules(policy, expected):
    assert removed(series(5), **policy) == expected


def suspends(count, **fields):
    found = series(count, cause=Cause.MANUAL)
    return [msgspec.structs.replace(info, reason="suspend", **fields) for info in found]


def test_old_suspends_by_hand_go_except_those_that_somebody_wants():
    assert removed(suspends(4), keep_suspends=2) == ["a2", "a3"]
    # Without that rule they stay, and other rules are not about them.
    assert removed(suspends(4), keep_last=1, max_bytes=1) == []
    assert removed(suspends(4), keep_suspends=2, keep_last=3, max_bytes=1) == ["a2", "a3"]
    for kept in ({"pinned": True}, {"title": "a"}, {"note": "a"}):
        assert removed(suspends(4, **kept), keep_suspends=2) == []
    # One that a suspended kernel needs stays, and counts.
    assert removed(suspends(4), keep_suspends=2, needed=["a3"]) == ["a2"]
    # The newest of a kernel stays, and saves by hand are not limited.
    saves = series(3, "s", cause=Cause.MANUAL)
    assert removed([*suspends(3), *saves], keep_suspends=1) == ["a1", "a2"]
    other = [msgspec.structs.replace(info, kernel_id="other") for info in suspends(1)]
    renamed = [msgspec.structs.replace(info, snapshot_id="o") for info in other]
    assert removed([*suspends(1), *renamed], keep_suspends=1) == []


def test_every_kernel_is_looked_at_by_itself_but_for_the_bytes():
    both = series(3) + series(3, "b", kernel="other")
    assert removed(both, keep_last=1) == ["b1", "a1", "b2", "a2"]
    assert removed(both, max_bytes=30) == ["a1", "b2", "a2"]


def test_within_counts_from_the_kernels_latest_snapshot_not_from_today():
    old = [snapshot("a0", 10.0), snapshot("a1", 5.0)]
    assert removed([*old, *series(2, "b", kernel="other")], keep_within_seconds=6) == ["b1"]


@pytest.mark.parametrize("cause", Cause)
def test_what_was_taken_by_hand_stays_unless_it_is_meant_too(cause):
    found = series(3, cause=cause)
    expected = [] if cause is Cause.MANUAL else ["a1", "a2"]
    assert removed(found, keep_last=1) == expected
    assert removed(found, max_bytes=10) == expected
    assert removed(found, keep_last=1, manual_too=True) == ["a1", "a2"]


def test_what_was_taken_by_hand_does_not_use_up_the_rules():
    found = [*series(2, "m", cause=Cause.MANUAL), snapshot("a2"), snapshot("a3"), snapshot("a4")]
    assert removed(found, keep_last=2) == ["a4"]


def test_a_pinned_one_never_goes():
    found = [*series(3), snapshot("p9", pinned=True)]
    policy = {"keep_last": 1, "max_bytes": 1, "manual_too": True}
    assert removed(found, **policy) == ["a0", "a1", "a2"]
    # It counts all the same.
    assert removed(found, max_bytes=30) == ["a2"]


def test_what_a_kernel_needs_never_goes():
    found = series(4)
    assert removed(found, needed={"a2"}, keep_last=1) == ["a1", "a3"]
    # It is one of those that are counted.
    assert removed(found, needed={"a0", "a1"}, living={"k"}, keep_last=2) == ["a2", "a3"]
    assert removed(found, needed={"a3"}, living={"k"}, max_bytes=1) == ["a1", "a2"]
    assert removed(found, living={"k"}, max_bytes=1) == ["a1", "a2", "a3"]
    assert removed(found, living={"other"}, max_bytes=1) == ["a0", "a1", "a2", "a3"]


def test_the_latest_of_a_living_kernel_is_the_latest_whoever_took_it():
    found = [snapshot("m0", cause=Cause.MANUAL), *[snapshot(f"a{n}") for n in (1, 2)]]
    assert removed(found, living={"k"}, max_bytes=1) == ["a1", "a2"]


def test_one_moment_has_an_order_too():
    same = [snapshot(f"a{n}", 5.0) for n in range(4)]
    for order in itertools.permutations(same):
        assert removed(order, keep_last=2) == ["a1", "a0"]


class Shared:
    """Scales for snapshots that consist of chunks of a byte each."""

    def __init__(self, chunks):
        self.chunks, self.on = chunks, set()

    def weight(self, info):
        return len(self.chunks[info.snapshot_id] - self.on)

    def add(self, info):
        self.on |= self.chunks[info.snapshot_id]


def test_what_is_shared_counts_once_and_what_frees_nothing_stays():
    chunks = {"a0": set("abcd"), "a1": set("abce"), "a2": set("abc"), "a3": set("xy")}
    assert removed(series(4), scales=Shared(chunks), max_bytes=5) == ["a3"]
    assert removed(series(4), scales=Shared(chunks), max_bytes=4) == ["a1", "a3"]
    # What shares only with one that goes does not stay for that.
    chunks = {"a0": set("a"), "a1": set("bcd"), "a2": set("bcd")}
    assert removed(series(3), scales=Shared(chunks), max_bytes=2) == ["a1", "a2"]


def test_a_removal_frees_what_no_snapshot_that_stays_needs():
    chunks = {"a0": set("abcd"), "a1": set("abxy"), "a2": set("axyz"), "a3": set("a")}
    verdicts = judge(series(4), RetentionPolicy(keep_last=1))
    assert would_free(verdicts, Shared(chunks)) == len("xyz")
    assert would_free([], Shared({})) == 0


def test_properties_hold_for_whatever_there_is():
    dice = random.Random(7)
    for _ in range(300):
        found = [
            snapshot(
                f"s{number}",
                float(dice.randrange(20)),
                kernel=dice.choice("klm"),
                cause=dice.choice(list(Cause)),
                size=dice.randrange(5),
                pinned=dice.random() < 0.1,
            )
            for number in range(dice.randrange(15))
        ]
        needed = {info.snapshot_id for info in found if dice.random() < 0.1}
        living = {kernel for kernel in "klm" if dice.random() < 0.5}
        rules = {
            "keep_within_seconds": float(dice.choice([0, 3])),
            "manual_too": dice.random() < 0.5,
        }
        budget = dice.choice([0, 1, 10])
        before = None
        for keep_last in range(1, 5):
            gone = set(removed(found, needed, living, keep_last=keep_last, **rules))
            limited = {"keep_last": keep_last, "max_bytes": budget, **rules}
            verdicts = judge(found, RetentionPolicy(**limited), needed=needed, living=living)
            over = {v.snapshot.snapshot_id for v in verdicts if v.removed}
            assert gone <= over
            assert not over & needed
            assert not {i.snapshot_id for i in found if i.pinned} & over
            for kernel in living:
                of_kernel = [v for v in verdicts if v.snapshot.kernel_id == kernel]
                assert not of_kernel or not of_kernel[0].removed
            kept = sum(v.snapshot.sizes.stored_bytes for v in verdicts if not v.removed)
            free = [v for v in verdicts if v.reason.startswith(("among", "recent", "within"))]
            assert (
                not budget or kept <= budget or not any(v.snapshot.sizes.stored_bytes for v in free)
            )
            # More rules or higher numbers never remove more.
            assert before is None or gone <= before
            before = gone
        assert not removed(found, needed, living)


def test_a_policy_without_a_rule_says_so():
    assert RetentionPolicy(manual_too=True).removes_nothing
    assert not RetentionPolicy(keep_last=1).removes_nothing
    assert [v.reason for v in judge(series(1), RetentionPolicy())] == [retention.NO_RULE]


def test_the_newest_is_kept_although_its_clock_was_behind():
    """The last of these was made after the clock had been set back by a month."""
    taken = series(3)  # the newest comes first
    numbered = [
        msgspec.structs.replace(info, number=number)
        for number, info in enumerate(reversed(taken), 1)
    ]
    last = msgspec.structs.replace(snapshot("a33"), number=4)
    assert removed([last, *numbered], keep_last=1) == ["a0", "a1", "a2"]
    assert removed([last, *numbered], keep_last=1, living={"k"}, max_bytes=1) == ["a0", "a1", "a2"]
    verdicts = judge([*numbered, last], RetentionPolicy(keep_last=1, max_bytes=1), living={"k"})
    assert (verdicts[0].snapshot.snapshot_id, verdicts[0].removed) == ("a33", False)


def by_tools(count, letter="a", **fields):
    return series(count, letter, cause=Cause.TOOL, **fields)


def named(infos, name, kernel="k"):
    return [msgspec.structs.replace(info, name=name, kernel_id=kernel) for info in infos]


def test_of_what_tools_saved_of_a_kernel_and_its_branches_the_last_stay():
    assert removed(by_tools(4), keep_tool_saves=2) == ["a2", "a3"]
    # Other rules are not about them, and those that a user pins stay.
    saves = series(3, "s")
    found = removed([*by_tools(3), *saves], keep_tool_saves=2, keep_last=2)
    assert sorted(found) == ["a2", "s2"]
    assert removed(by_tools(4, pinned=True), keep_tool_saves=2) == []
    assert removed(by_tools(4), keep_tool_saves=2, needed=["a3"]) == ["a2"]
    # Those of ended branches count with the kernel from which they come; other kernels have their own.
    of_kernel = named(by_tools(2), "n.ipynb", "12345678-9")
    of_branches = [
        *named([snapshot("b2", cause=Cause.TOOL)], "n.ipynb-tool-12345678-aaaa", "aaaa"),
        *named([snapshot("b3", cause=Cause.TOOL)], "n.ipynb-tool-12345678-bbbb", "bbbb"),
    ]
    others = named(by_tools(2, "c"), "n.ipynb", "87654321-0")
    found = removed([*of_kernel, *of_branches, *others], keep_tool_saves=2)
    assert sorted(found) == ["b2", "b3"]
    # Without that rule they are as other automatic ones.
    assert removed(by_tools(4), keep_last=3) == ["a3"]


def periodic_saves(seconds, every, **fields):
    """Return the periodic saves of a kernel in so many seconds, newest first."""
    now = 100 * DAY
    return [
        snapshot(f"p{age}", now - age, cause=Cause.AUTOSAVE, **fields)
        for age in range(0, seconds, every)
    ]


def test_periodic_saves_are_thinned_the_more_the_older_they_are():
    saves = periodic_saves(3600, 10)
    kept = {one.snapshot_id for one in saves} - {*removed(saves, thins=True)}
    ages = sorted(int(name[1:]) for name in kept)
    assert ages[:7] == [0, 10, 20, 30, 40, 50, 60]
    assert all(later - age >= 300 for age, later in itertools.pairwise(ages[8:]))
    assert len(ages) <= 7 + 3600 // 300 + 1
    # Nothing goes without being asked for.
    assert removed(saves) == []


def test_a_day_of_saves_leaves_few_whenever_they_are_thinned():
    """Thinning after each save leaves what thinning at the end would, and never more than the most."""
    kept = []
    for age in range(2 * int(DAY), -1, -30):
        kept.insert(0, snapshot(f"p{age}", 100 * DAY - age, cause=Cause.AUTOSAVE))
        gone = {*removed(kept, thins=True)}
        kept = [one for one in kept if one.snapshot_id not in gone]
        assert len(kept) <= 50
    ages = [int(one.snapshot_id[1:]) for one in kept]
    assert ages[0] == 0
    for limit, period in ((3600, 300), (DAY, 3600)):
        young = [age for age in ages if age <= limit]
        assert max(later - age for age, later in itertools.pairwise(young)) <= 2 * period


def test_periodic_saves_but_the_newest_of_a_kernel_have_a_limit_of_bytes_together():
    other = [msgspec.structs.replace(one, kernel_id="other") for one in periodic_saves(900, 300)]
    other = [msgspec.structs.replace(one, snapshot_id=f"o{one.snapshot_id}") for one in other]
    named = msgspec.structs.replace(snapshot("named", 1.0, cause=Cause.AUTOSAVE), title="mine")

    def gone(max_bytes):
        verdicts = retention.judge(
            [*periodic_saves(900, 300), *other, named],
            RetentionPolicy(thins=True, keep_last=1),
            needed=["p600"],
            living=[],
            scales=Unshared(),
            history=retention.History(max_bytes, Unshared()),
        )
        return {one.snapshot.snapshot_id for one in verdicts if one.removed}

    assert gone(0) == {"p300", "op300", "op600"}
    # Each has ten bytes.
    assert len(gone(19) & {"p300", "op300"}) == 1
    assert gone(20) == {"op600"}
    assert gone(30) == set()


def test_the_other_rules_do_not_apply_to_periodic_saves_except_the_limit_of_all():
    saves = [*periodic_saves(900, 300), *series(3, cause=Cause.IDLE)]
    assert removed(saves, thins=True, keep_last=1) == ["a1", "a2"]
    assert len(removed(saves, thins=True, max_bytes=20)) == 4


def test_only_periodic_saves_without_a_name_are_thinned():
    saves = [
        msgspec.structs.replace(one, **fields)
        for one, fields in zip(
            periodic_saves(4000, 1000),
            ({}, {"title": "mine"}, {"note": "look"}, {"cause": Cause.IDLE}),
            strict=True,
        )
    ]
    same_time = [msgspec.structs.replace(one, created=100 * DAY - 3700) for one in saves[1:]]
    assert removed([saves[0], *same_time], thins=True) == []
    # Nor is one that a kernel needs.
    saves = periodic_saves(3600, 10)
    needed = saves[-2].snapshot_id
    assert needed not in removed(saves, thins=True, needed=[needed])
