"""The order in which to save kernels if there may not be time for all. Sizes are in bytes, times in seconds.

The value of a kernel is the work that would be lost: the time since its newest snapshot that can be read afterwards. A suspend
costs a fixed time plus its bytes at a rate, and the upload of what is new if the disk is lost. Kernels with the highest value per
second of cost come first, as long as they are expected to fit into the time. The others come last, smallest first: they are tried
anyway, because estimates may be wrong.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from ..wire.manifest_records import SnapshotInfo
from ..wire.protocol import Kernel
from ..wire.snapshot_records import RemoteUploads
from .save_rates import FIXED_SECONDS, measured_rates

#: The rate that is assumed without earlier snapshots: two slow CPUs compress and write as much.
BYTES_PER_SECOND = 500e6
#: The rate of uploads that is assumed before the first one, and the uploaded bytes from which a measured rate counts.
UPLOAD_BYTES_PER_SECOND, _TELLING_UPLOADED = 20e6, 10_000_000
#: The part of its memory that the first upload of a kernel is expected to send.
_STORED_PART = 0.5

_Info = TypeVar("_Info", bound=SnapshotInfo)


class Candidate(msgspec.Struct, frozen=True):
    """A kernel to be saved. `size_bytes`: memory and GPU memory; `at_stake_seconds`: the work that its user would lose."""

    kernel_id: str
    size_bytes: int
    at_stake_seconds: float
    #: What its upload is expected to send; 0 if the disk survives.
    upload_bytes: int = 0


def order(
    candidates: Iterable[Candidate],
    within_seconds: float | None,
    bytes_per_second: float = BYTES_PER_SECOND,
    upload_bytes_per_second: float = UPLOAD_BYTES_PER_SECOND,
) -> list[Candidate]:
    """Return all candidates in the order in which to begin; `within_seconds` None: there is time for all."""

    def cost(candidate: Candidate) -> float:
        upload_seconds = candidate.upload_bytes / upload_bytes_per_second
        return FIXED_SECONDS + candidate.size_bytes / bytes_per_second + upload_seconds

    by_worth = sorted(
        candidates, key=lambda one: (-one.at_stake_seconds / cost(one), one.size_bytes)
    )
    if within_seconds is None:
        return by_worth
    fitting: list[Candidate] = []
    others: list[Candidate] = []
    left = within_seconds
    for one in by_worth:
        if cost(one) <= left:
            left -= cost(one)
            fitting.append(one)
        else:
            others.append(one)
    return fitting + sorted(others, key=lambda one: one.size_bytes)


def most_at_stake_first(
    kernels: Iterable[Kernel],
    snapshots: Sequence[_Info],
    within_seconds: float | None,
    *,
    now: float,
    is_in_remote: Callable[[_Info], bool] | None = None,
    upload_bytes_per_second: float = UPLOAD_BYTES_PER_SECOND,
) -> list[Kernel]:
    """Return kernels in the order in which to save them. `snapshots`: of all kernels, newest first.

    `is_in_remote`: whether a remote has a snapshot, if only those can be read afterwards; None: the disk survives.
    """
    by_id = {kernel.kernel_id: kernel for kernel in kernels}
    candidates = [candidate(kernel, snapshots, now, is_in_remote) for kernel in by_id.values()]
    rate = measured_rate(snapshots)
    sorted_candidates = order(candidates, within_seconds, rate, upload_bytes_per_second)
    return [by_id[one.kernel_id] for one in sorted_candidates]


def candidate(
    kernel: Kernel,
    snapshots: Sequence[_Info],
    now: float,
    is_in_remote: Callable[[_Info], bool] | None = None,
) -> Candidate:
    """Return a kernel as a candidate; parameters as in `most_at_stake_first`."""
    import psutil  # noqa: PLC0415 - daemon and commands start faster without it, and most never choose among kernels

    try:
        began = psutil.Process(kernel.pid).create_time() if kernel.pid else now
    except psutil.Error:  # the process has just ended
        began = now
    own = [
        one
        for one in snapshots
        if kernel.snapshot_id == one.snapshot_id or kernel.kernel_id == one.kernel_id
    ]
    kept = next((one for one in own if is_in_remote is None or is_in_remote(one)), None)
    size_bytes = kernel.memory_bytes + kernel.gpu_bytes
    if kept is None:
        # Not even the snapshot from which it was resumed can be read afterwards.
        since = min([began, *(one.created for one in own)])
        upload_bytes = own[0].sizes.stored_bytes if own else round(_STORED_PART * size_bytes)
    else:
        # A kernel that was resumed from its latest snapshot has worked only since then.
        is_latest = kept.snapshot_id == kernel.snapshot_id
        since = max(kept.created, began) if is_latest else kept.created
        upload_bytes = own[0].sizes.new_bytes
    if since > now:  # the clock was set back: all the work since the process began may be at stake
        since = began
    return Candidate(
        kernel.kernel_id,
        size_bytes,
        max(0.0, now - since),
        upload_bytes=0 if is_in_remote is None else upload_bytes,
    )


def measured_rate(snapshots: Iterable[SnapshotInfo]) -> float:
    """Return the median rate of the latest snapshots (newest first) that are large enough; else `BYTES_PER_SECOND`."""
    rates = measured_rates(snapshots)
    return statistics.median(rates) if rates else BYTES_PER_SECOND


def measured_upload_rate(remotes: Iterable[RemoteUploads]) -> float:
    """Return the rate of all uploads so far to the fastest remote; `UPLOAD_BYTES_PER_SECOND` if too little was uploaded."""
    sent = [one.traffic for one in remotes if one.automatic and not one.paused]
    rates = [
        one.sent_bytes / one.seconds
        for one in sent
        if one.sent_bytes >= _TELLING_UPLOADED and one.seconds > 0
    ]
    return max(rates, default=UPLOAD_BYTES_PER_SECOND)
