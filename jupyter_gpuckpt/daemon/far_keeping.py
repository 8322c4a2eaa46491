"""The work of `jupyter gpuckpt remote keep`: the rule of a remote for the snapshots to keep, and what it removes."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..errors import ConfigurationError
from ..remote_records import FarVerdict, Keeping, Remote, RemoteCall
from ..retention_policy import RetentionPolicy
from ..store.far import rules, unneeded
from ..store.far.collect import Packs
from ..store.far.retries import Retries
from ..store.far.sessions import Sessions
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
    wanted = call.keep.policy
    if wanted is not None and not wanted.removes_nothing:
        _require_removable(data_dir, opened)
    if wanted is None:
        rule = rules.read(bucket, seal, seen) or rules.Rule(1, RetentionPolicy())
    elif call.keep.dry_run:
        rule = rules.Rule(1, wanted)
    else:
        host_name = socket.gethostname()
        rule = rules.replace(bucket, seal, seen, wanted, host_name=host_name, now=time.time())
    packs = Packs(bucket, seal)
    sessions = unneeded.all_of(Sessions(bucket, seal, seen))
    if not rule.policy.removes_nothing:
        names = {one.manifest for session in sessions for one in session.listed}
        with ThreadPoolExecutor(_READERS, "manifests") as pool:
            list(pool.map(packs.of, names))
    verdicts = unneeded.judge(sessions, rule.policy, packs.of)
    freed = unneeded.would_free(verdicts, packs.of) if not rule.policy.removes_nothing else 0
    return Keeping(rule.policy, rule.changed_at, rule.host_name, list(map(_shown, verdicts)), freed)


def _require_removable(data_dir: Path, opened: remote_keys.Opened) -> None:
    remote = opened.remote
    if remote.capabilities and not remote.capabilities.deletes:
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
