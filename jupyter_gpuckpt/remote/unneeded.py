"""The retention of a remote: which snapshots of all machines rules of retention remove, and their removal from the remote sessions.

Snapshots are judged by session, as the local store's are by kernel (`store/retention.py`). No rule removes the newest snapshot of a
session or of a kernel in it, a pinned one, one with a title or note by a user, one of an unknown cause, or one whose content a
machine has nowhere else. The snapshot that was listed last also counts as the newest.

A removal marks the snapshots as deleted, unless a judged entry of their session has changed since. The collector removes their
manifests at least a day later (`collector.py`), so a fetch that has begun can finish.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from ..errors import RemoteObjectMissing
from ..store import retention
from ..wire.manifest_records import Cause, Sizes, SnapshotInfo
from ..wire.retention_policy import RetentionPolicy
from .remote_sessions import RemoteSession, RemoteSnapshot, Sessions

NEWEST = "the newest of its session"
LISTED_LAST = "the last that was uploaded to its session"
NEWEST_OF_KERNEL = "the newest of a kernel of its session"
NAMED = "it has a title or note"
NEWER = "a newer version uploaded it, for a reason that is not known here"
#: The packs that a manifest needs, by its name, with their lengths; none for a manifest that is lost.
PacksOf = Callable[[str], Mapping[str, int]]


class Judged(NamedTuple):
    """The verdict on a snapshot of a remote session."""

    session: RemoteSession
    snapshot: RemoteSnapshot
    removed: bool
    reason: str


class _PackScales:
    """The joint size of snapshots in a remote: the packs that they need, each counted once, because packs are removed as a whole."""

    def __init__(self, packs_of: PacksOf) -> None:
        self._packs_of, self._on = packs_of, set[str]()

    def weight(self, info: SnapshotInfo) -> int:
        """Return the bytes of the packs of a snapshot that no added snapshot needs."""
        packs = self._packs_of(info.snapshot_id)
        return sum(length for name, length in packs.items() if name not in self._on)

    def add(self, info: SnapshotInfo) -> None:
        """Add this snapshot to those that are kept."""
        self._on.update(self._packs_of(info.snapshot_id))


def judge(
    sessions: Iterable[RemoteSession], policy: RetentionPolicy, packs_of: PacksOf
) -> list[Judged]:
    """Return the verdicts on all listed snapshots, newest first. `packs_of` is called only if `policy` limits the bytes."""
    listed: dict[str, tuple[RemoteSession, RemoteSnapshot]] = {}
    infos, held, needed = [], dict[str, str](), set[str]()
    for session in sessions:
        newest = newest_of(session)
        for place, one in enumerate(reversed(session.listed), 1):
            # Entries are identified by their manifests, because two sessions may list one snapshot.
            listed[one.manifest] = session, one
            infos.append(_info(session, one, place))
            if why := newest.get(one.manifest) or _why_kept(one):
                held[one.manifest] = why
            if one.manifest in newest or one.relied_on_by:
                needed.add(one.manifest)
    living = {info.kernel_id for info in infos}
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


def thinned(session: RemoteSession, now: float) -> RemoteSession:
    """Return a remote session in which periodic saves are marked as deleted, the more of them the older they are (`retention.thin`).

    `now`: by the remote's clock, with which the collector compares it.
    """
    infos = [_info(session, one, place) for place, one in enumerate(reversed(session.listed), 1)]
    going = retention.thin(reversed(infos)) - newest_of(session).keys()
    snapshots = [
        msgspec.structs.replace(one, deleted_at=now)
        if one.manifest in going and not (one.deleted_at or one.relied_on_by)
        else one
        for one in session.snapshots
    ]
    return msgspec.structs.replace(session, snapshots=snapshots) if going else session


def would_free(verdicts: Iterable[Judged], packs_of: PacksOf) -> int:
    """Return the bytes of the packs that only removed snapshots need."""
    kept, going = dict[str, int](), dict[str, int]()
    for one in verdicts:
        (going if one.removed else kept).update(packs_of(one.snapshot.manifest))
    return sum(length for name, length in going.items() if name not in kept)


def remove(sessions: Sessions, verdicts: Iterable[Judged], now: float) -> set[str]:
    """Mark the snapshots that the verdicts remove as deleted; return the manifests of those that were marked.

    `now`: by the remote's clock, with which the collector compares it.
    """
    going: dict[str, tuple[RemoteSession, set[str]]] = {}
    for one in verdicts:
        if one.removed:
            _, names = going.setdefault(one.session.facts.session_id, (one.session, set()))
            names.add(one.snapshot.manifest)
    return {
        name for judged, names in going.values() for name in _mark(sessions, judged, names, now)
    }


def all_of(sessions: Sessions) -> list[RemoteSession]:
    """Return all remote sessions. Raises RemoteObjectInvalid, FormatTooNew."""
    found = []
    for session_id in sessions.ids():
        try:
            found.append(sessions.get(session_id))
        except RemoteObjectMissing:
            continue  # it was removed just now
    return found


def _mark(
    sessions: Sessions, judged: RemoteSession, going: Collection[str], now: float
) -> set[str]:
    """Mark snapshots of a session, given by manifest, as deleted, unless a judged entry has changed; return those that were marked."""
    marked: set[str] = set()

    def mark(session: RemoteSession) -> RemoteSession:
        nonlocal marked
        there = {one.manifest: one for one in session.listed}
        is_same = all(there.get(one.manifest) == one for one in judged.listed)
        marked = set(going).difference(newest_of(session)) if is_same else set()
        snapshots = [
            msgspec.structs.replace(one, deleted_at=now) if one.manifest in marked else one
            for one in session.snapshots
        ]
        return msgspec.structs.replace(session, snapshots=snapshots)

    try:
        sessions.change(judged.facts.session_id, mark)
    except RemoteObjectMissing:
        return set()  # everything in the remote was erased meanwhile
    return marked


def newest_of(session: RemoteSession) -> dict[str, str]:
    """Return the newest snapshots of a session and of each kernel in it, by manifest, with the reasons to keep them."""
    in_order = [one for one in session.snapshots if not one.deleted_at]
    held: dict[str, str] = {}
    for found, reason in ((session.listed, NEWEST), (in_order[::-1], LISTED_LAST)):
        kernels = set[str]()
        for one in found:
            if one.kernel_id not in kernels:
                held.setdefault(one.manifest, NEWEST_OF_KERNEL if kernels else reason)
                kernels.add(one.kernel_id)
    return held


def _why_kept(one: RemoteSnapshot) -> str:
    if one.relied_on_by:
        return f"machine {', '.join(sorted(one.relied_on_by.values()))} relies on it"
    if one.about.known_cause is None:
        return NEWER
    return NAMED if one.about.named and not one.about.pinned else ""


def _info(session: RemoteSession, one: RemoteSnapshot, place: int) -> SnapshotInfo:
    """Return the record by which retention judges an entry; it is exempt from the rules if it is pinned.

    `place`: its place in the session's order, which is that of retention.
    """
    about = one.about
    is_exempt = about.known_cause is None or about.pinned or about.named
    return SnapshotInfo(
        one.manifest,
        session.facts.session_id,
        one.created,
        about.reason,
        sizes=Sizes(one.raw_bytes, one.stored_bytes, one.stored_bytes),
        cause=about.known_cause or Cause.MANUAL,
        pinned=is_exempt,
        number=place,
    )
