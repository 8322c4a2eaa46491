"""The deletion of snapshots in far sessions, because a user deleted them on one machine.

A deleted snapshot gets a tombstone in each far session that lists it, and the collector removes its manifest at least a day later.
A machine deletes only in far sessions to which it has uploaded: what it has only fetched from others belongs to them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from .about import Deletion
from .sessions import FarSession, FarSnapshot, Sessions
from .unneeded import newest_of


class Kept(msgspec.Struct, frozen=True):
    """The reason why a far session still lists a snapshot that was deleted. `waits`: whether the reason may end."""

    reason: str
    waits: bool


def delete(
    sessions: Sessions,
    session_id: str,
    wanted: Mapping[str, Deletion],
    machine_id: str,
    *,
    now: float,
    fenced: bool,
) -> dict[str, Kept]:
    """Mark snapshots of a far session as deleted, given by id; return the reasons for those that it lists nevertheless.

    `now`: the time of the deletion, by this machine's clock. `fenced`: write the session even if it lists none of them, so that an
    upload that was stopped cannot list one later.

    Raises FarObjectMissing, and what `Bucket` raises.
    """
    kept: dict[str, Kept] = {}

    def mark(session: FarSession) -> FarSession:
        newest = newest_of(session)
        kept.clear()
        for one in session.listed:
            if deletion := wanted.get(one.snapshot_id):
                why = _why_kept(
                    session, one, deletion, machine_id, is_newest=one.manifest in newest
                )
                kept.update({one.snapshot_id: why} if why else {})
        marked = [
            _marked(one, wanted[one.snapshot_id], machine_id, kept, now)
            if one.snapshot_id in wanted
            else one
            for one in session.snapshots
        ]
        return msgspec.structs.replace(session, snapshots=marked)

    (sessions.rewrite if fenced else sessions.change)(session_id, mark)
    return kept


def _marked(
    one: FarSnapshot, deletion: Deletion, machine_id: str, kept: Collection[str], now: float
) -> FarSnapshot:
    """Return the entry of a snapshot that was deleted on this machine; those in `kept` stay listed."""
    one = _without(one, deletion, machine_id)
    if one.snapshot_id in kept or one.deleted_at:
        return one
    return msgspec.structs.replace(one, deleted_at=now)


def _without(one: FarSnapshot, deletion: Deletion, machine_id: str) -> FarSnapshot:
    """Return the entry of a snapshot on which this machine relies no longer, unless another store of it does."""
    if not deletion.was_relied_on:
        return one
    left = {name: host for name, host in one.relied_on_by.items() if name != machine_id}
    return msgspec.structs.replace(one, relied_on_by=left)


def _why_kept(
    session: FarSession, one: FarSnapshot, deletion: Deletion, machine_id: str, *, is_newest: bool
) -> Kept | None:
    if all(other.machine_id != machine_id for other in session.snapshots):
        return Kept("this machine has uploaded nothing to its session", waits=False)
    if hosts := sorted({*_without(one, deletion, machine_id).relied_on_by.values()}):
        return Kept(f"machine {', '.join(hosts)} relies on it", waits=True)
    if one.about is not None and one.about.pinned and not deletion.unpinned:
        return Kept("it is pinned there", waits=True)
    # Others may have no other copy of what they continue, and are told of no need for the newest (`LocalState.is_relied_on`).
    if is_newest and session.term > deletion.terms.get(session.facts.session_id, 0):
        return Kept("another machine has continued from it", waits=True)
    return None
