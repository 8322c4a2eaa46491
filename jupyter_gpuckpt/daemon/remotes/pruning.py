"""The work of `jupyter gpuckpt remote prune`: the removal of snapshots of all machines from a remote, by rules that a user gives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...errors import ConfigurationError, RemoteObjectMissing
from ...remote import capabilities, lease_objects, unneeded
from ...remote.collector import Collector
from ...remote.remote_sessions import RemoteSession, RemoteSnapshot, Sessions
from ...remote.unneeded import Judged
from ...wire.remote_records import Remote, RemoteAnswer, RemoteCall, RemotePruning, RemoteVerdict
from . import remote_keys

_READERS = 8
#: A host whose daemon has written its heartbeat within this time, by the remote's clock, is not lost: a machine may sleep a while.
_HEARTBEAT_SECONDS = 3600.0
_CHANGED = "its session has changed meanwhile"


def prune(call: RemoteCall, remote: Remote) -> RemoteAnswer:
    """Remove from a remote the snapshots that no rule keeps; return the verdicts. A dry run changes nothing.

    What earlier removals left there is collected first, so that an object that cannot be read prevents the removal of snapshots.

    Raises ConfigurationError if nothing can be removed from the remote, or if only another machine may write to it.
    """
    wanted = call.prune
    opened = remote_keys.opened(Path(call.data_dir), remote)
    bucket, seal, seen = opened.bucket, opened.key.seal, opened.seen
    if not bucket.deletes:
        raise ConfigurationError(
            f"Remote {remote.name} does not let this machine delete anything, so no snapshot can be removed there.",
            hint=f"Give it the right to delete objects; then `jupyter gpuckpt remote test {remote.name}`.",
        )
    opened.require_writable()
    sessions, collector, lost = opened.sessions, Collector(bucket, seal, seen), _Lost()
    known = unneeded.all_of(sessions)
    if wanted.lost_machine:
        lost = _lost(opened, known, wanted.lost_machine)
        if not wanted.dry_run:
            _release(sessions, known, lost)
            known = unneeded.all_of(sessions)
    verdicts, freed = list[Judged](), 0
    if not wanted.policy.removes_nothing:
        judged = list(map(lost.without, known))
        with ThreadPoolExecutor(_READERS, "manifests") as pool:
            list(
                pool.map(
                    collector.packs_of, {one.manifest for each in judged for one in each.listed}
                )
            )
        verdicts = unneeded.judge(judged, wanted.policy, collector.packs_of)
        if not wanted.dry_run:
            collector.collect()
            marked = unneeded.remove(sessions, verdicts, capabilities.time_there(bucket))
            verdicts = [
                one
                if one.snapshot.manifest in marked or not one.removed
                else one._replace(removed=False, reason=_CHANGED)
                for one in verdicts
            ]
        freed = unneeded.would_free(verdicts, collector.packs_of)
    found = RemotePruning(list(map(_shown, verdicts)), freed, sorted(lost.snapshots))
    return RemoteAnswer(pruning=found)


class _Lost(NamedTuple):
    """The ids of machines that never come back, and the snapshots on which they rely in a remote."""

    machines: frozenset[str] = frozenset()
    snapshots: frozenset[str] = frozenset()

    def without(self, session: RemoteSession) -> RemoteSession:
        """Return a remote session without the reliance of these machines on its snapshots."""
        snapshots = list(map(self._without, session.snapshots))
        return msgspec.structs.replace(session, snapshots=snapshots)

    def _without(self, one: RemoteSnapshot) -> RemoteSnapshot:
        left = {name: host for name, host in one.relied_on_by.items() if name not in self.machines}
        return msgspec.structs.replace(one, relied_on_by=left)


def _lost(opened: remote_keys.Opened, sessions: list[RemoteSession], machine: str) -> _Lost:
    """Return a lost machine, given by host name or id. Raises ConfigurationError if that is ambiguous, or if the machine seems alive."""
    name, known = opened.remote.name, dict[str, str]()
    for session in sessions:
        for one in session.listed:
            known |= one.relied_on_by
    known.pop(opened.machine_id, None)
    of_name = sorted(one for one, host in known.items() if host == machine)
    machines = [machine] if machine in known else of_name
    if not machines:
        others = ", ".join(sorted(set(known.values()))) or "none"
        raise ConfigurationError(
            f"No other machine {machine[:200]!r} has snapshots only in remote {name}.",
            hint=f"Machines that have: {others}.",
        )
    ids = f"by its id instead of its host name: {', '.join(machines)}."
    if len(machines) > 1:
        raise ConfigurationError(
            f"{len(machines)} machines with the host name {machine} rely on snapshots in remote {name}.",
            hint=f"Name the lost one {ids}",
        )
    if machine not in known and _is_alive(opened, machine):
        raise ConfigurationError(
            f"A machine with the host name {machine} has used remote {name} within the last hour, so it is not lost.",
            hint=f"Wait; or, if it only has the same name as the lost one, name that {ids}",
        )
    relied_on = [
        one.snapshot_id
        for session in sessions
        for one in session.listed
        if not one.relied_on_by.keys().isdisjoint(machines)
    ]
    return _Lost(frozenset(machines), frozenset(relied_on))


def _is_alive(opened: remote_keys.Opened, host_name: str) -> bool:
    """Return whether a daemon on a host of this name wrote a heartbeat to the remote within the last hour."""
    now = capabilities.time_there(opened.bucket)
    for found in opened.bucket.list(lease_objects.FOLDER):
        if now - found.modified.timestamp() > _HEARTBEAT_SECONDS:
            continue
        try:
            stored = opened.bucket.get(found.name, max_bytes=lease_objects.MAX_HEARTBEAT_BYTES)
        except RemoteObjectMissing:
            continue  # its daemon has just ended
        beat = opened.key.seal.open_record(found.name, stored.data, lease_objects.Heartbeat)
        if beat.host_name == host_name:
            return True
    return False


def _release(sessions: Sessions, known: list[RemoteSession], lost: _Lost) -> None:
    """Remove the reliance of lost machines on snapshots from the remote sessions."""
    for session in known:
        if lost.without(session) != session:
            with suppress(RemoteObjectMissing):  # it was erased just now
                sessions.change(session.facts.session_id, lost.without)


def _shown(one: Judged) -> RemoteVerdict:
    facts, snapshot = one.session.facts, one.snapshot
    return RemoteVerdict(
        facts.session_id,
        facts.path,
        facts.host_name,
        snapshot.snapshot_id,
        snapshot.created,
        snapshot.title,
        snapshot.stored_bytes,
        one.removed,
        one.reason,
    )
