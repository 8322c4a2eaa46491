"""Which kernel is saved first: the rule, and what it is worth against the best there is."""

import itertools
import random
from types import SimpleNamespace

import msgspec

from jupyter_gpuckpt.batches.save_rates import FIXED_SECONDS
from jupyter_gpuckpt.batches.triage import (
    BYTES_PER_SECOND,
    UPLOAD_BYTES_PER_SECOND,
    Candidate,
    candidate,
    measured_rate,
    measured_upload_rate,
    most_at_stake_first,
    order,
)
from jupyter_gpuckpt.wire.manifest_records import Sizes, SnapshotInfo
from jupyter_gpuckpt.wire.protocol import Kernel
from jupyter_gpuckpt.wire.snapshot_records import RemoteUploads, Traffic
from jupyter_gpuckpt.wire.states import KernelState

GB = 10**9
HOUR = 3600.0


def names(candidates, within, rate=GB):
    made = [
        Candidate(name, int(size * GB), hours * HOUR) for name, (size, hours) in candidates.items()
    ]
    return [one.kernel_id for one in order(made, within, rate)]


def test_who_is_worth_most_for_each_second_comes_first():
    kernels = {"large and old": (10, 5), "small and old": (1, 5), "small and new": (1, 1)}
    assert names(kernels, 60) == ["small and old", "small and new", "large and old"]
    assert names(kernels, None) == names(kernels, 60)


def test_a_long_computation_goes_before_a_kernel_just_begun():
    assert names({"begun": (0.1, 0.01), "training": (20, 72)}, 25) == ["training", "begun"]


def test_what_is_not_expected_to_fit_comes_last_smallest_first():
    kernels = {"huge": (60, 100), "larger": (40, 90), "fits": (10, 1)}
    assert names(kernels, 25) == ["fits", "larger", "huge"]


def test_one_that_does_not_fit_any_more_leaves_its_room_to_smaller_ones():
    # 20 s of 25 are taken by the first; the second would need 11.
    kernels = {"first": (20, 72), "second": (11, 20), "third": (3, 1)}
    assert names(kernels, 25) == ["first", "third", "second"]


def test_of_equals_the_smaller_comes_first_and_without_time_the_smallest():
    assert names({"b": (2, 0), "a": (1, 0)}, 60) == ["a", "b"]
    assert names({"b": (2, 9), "c": (3, 50), "a": (1, 0)}, 0) == ["a", "b", "c"]


def test_nobody_is_left_out_and_nobody_doubled():
    chance = random.Random(1)
    for _ in range(200):
        kernels = {
            str(n): (chance.uniform(0, 50), chance.uniform(0, 50))
            for n in range(chance.randint(0, 8))
        }
        assert sorted(names(kernels, chance.uniform(0, 60))) == sorted(kernels)


def test_what_is_saved_in_time_is_worth_nearly_what_could_be():
    """Against trying every order, one kernel after the other."""
    chance = random.Random(2)
    got = best = 0.0
    for _ in range(60):
        kernels = [
            Candidate(str(n), int(chance.uniform(0.1, 30) * GB), chance.uniform(0.1, 72) * HOUR)
            for n in range(5)
        ]
        got += worth(order(kernels, 25, GB))
        best += max(worth(one) for one in itertools.permutations(kernels))
    assert got > 0.9 * best


def worth(kernels):
    """Return the value of the kernels that are saved after 25 seconds."""
    left = saved = 0.0
    for one in kernels:
        left += FIXED_SECONDS + one.size_bytes / GB
        saved += one.at_stake_seconds if left <= 25 else 0
    return saved


def snapshot(size, seconds):
    return SnapshotInfo("s", "k", 0.0, "suspend", sizes=Sizes(raw_bytes=size), seconds=seconds)


