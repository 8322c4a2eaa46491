"""Retention: a pure function of the snapshots, those in use and the user's policy that decides which snapshots may be removed.

The semantics are those of restic's `forget`: a snapshot is kept if any keep rule applies to it, and `keep_within` counts back from the
kernel's latest snapshot instead of from now, so that a notebook that was not opened for a month loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple, Protocol

from ..wire.manifest_records import Cause, SnapshotInfo
from ..wire.snapshot_order import newest_first
from ..wire.snapshot_records import RetentionPolicy, Verdict
from ..wire.tool_branches import origin_of

NEEDED = "a kernel or an upload needs it"
LATEST = "the latest snapshot of a kernel that is resumed from it"
PINNED = "it is pinned"
MANUAL = "taken by hand"
NO_RULE = "no rule is set"
WITHIN_BUDGET = "within the limit of bytes"
OVER_BUDGET = "beyond the limit of bytes"
NOT_KEPT = "no rule keeps it"
THINNED = "a later periodic save of its time is kept"
PERIODIC = "one of the periodic saves that are kept"
NO_ROOM = "the disk has too little room for more periodic saves"
#: How periodic saves are thinned. Up to an age, in seconds before the kernel's latest snapshot, one is kept of each period of so many
#: seconds (0: all).
_THINNING = ((60.0, 0.0), (3600.0, 300.0), (86_400.0, 3600.0), (math.inf, 86_400.0))
#: The most periodic saves of a kernel.
_MOST_PERIODIC = 50


class Scales(Protocol):
    """A counter of the joint size of snapshots, in which shared chunks count once (`local.Weights`)."""

    def weight(self, info: SnapshotInfo) -> int:
        """Return the bytes that this snapshot takes in addition to those that were added."""

    def add(self, info: SnapshotInfo) -> None:
        """Add this snapshot to those that are kept."""


class History(NamedTuple):
    """The limit of the periodic saves that are not the newest of a kernel: bytes, and unused scales to weigh them with."""

    max_bytes: int
    scales: Scales


def judge(
    snapshots: Iterable[SnapshotInfo],
    policy: RetentionPolicy,
    *,
    needed: Collection[str],
    living: Collection[str],
    scales: Scales,
    history: History | None = None,
) -> list[Verdict]:
    """Return the verdict on each of `snapshots`, newest first.

    `needed`: ids of snapshots in use. `living`: ids of kernels that exist; the latest snapshot of each is kept. `history`: the limit of
    periodic saves that are not the newest of a kernel.

    `scales` are used only if `max_bytes` is set. Snapshots that may not be removed are added first, then the
    others from the newest on. So the weight of an old snapshot is at least what its removal frees. A snapshot with weight 0 is kept.
    From the first that does not fit on, all others are removed.
    """
    ordered = newest_first(snapshots)
    exempt = _exempt(ordered, policy)
    suspends = [] if policy.manual_too else [one for one in ordered if _is_limited(one, policy)]
    for infos in _by_kernel(suspends):
        reason = f"among the last {policy.keep_suspends} suspends of its kernel"
        exempt |= {info.snapshot_id: reason for info in infos[: policy.keep_suspends]}
    by_tools = [one for one in ordered if _is_by_tool(one, policy)]
    for infos in _grouped(by_tools, lambda info: origin_of(info.name, info.kernel_id)):
        reason = (
            f"among the last {policy.keep_tool_saves} by tools of its kernel and their branches"
        )
        exempt |= {info.snapshot_id: reason for info in infos[: policy.keep_tool_saves]}
    held = exempt | _needed(ordered, needed, living)
    kept: dict[str, str] = {}
    periodic = list(filter(is_periodic, ordered)) if policy.thins else []
    thinned = thin(ordered) - held.keys() if policy.thins else set()
    kept |= {one.snapshot_id: PERIODIC for one in periodic if one.snapshot_id not in thinned}
    # The older of these suspends and saves by tools, and periodic saves, are left to no rule.
    judged = {one.snapshot_id for one in [*suspends, *by_tools, *periodic]} | exempt.keys()
    for infos in _by_kernel(info for info in ordered if info.snapshot_id not in judged):
        kept |= _kept_by_rules(infos, policy)
    kept |= held
    over = dict[str, str]()
    if history is not None and periodic:
        wanted = [info for info in ordered if info.snapshot_id in kept]
        over = dict.fromkeys(_beyond(wanted, held, history), NO_ROOM)
    if policy.max_bytes:
        wanted = [info for info in ordered if info.snapshot_id in kept.keys() - over.keys()]
        found = over_budget(wanted, held, policy.max_bytes, scales)
        over |= dict.fromkeys(found, OVER_BUDGET)
    return [_verdict(info, policy, kept, over, thinned) for info in ordered]


def _beyond(wanted: list[SnapshotInfo], held: Collection[str], history: History) -> set[str]:
    """Return the ids of the oldest periodic saves, beyond what they may take together. The newest of a kernel is not among them."""
    old = {
        one.snapshot_id for infos in _by_kernel(filter(is_periodic, wanted)) for one in infos[1:]
    }
    old -= set(held)
    if not old:
        return set()  # weighing the others, which each save would do, is slow
    for info in wanted:
        if info.snapshot_id not in old:
            history.scales.add(info)
    return over_budget(
        [one for one in wanted if one.snapshot_id in old], (), history.max_bytes, history.scales
    )


def thin(ordered: Iterable[SnapshotInfo]) -> set[str]:
    """Return the ids of the periodic saves that are not kept, because later ones of the same time are (`_THINNING`).

    `ordered`: newest first.
    """
    found: set[str] = set()
    for infos in _by_kernel(ordered):
        latest, kept = infos[0].created, set[tuple[float, float | str]]()
        for info in filter(is_periodic, infos):
            # A clock that was set makes ages wrong. Snapshots that seem to be from the future count as new.
            age = latest - info.created
            period = next(period for until, period in _THINNING if age <= until)
            slot = (period, info.created // period if period else info.snapshot_id)
            if slot in kept or len(kept) == _MOST_PERIODIC:
                found.add(info.snapshot_id)
            else:
                kept.add(slot)
    return found


def is_periodic(info: SnapshotInfo) -> bool:
    """Return whether a snapshot is a periodic save that no user has marked."""
    return info.cause is Cause.AUTOSAVE and not (info.pinned or info.title or info.note)


def _exempt(ordered: Iterable[SnapshotInfo], policy: RetentionPolicy) -> dict[str, str]:
    """Return, by id, why snapshots are exempt from the rules. Exempt snapshots do not count in the rules for others."""
    exempt: dict[str, str] = {}
    for info in ordered:
        if info.pinned:
            exempt[info.snapshot_id] = PINNED
        elif not (info.cause.automatic or policy.manual_too or _is_limited(info, policy)):
            exempt[info.snapshot_id] = MANUAL
    return exempt


def _is_limited(info: SnapshotInfo, policy: RetentionPolicy) -> bool:
    """Return whether `keep_suspends` applies to a snapshot: a suspend by hand that is not pinned and has no name or note."""
    requested = info.reason == "suspend" and not info.cause.automatic
    return bool(requested and policy.keep_suspends) and not (info.pinned or info.title or info.note)


def _is_by_tool(info: SnapshotInfo, policy: RetentionPolicy) -> bool:
    """Return whether `keep_tool_saves` applies to a snapshot."""
    return bool(policy.keep_tool_saves) and info.cause is Cause.TOOL and not info.pinned


def _needed(
    ordered: Iterable[SnapshotInfo], needed: Collection[str], living: Collection[str]
) -> dict[str, str]:
    """Return, by id, the reasons why snapshots are kept regardless of the rules."""
    held: dict[str, str] = {}
    seen: set[str] = set()
    for info in ordered:
        if info.snapshot_id in needed:
            held[info.snapshot_id] = NEEDED
        elif info.kernel_id in living and info.kernel_id not in seen:
            held[info.snapshot_id] = LATEST
        seen.add(info.kernel_id)
    return held


def _by_kernel(infos: Iterable[SnapshotInfo]) -> Iterator[list[SnapshotInfo]]:
    return _grouped(infos, lambda info: info.kernel_id)


def _grouped(
    infos: Iterable[SnapshotInfo], key: Callable[[SnapshotInfo], str]
) -> Iterator[list[SnapshotInfo]]:
    groups: dict[str, list[SnapshotInfo]] = {}
    for info in infos:
        groups.setdefault(key(info), []).append(info)
    yield from groups.values()


def _kept_by_rules(infos: list[SnapshotInfo], policy: RetentionPolicy) -> dict[str, str]:
    """Return, by id, the reasons why the rules keep snapshots of one kernel; `infos` is newest first."""
    if not policy.keep_last and not policy.keep_within_seconds:
        return {info.snapshot_id: NO_RULE for info in infos}
    kept = {}
    oldest = infos[0].created - policy.keep_within_seconds
    for place, info in enumerate(infos):
        if place < policy.keep_last:
            kept[info.snapshot_id] = f"among the last {policy.keep_last} of its kernel"
        elif policy.keep_within_seconds and info.created >= oldest:
            kept[info.snapshot_id] = "recent enough"
    return kept


def would_free(verdicts: Iterable[Verdict], scales: Scales) -> int:
    """Return the bytes that only removed snapshots need, by unused `scales`."""
    removed = []
    for verdict in verdicts:
        if verdict.removed:
            removed.append(verdict.snapshot)
        else:
            scales.add(verdict.snapshot)
    freed = 0
    for info in removed:
        freed += scales.weight(info)
        scales.add(info)
    return freed


def over_budget(
    wanted: list[SnapshotInfo], held: Collection[str], max_bytes: int, scales: Scales
) -> set[str]:
    """Return the ids of `wanted` snapshots over `max_bytes`; earlier ones have priority, those in `held` are always kept."""
    total = 0
    for info in wanted:
        if info.snapshot_id in held:
            total += scales.weight(info)
            scales.add(info)
    over: set[str] = set()
    for info in wanted:
        if info.snapshot_id in held:
            continue
        weight = scales.weight(info)
        if weight and (over or total + weight > max_bytes):
            over.add(info.snapshot_id)
        else:
            total += weight
            scales.add(info)
    return over


def _verdict(
    info: SnapshotInfo,
    policy: RetentionPolicy,
    kept: dict[str, str],
    over: dict[str, str],
    thinned: set[str],
) -> Verdict:
    if info.snapshot_id in over:
        return Verdict(info, removed=True, reason=over[info.snapshot_id])
    why = kept.get(info.snapshot_id)
    if why is None:
        reason = THINNED if info.snapshot_id in thinned else NOT_KEPT
        return Verdict(info, removed=True, reason=reason)
    if why == NO_RULE and policy.max_bytes:
        why = WITHIN_BUDGET
    return Verdict(info, removed=False, reason=why)
