"""The retention of a remote: which snapshots of all machines its rule removes, and their removal from the far sessions.

Snapshots are judged by session, as the local store's are by kernel (`store/retention.py`). No rule removes the newest snapshot of a
session, a pinned one, one with a title or note by a user, one of which nothing is known, or one whose content a machine has nowhere
else. A removal checks this again in the swap that changes the session, so it cannot remove what changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ...errors import FarObjectMissing
from ...model import Cause, Sizes, SnapshotInfo
from ...retention_policy import RetentionPolicy
from .. import retention
from . import rules
from .objects import Objects, Remembering, Sealing
from .sessions import FarSession, FarSnapshot, Sessions

NEWEST = "the newest of its session"
NAMED = "it has a title or note"
UNKNOWN = "an older version uploaded it, and did not say whether it is pinned"
#: The packs that a manifest needs, by its name, with their lengths; none for a manifest that is lost.
PacksOf = Callable[[str], Mapping[str, int]]


class Judged(NamedTuple):
    """The verdict on a snapshot of a far session."""

    session: FarSession
    snapshot: FarSnapshot
    removed: bool
    reason: str


class _PackScales:
    """The joint size of snapshots in a remote: the packs that they need, each counted once, because packs are removed as a whole."""

    def __init__(self, packs_of: PacksOf) -> None:
        self._packs_of, self._on = packs_of, set[str]()

    def weight(self, info: SnapshotInfo) -> int:
        """Return the bytes of the packs that no snapshot needs that was added."""
        packs = self._packs_of(info.snapshot_id)
        return sum(length for name, length in packs.items() if name not in self._on)

    def add(self, info: SnapshotInfo) -> None:
        """Add this snapshot to those that are kept."""
        self._on.update(self._packs_of(info.snapshot_id))


def judge(
    sessions: Iterable[FarSession], policy: RetentionPolicy, packs_of: PacksOf
) -> list[Judged]:
    """Return the verdicts on all listed snapshots, newest first. `packs_of` is called only if `policy` limits the bytes."""
    listed: dict[str, tuple[FarSession, FarSnapshot]] = {}
    infos, held = [], dict[str, str]()
    for session in sessions:
        for place, one in enumerate(session.listed):
            # The name of its manifest names an entry, because two sessions may list one snapshot.
            listed[one.manifest] = session, one
            infos.append(_info(session, one))
            if why := _why_kept(one, is_newest=place == 0):
                held[one.manifest] = why
    living = {info.kernel_id for info in infos}
    needed = {name for name, why in held.items() if why == NEWEST or listed[name][1].relied_on_by}
    verdicts = retention.judge(
        infos, policy, needed=needed, living=living, scales=_PackScales(packs_of)
    )
    return [
        Judged(
            *listed[name], one.removed, one.reason if one.removed else held.get(name, one.reason)
        )
        for one in verdicts
        for name in [one.snapshot.snapshot_id]
    ]


def would_free(verdicts: Iterable[Judged], packs_of: PacksOf) -> int:
    """Return the bytes of the packs that only removed snapshots need."""
    kept, going = dict[str, int](), dict[str, int]()
    for one in verdicts:
        (going if one.removed else kept).update(packs_of(one.snapshot.manifest))
    return sum(length for name, length in going.items() if name not in kept)


def remove(bucket: Objects, seal: Sealing, seen: Remembering, packs_of: PacksOf, now: float) -> int:
    """Apply the rule of a remote; return how many snapshots it removed. Raises FarObjectInvalid if rule or a session is damaged."""
    rule = rules.read(bucket, seal, seen)
    if rule is None or rule.policy.removes_nothing:
        return 0
    sessions = Sessions(bucket, seal, seen)
    going: dict[str, list[FarSnapshot]] = {}
    for one in judge(all_of(sessions), rule.policy, packs_of):
        if one.removed:
            going.setdefault(one.session.facts.session_id, []).append(one.snapshot)
    count = 0
    for session_id, snapshots in going.items():
        # Somebody may have changed the rule since; this collector may have been stopped for days.
        if rules.read(bucket, seal, seen) != rule:
            break
        count += sessions.mark_unneeded(session_id, snapshots, now)
    return count


def all_of(sessions: Sessions) -> list[FarSession]:
    """Return all far sessions. Raises FarObjectInvalid, FormatTooNew."""
    found = []
    for session_id in sessions.ids():
        try:
            found.append(sessions.get(session_id))
        except FarObjectMissing:
            continue  # it was removed just now
    return found


def _why_kept(one: FarSnapshot, *, is_newest: bool) -> str:
    if is_newest:
        return NEWEST
    if one.relied_on_by:
        return f"machine {', '.join(sorted(one.relied_on_by.values()))} has no other copy"
    if one.about is None or one.about.known_cause is None:
        return UNKNOWN
    return NAMED if one.about.named and not one.about.pinned else ""


def _info(session: FarSession, one: FarSnapshot) -> SnapshotInfo:
    """Return the record by which retention judges an entry; it is exempt from the rules if it is pinned."""
    about = one.about
    is_exempt = about is None or about.known_cause is None or about.pinned or about.named
    return SnapshotInfo(
        one.manifest,
        session.facts.session_id,
        one.created,
        about.reason if about else "",
        sizes=Sizes(one.raw_bytes, one.stored_bytes, one.stored_bytes),
        cause=(about.known_cause if about else None) or Cause.MANUAL,
        pinned=is_exempt,
    )
