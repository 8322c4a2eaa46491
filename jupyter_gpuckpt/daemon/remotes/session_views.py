"""Conversions of far sessions to the records that clients see."""

from __future__ import annotations

from ...errors import HostIncompatible
from ...remote import capabilities
from ...remote.remote_sessions import FarSession, FarSnapshot
from ...wire.remote_listings import FetchEstimate, ListedSession, ListedSnapshot, RemoteState
from ...wire.remote_records import Remote

#: The most obstacles that a message lists.
_SHOWN = 5


def require_resumable(estimate: FetchEstimate) -> None:
    """Raise HostIncompatible if the kernel of a snapshot could not be resumed here."""
    if estimate.obstacles:
        raise HostIncompatible(
            f"The kernel of snapshot {estimate.snapshot.snapshot_id} could not be resumed here, so it is not fetched. "
            + " ".join(estimate.obstacles[:_SHOWN]),
            hint=f"{estimate.hint} It can be fetched all the same: --force.",
            details="\n".join(estimate.obstacles),
        )


def state(remote: Remote) -> RemoteState:
    """Return a remote as it was when it was last tried."""
    found = remote.capabilities
    if found is None:
        return RemoteState(remote.name, remote.url)
    verdict = capabilities.verdict(found)
    return RemoteState(remote.name, remote.url, found.tried_at, verdict.refusals, verdict.warnings)


def listed(session: FarSession, local_snapshots: dict[str, bool]) -> ListedSession:
    """Return a far session for display. `local_snapshots`: the snapshots of the local store; True: as a stub."""
    facts, lease = session.facts, session.lease
    return ListedSession(
        facts.session_id,
        facts.host_name,
        facts.hub_user,
        facts.server_name,
        facts.path,
        facts.title,
        [listed_snapshot(one, local_snapshots) for one in session.listed],
        lease.host_name or lease.daemon_id if lease else "",
        lease.since if lease else 0.0,
        0.0 if lease else session.moved_at,
    )


def listed_snapshot(one: FarSnapshot, local_snapshots: dict[str, bool]) -> ListedSnapshot:
    """Return a snapshot of a far session for display. `local_snapshots`: as in `listed`."""
    return ListedSnapshot(
        one.snapshot_id,
        one.kernel_id,
        one.created,
        one.title,
        one.raw_bytes,
        one.stored_bytes,
        one.snapshot_id in local_snapshots,
        local_snapshots.get(one.snapshot_id, False),
    )


def rank(session: ListedSession) -> tuple[float, bool, float]:
    """Return the sort key of a session in a list: first those that were moved, then those that nobody runs, then the newest.

    Those whose newest snapshot is here are no longer offered.
    """
    newest = next(iter(session.snapshots), None)
    is_offered = newest is not None and not session.leased_to and not newest.here
    moved_at = session.moved_at if is_offered else 0.0
    return -moved_at, not is_offered, -newest.created if newest else 0.0
