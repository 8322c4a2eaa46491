"""The work of `jupyter gpuckpt remote keep`: the rule of a remote for the snapshots to keep, and what it removes."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...errors import ConfigurationError, FarObjectMissing, GpuCkptError
from ...remote import capabilities, lease_objects, rules, unneeded
from ...remote.collector import Packs
from ...remote.remote_sessions import FarSession, FarSnapshot, Sessions
from ...remote.retries import Retries
from ...remote.unneeded import Judged
from ...wire.remote_records import FarVerdict, Keeping, Remote, RemoteCall
from ...wire.retention_policy import RetentionPolicy
from . import remote_keys

_READERS = 8
#: A host whose daemon has written its heartbeat within this time, by the remote's clock, is not lost: a machine may sleep a while.
_HEARTBEAT_SECONDS = 3600.0
_AGAIN = "The rule is set. Run the command again, so that a collector that was stopped cannot still remove snapshots by the former rule."


def keep(call: RemoteCall, remote: Remote) -> Keeping:
    """Set the rule of a remote, unless `call` has none or is a dry run; return the rule, and what it removes at the next collection.

    Raises ConfigurationError if nothing can be removed from the remote, or if only another machine may write to it.
    """
    data_dir = Path(call.data_dir)
    opened = remote_keys.opened(data_dir, remote, Retries.while_somebody_waits())
    bucket, seal, seen = opened.bucket, opened.key.seal, opened.seen
    wanted, lost = call.keep.policy, _Lost()
    sessions: list[FarSession] = []
    if call.keep.lost_machine:
        _require_useful(data_dir, opened, RetentionPolicy())
        sessions = unneeded.all_of(Sessions(bucket, seal, seen))
        lost = _lost(data_dir, opened, sessions, call.keep.lost_machine)
    if wanted is None:
        rule = rules.read(bucket, seal, seen) or rules.Rule(1, RetentionPolicy())
    else:
        _require_useful(data_dir, opened, wanted)
        rule = rules.Rule(1, wanted)
    # A rule is set only if it could be applied to all snapshots. Ending one must work even if something in the remote is damaged.
    removes = not rule.policy.removes_nothing
    verdicts, freed = _judged(opened, rule.policy, lost) if removes else ([], 0)
    if lost.machines and not call.keep.dry_run:
        _release(opened, sessions, lost)
    if wanted is not None and not call.keep.dry_run:
        host_name, is_first = socket.gethostname(), bucket.head(rules.NAME) is None
        rule = rules.replace(bucket, seal, seen, wanted, host_name=host_name, now=time.time())
        if not is_first:
            try:
                unneeded.end_rule(Sessions(bucket, seal, seen))
            except GpuCkptError as error:
                error.hint = f"{error.hint} {_AGAIN}".strip()
                raise
    shown = list(map(_shown, verdicts))
    return Keeping(
        rule.policy,
        rule.changed_at,
        rule.host_name,
        shown,
        freed,
        len(lost.snapshots),
        sorted(lost.snapshots),
    )


class _Lost(NamedTuple):
    """The ids of machines that never come back, and the snapshots on which they rely in a remote."""

    machines: frozenset[str] = frozenset()
    snapshots: frozenset[str] = frozenset()

    def without(self, session: FarSession) -> FarSession:
        """Return a far session without the reliance of these machines on its snapshots."""
        snapshots = list(map(self._without, session.snapshots))
        return msgspec.structs.replace(session, snapshots=snapshots)

    def _without(self, one: FarSnapshot) -> FarSnapshot:
        left = {name: host for name, host in one.relied_on_by.items() if name not in self.machines}
        return msgspec.structs.replace(one, relied_on_by=left)


def _lost(
    data_dir: Path, opened: remote_keys.Opened, sessions: list[FarSession], machine: str
) -> _Lost:
    """Return a lost machine, given by host name or id. Raises ConfigurationError if that is ambiguous, or if the machine seems alive."""
    name, known = opened.remote.name, dict[str, str]()
    for session in sessions:
        for one in session.listed:
            known |= one.relied_on_by
    known.pop(remote_keys.machine_id(data_dir), None)
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
        except FarObjectMissing:
            continue  # its daemon has just ended
        beat = opened.key.seal.open_record(found.name, stored.data, lease_objects.Heartbeat)
        if beat.host_name == host_name:
            return True
    return False


def _release(opened: remote_keys.Opened, known: list[FarSession], lost: _Lost) -> None:
    """Remove the reliance of lost machines on snapshots from the far sessions."""
    sessions = Sessions(opened.bucket, opened.key.seal, opened.seen)
    for session in known:
        if lost.without(session) != session:
            with suppress(FarObjectMissing):  # it was erased just now
                sessions.change(session.facts.session_id, lost.without)


def _judged(
    opened: remote_keys.Opened, policy: RetentionPolicy, lost: _Lost
) -> tuple[list[Judged], int]:
    """Return the verdicts on all snapshots as if lost machines needed none of them, and the bytes that the removals free."""
    bucket, seal = opened.bucket, opened.key.seal
    packs, known = Packs(bucket, seal), unneeded.all_of(Sessions(bucket, seal, opened.seen))
    sessions = list(map(lost.without, known))
    names = {one.manifest for session in sessions for one in session.listed}
    with ThreadPoolExecutor(_READERS, "manifests") as pool:
        list(pool.map(packs.of, names))
    verdicts = unneeded.judge(sessions, policy, packs.of)
    return verdicts, unneeded.would_free(verdicts, packs.of)


def _require_useful(data_dir: Path, opened: remote_keys.Opened, policy: RetentionPolicy) -> None:
    """Raise ConfigurationError for a rule that this machine cannot set, or by which nothing could be removed."""
    remote = opened.remote
    deletes = remote.capabilities is None or remote.capabilities.deletes
    if not deletes and not policy.removes_nothing:
        raise ConfigurationError(
            f"Remote {remote.name} does not let this machine delete anything, so no rule can remove snapshots.",
            hint=f"Give it the right to delete objects; then `jupyter gpuckpt remote test {remote.name}`.",
        )
    if opened.key.public.only_machine not in {"", remote_keys.machine_id(data_dir)}:
        raise ConfigurationError(
            f"Only the machine that made remote {remote.name} may write to it: its endpoint cannot compare and swap.",
            hint="Set the rule there.",
        )


def _shown(one: Judged) -> FarVerdict:
    facts, snapshot = one.session.facts, one.snapshot
    return FarVerdict(
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
