"""The work of `jupyter gpuckpt remote erase`: a plan of what would be erased, and the erasure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from ...errors import (
    ConfigurationError,
    KeyUnavailable,
    RemoteObjectInvalid,
    RemoteObjectMissing,
    SnapshotNotFound,
)
from ...remote import (
    collector,
    epochs,
    lease_objects,
    pack_refs,
    remote_manifests,
    store_key,
)
from ...remote.buckets import Bucket, open_bucket
from ...remote.objects import ListedObject
from ...remote.remote_list import Remotes, state_folder
from ...remote.remote_sessions import RemoteSession
from ...remote.retries import Retries
from ...wire.remote_records import (
    ErasePlan,
    Erasure,
    Remote,
    RemoteAnswer,
    RemoteCall,
    SessionToErase,
)
from . import remote_keys
from .leases import LeaseFile

#: The folders of a remote's own objects, in the order of their removal; other objects below the prefix are not touched.
_FOLDERS = (
    *remote_keys.STORE_FOLDERS,
    epochs.FOLDER,
    lease_objects.FOLDER,
    "trial",
)
_AT_ONCE = 8
#: How many times objects are listed and deleted while others still write.
_ROUNDS = 3


def plan(call: RemoteCall, remote: Remote) -> RemoteAnswer:
    """Return what would be erased: one remote session, or everything, for which no key is needed.

    Raises SnapshotNotFound for an unknown session, ConfigurationError for an ambiguous name.
    """
    bucket = _bucket(call, remote)
    found = [*_ours(bucket)]
    unreadable, known = "", list[RemoteSession]()
    try:
        sessions = remote_keys.opened(Path(call.data_dir), remote).sessions
        known = [sessions.get(session_id) for session_id in sessions.ids()]
    except (KeyUnavailable, RemoteObjectInvalid, RemoteObjectMissing) as error:
        if call.session:
            raise
        unreadable = error.message
    wanted = [_one(call.session, known, remote.name)] if call.session else known
    versioned = remote.capabilities is not None and remote.capabilities.versioned
    shown = [_shown(one) for one in wanted if one.listed or call.session]
    size = sum(one.size for one in found)
    return RemoteAnswer(plan=ErasePlan(shown, len(found), size, unreadable, versioned))


def erase(call: RemoteCall, remotes: Remotes) -> RemoteAnswer:
    """Erase one remote session by its id, or everything and the record of the remote. Raises what `Bucket` raises."""
    return RemoteAnswer(erasure=(_session if call.session else _everything)(call, remotes))


def _session(call: RemoteCall, remotes: Remotes) -> Erasure:
    data_dir, now = Path(call.data_dir), time.time()
    opened = remote_keys.opened(data_dir, remotes.get(call.name))
    opened.require_writable()
    going_on = LeaseFile(state_folder(data_dir, call.name)).going_on_in(call.session)

    def take(remote: Remote) -> Remote:
        return msgspec.structs.replace(remote, erased=remote.erased | dict.fromkeys(going_on, now))

    # To the daemon, and to processes that it has started, the changed record is another remote: a running upload ends.
    remotes.change(call.name, take)
    with remote_keys.alone_with(data_dir, call.name):
        seal = opened.key.seal
        return collector.erase(opened.bucket, seal, opened.seen, call.session)


def _everything(call: RemoteCall, remotes: Remotes) -> Erasure:
    data_dir = Path(call.data_dir)
    # A paused remote makes the daemon end the running upload; it starts no other by itself.
    remote = remotes.change(call.name, lambda one: msgspec.structs.replace(one, paused=True))
    with remote_keys.alone_with(data_dir, call.name):
        bucket = _bucket(call, remote)
        before = [*_ours(bucket)]
        store_key.destroy(bucket)
        left = _delete(bucket)
        if not left:
            # The key goes last: while it exists, no client thinks that the place is empty.
            left = bucket.delete([store_key.NAME])
        if not left:
            bucket.forget_lock()
            remotes.remove(call.name)
            remote_keys.forget(data_dir, call.name)
    sizes = {one.name: one.size for one in before}
    packs = sum(map(pack_refs.is_name, sizes.keys() - left))
    freed = sum(sizes.values()) - sum(sizes.get(one, 0) for one in left)
    manifests = sum(remote_manifests.snapshot_of(one) is not None for one in sizes)
    return Erasure(manifests, packs, 0, freed, len(left))


def _delete(bucket: Bucket) -> list[str]:
    """Delete all objects but the key; return the names of those that the remote refuses to delete."""
    left: list[str] = []
    for _ in range(_ROUNDS):
        names = [one.name for one in _ours(bucket) if one.name != store_key.NAME]
        if not names:
            return []
        slices = [names[start::_AT_ONCE] for start in range(_AT_ONCE)]
        with ThreadPoolExecutor(_AT_ONCE, "erase") as pool:
            left = [one for refused in pool.map(bucket.delete, slices) for one in refused]
        if left:
            break
    return left


def _ours(bucket: Bucket) -> Iterator[ListedObject]:
    for folder in _FOLDERS:
        yield from bucket.list(folder)
    for name in (epochs.NAME, store_key.NAME):
        if found := bucket.head(name):
            yield found


def _bucket(call: RemoteCall, remote: Remote) -> Bucket:
    lock_dir = Path(call.data_dir) / "remotes"
    return open_bucket(remote, retries=Retries.while_somebody_waits(), lock_dir=lock_dir)


def _one(named: str, known: list[RemoteSession], remote: str) -> RemoteSession:
    """Return the remote session with this id, notebook path or snapshot id; unique prefixes of ids suffice."""

    def by(names: dict[str, RemoteSession]) -> list[RemoteSession]:
        exact = [one for name, one in names.items() if name == named]
        return exact or [one for name, one in names.items() if name.startswith(named)]

    ids = by({one.facts.session_id: one for one in known})
    paths = [one for one in known if one.facts.path == named]
    owners = by({each.snapshot_id: one for one in known for each in one.listed})
    found = {one.facts.session_id: one for one in ids or paths or owners}
    if len(found) > 1:
        raise ConfigurationError(
            f"{named[:200]!r} means {len(found)} sessions: {', '.join(sorted(found)[:8])}.",
            hint="Give the id of one.",
        )
    if not found:
        raise SnapshotNotFound(
            f"Remote {remote} has no session {named[:200]!r}.",
            hint=f"`jupyter gpuckpt remote sessions {remote}` lists what is there; a session is named by the id of one of its"
            " snapshots, its notebook's path, or its own id.",
        )
    return next(iter(found.values()))


def _shown(one: RemoteSession) -> SessionToErase:
    stored = sum(each.stored_bytes for each in one.listed)
    return SessionToErase(
        one.facts.session_id, one.facts.path, one.facts.host_name, len(one.listed), stored
    )