def test_the_rate_is_that_of_earlier_snapshots_large_enough_to_tell():
    assert measured_rate([]) == BYTES_PER_SECOND
    assert measured_rate([snapshot(10**6, 1.0)]) == BYTES_PER_SECOND
    assert measured_rate([snapshot(GB, 0.0)]) == BYTES_PER_SECOND
    assert (
        measured_rate([snapshot(GB, 1.0), snapshot(2 * GB, 1.0), snapshot(9 * GB, 1.0)]) == 2 * GB
    )
    older = [snapshot(9 * GB, 1.0)] * 20
    assert measured_rate([snapshot(GB, 1.0)] * 10 + older) == GB


def kernel(kernel_id="k", latest="", size=10**9):
    # Without a process: as if it had just begun.
    return Kernel(kernel_id, KernelState.RUNNING, "server", snapshot_id=latest, memory_bytes=size)


def taken(snapshot_id, kernel_id, ago, **sizes):
    return SnapshotInfo(snapshot_id, kernel_id, 1e9 - ago, "save", sizes=Sizes(**sizes))


def test_at_stake_is_what_was_done_since_the_last_snapshot_that_survives():
    snapshots = [
        taken("new", "k", 100, stored_bytes=500, new_bytes=20),
        taken("old", "k", 900, stored_bytes=480, new_bytes=480),
        taken("of another", "other", 5),
    ]

    def stake(latest, is_in_remote=None, of=snapshots):
        found = candidate(kernel(latest=latest), of, 1e9, is_in_remote)
        return round(found.at_stake_seconds), found.upload_bytes

    # It is resumed from its latest snapshot now, so it has done nothing since.
    assert stake("new") == (0, 0)
    assert stake("new", lambda info: True) == (0, 20)
    assert stake("new", lambda info: info.snapshot_id == "old") == (900, 20)
    assert stake("new", lambda info: False) == (900, 500)
    assert stake("", lambda info: False, []) == (0, 500_000_000)
    assert stake("", None, []) == (0, 0)


def test_a_kernel_whose_snapshot_is_of_a_clock_that_was_ahead_is_not_worth_nothing(monkeypatch):
    monkeypatch.setattr(
        "psutil.Process", lambda pid: SimpleNamespace(create_time=lambda: 1e9 - 700)
    )
    living = msgspec.structs.replace(kernel(), pid=5)
    ahead = taken("s", "k", -3600, new_bytes=20)
    assert round(candidate(living, [ahead], 1e9).at_stake_seconds) == 700


def test_what_is_uploaded_quickly_goes_before_what_is_as_worth_and_takes_long():
    snapshots = [
        taken("a", "large upload", 100, stored_bytes=10**9, new_bytes=10**9),
        taken("b", "small upload", 100, stored_bytes=10**9, new_bytes=10**6),
    ]
    kernels = [kernel("large upload"), kernel("small upload", size=2 * 10**9)]

    def first(is_in_remote):
        found = most_at_stake_first(kernels, snapshots, 1000, now=1e9, is_in_remote=is_in_remote)
        return found[0].kernel_id

    assert first(None) == "large upload"
    assert first(lambda info: True) == "small upload"


def test_the_rate_of_uploads_is_measured_where_enough_was_uploaded():
    def remote(sent, seconds, **fields):
        traffic = Traffic(sent, seconds)
        state = {"automatic": True, "paused": False} | fields
        return RemoteUploads(remote="r", traffic=traffic, **state)

    assert measured_upload_rate([]) == UPLOAD_BYTES_PER_SECOND
    assert measured_upload_rate([remote(1000, 1.0), remote(10**9, 0.0)]) == UPLOAD_BYTES_PER_SECOND
    assert measured_upload_rate([remote(10**9, 100.0), remote(10**9, 10.0)]) == 1e8
    unused = [remote(10**9, 1.0, paused=True), remote(10**9, 1.0, automatic=False)]
    assert measured_upload_rate([*unused, remote(10**8, 10.0)]) == 1e7
