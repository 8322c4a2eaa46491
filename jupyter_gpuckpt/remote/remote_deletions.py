"""The deletion of snapshots in remote sessions, because a user deleted them on one machine.

A deleted snapshot gets a tombstone in each remote session that lists it, and the collector removes its manifest at least a day later.
A machine deletes only in remote sessions to which it has uploaded: what it has only fetched from others belongs to them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from .listed_facts import Deletion
from .remote_sessions import RemoteSession, RemoteSnapshot, Sessions
from .unneeded import newest_of


class Kept(msgspec.Struct, frozen=True):
    """The reason why a remote session still lists a snapshot that was deleted. `waits`: whether the reason may end."""

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
) -> tuple[dict[str, Kept], set[str]]:
    """Mark snapshots of a remote session as deleted; return why each kept one is kept, and the ids of those that are marked.

    `now`: the time of the deletion, by the remote's clock. `fenced`: write the session even if it lists none of them, so that an
    upload that was stopped cannot list one later.

    Raises RemoteObjectMissing, and what `Bucket` raises.
    """
    kept: dict[str, Kept] = {}
    marked: set[str] = set()

    def mark(session: RemoteSession) -> RemoteSession:
        # If the rule ends, snapshots that it has marked may be listed again. So they are judged as listed, and get the user's time.
        as_listed = [
            msgspec.structs.replace(one, deleted_at=0.0) if one.snapshot_id in wanted else one
            for one in session.snapshots
        ]
        newest = newest_of(msgspec.structs.replace(session, snapshots=as_listed))
        kept.clear()
        marked.clear()
        snapshots = []
        for one in session.snapshots:
            if deletion := wanted.get(one.snapshot_id):
                is_newest = one.manifest in newest
                why = _why_kept(session, one, deletion, machine_id, is_newest=is_newest)
                changed = _without(one, deletion, machine_id)
                if why:
                    kept[one.snapshot_id] = why
                else:
                    marked.add(one.snapshot_id)
                    changed = msgspec.structs.replace(changed, deleted_at=now)
                snapshots.append(changed)
            else:
                snapshots.append(one)
        return msgspec.structs.replace(session, snapshots=snapshots)

    (sessions.rewrite if fenced else sessions.change)(session_id, mark)
    return kept, marked


def _without(one: RemoteSnapshot, deletion: Deletion, machine_id: str) -> RemoteSnapshot:
    """Return the entry without this machine's reliance on the snapshot, unless another store of the machine relies on it."""
    if not deletion.was_relied_on:
        return one
    left = {name: host for name, host in one.relied_on_by.items() if name != machine_id}
    return msgspec.structs.replace(one, relied_on_by=left)


def _why_kept(
    session: RemoteSession,
    one: RemoteSnapshot,
    deletion: Deletion,
    machine_id: str,
    *,
    is_newest: bool,
) -> Kept | None:
    if all(other.machine_id != machine_id for other in session.snapshots):
        return Kept("this machine has uploaded nothing to its session", waits=False)
    if session.moved_at:
        return Kept("its session was moved there for another machine", waits=True)
    if hosts := sorted({*_without(one, deletion, machine_id).relied_on_by.values()}):
        return Kept(f"machine {', '.join(hosts)} relies on it", waits=True)
    if one.about.pinned and not deletion.unpinned:
        return Kept("it is pinned there", waits=True)
    # A machine that continues from the newest may have no other copy, and does not send that it needs it (`LocalState.is_relied_on`).
    if is_newest and session.term > deletion.terms.get(session.facts.session_id, 0):
        return Kept("another machine has continued from it", waits=True)
    return None
