"""The work of `jupyter gpuckpt remote keep`: the rule of a remote for the snapshots to keep, and what it removes."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from ..errors import ConfigurationError
from ..remote_records import FarVerdict, Keeping, Remote, RemoteCall
from ..retention_policy import RetentionPolicy
from ..store.far import rules, unneeded
from ..store.far.collect import Packs
from ..store.far.retries import Retries
from ..store.far.sessions import FarSession, FarSnapshot, Sessions
from ..store.far.unneeded import Judged
from . import remote_keys

_READERS = 8


def keep(call: RemoteCall, remote: Remote) -> Keeping:
    """Set the rule of a remote, unless `call` has none or is a dry run; return the rule, and what it removes at the next collection.

    Raises ConfigurationError if nothing can be removed from the remote, or if only another machine may write to it.
    """
    data_dir = Path(call.data_dir)
    opened = remote_keys.opened(data_dir, remote, Retries.while_somebody_waits())
    bucket, seal, seen = opened.bucket, opened.keyring.seal, opened.seen
    wanted, released = call.keep.policy, 0
    if call.keep.lost_machine:
        _require_useful(data_dir, opened, RetentionPolicy())
        released = _release(data_dir, opened, call.keep.lost_machine)
    if wanted is None:
        rule = rules.read(bucket, seal, seen) or rules.Rule(1, RetentionPolicy())
    else:
        _require_useful(data_dir, opened, wanted)
        rule = rules.Rule(1, wanted)
    # A rule is set only if it could be judged by. To end one must be possible even if something in the remote is damaged.
    removes = not rule.policy.removes_nothing
    verdicts, freed = _judged(opened, rule.policy) if removes else ([], 0)
    if wanted is not None and not call.keep.dry_run:
        host_name = socket.gethostname()
        rule = rules.replace(bucket, seal, seen, wanted, host_name=host_name, now=time.time())
    shown = list(map(_shown, verdicts))
    return Keeping(rule.policy, rule.changed_at, rule.host_name, shown, freed, released)


def _release(data_dir: Path, opened: remote_keys.Opened, machine: str) -> int:
    """Take back what another machine, given by host name or id, has told of snapshots that it has nowhere else; return their number."""
    sessions = Sessions(opened.bucket, opened.keyring.seal, opened.seen)
    known, found = unneeded.all_of(sessions), dict[str, str]()
    for session in known:
        for one in session.listed:
            found |= one.relied_on_by
    found.pop(remote_keys.machine_id(data_dir), None)
    lost = {name for name, host in found.items() if machine in {name, host}}
    if not lost:
        others = ", ".join(sorted(set(found.values()))) or "no other machine"
        raise ConfigurationError(
            f"No other machine {machine[:200]!r} has snapshots only in remote {opened.remote.name}.",
            hint=f"Those that have: {others}.",
        )

    def without(one: FarSnapshot) -> FarSnapshot:
        left = {name: host for name, host in one.relied_on_by.items() if name not in lost}
        return msgspec.structs.replace(one, relied_on_by=left)

    def release(session: FarSession) -> FarSession:
        return msgspec.structs.replace(session, snapshots=list(map(without, session.snapshots)))

    count = 0
    for session in known:
        changed = sum(without(one) != one for one in session.listed)
        if changed:
            sessions.rewrite(session.facts.session_id, release)
            count += changed
    return count


def _judged(opened: remote_keys.Opened, policy: RetentionPolicy) -> tuple[list[Judged], int]:
    """Return the verdicts on all snapshots, and the bytes that their removal frees."""
    bucket, seal = opened.bucket, opened.keyring.seal
    packs, sessions = Packs(bucket, seal), unneeded.all_of(Sessions(bucket, seal, opened.seen))
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
    if opened.keyring.public.only_machine not in {"", remote_keys.machine_id(data_dir)}:
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
