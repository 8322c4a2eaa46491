"""The roots of garbage collection: all manifests of a remote, whether remote sessions list them or not. Their packs must not be removed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..errors import RemoteObjectMissing, StoreUnavailable
from . import remote_manifests
from .buckets import Bucket
from .remote_manifests import RemoteManifest
from .remote_sessions import Sessions
from .sealing import Seal
from .seen import Seen

_ATTEMPTS = 20

_Fact = TypeVar("_Fact")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Roots(Generic[_Fact]):
    """The manifests whose packs must stay, by name, each with the value that `want` returned for it."""

    #: Each value comes with the id of the remote session that lists the manifest.
    listed: dict[str, tuple[str, _Fact]]
    unlisted: dict[str, _Fact]
    #: By remote session: manifests of deleted snapshots, and erased manifests whose objects still exist.
    gone: dict[str, set[str]]
    #: When the snapshots of deleted manifests were deleted, by the clock of the machine that did it.
    deleted_at: dict[str, float]

    @property
    def all(self) -> list[_Fact]:
        """Return the values of all manifests in `listed` and `unlisted`."""
        return [*(fact for _, fact in self.listed.values()), *self.unlisted.values()]


def read(
    bucket: Bucket,
    seal: Seal,
    seen: Seen,
    want: Callable[[RemoteManifest], _Fact],
    read_before: Mapping[str, _Fact] | None = None,
) -> Roots[_Fact]:
    """Read all manifests, found by listing the remote and in remote sessions; keep what `want` returns for each.

    `read_before`: the values of manifests that were read before; manifests never change. A lost manifest is logged and left out.
    Raises RemoteObjectInvalid, FormatTooNew, AccessDenied, StoreUnavailable, OperationCancelled.
    """
    sessions, known = Sessions(bucket, seal, seen), dict(read_before or {})
    for _ in range(_ATTEMPTS):
        listed, gone, deleted_at = _named(sessions)
        there = {one.name for one in bucket.list(remote_manifests.FOLDER)}
        gone = {one: (deleted, erased & there) for one, (deleted, erased) in gone.items()}
        without = {name for both in gone.values() for names in both for name in names}
        unlisted = (
            {one for one in there if remote_manifests.snapshot_of(one)} - without - set(listed)
        )
        missing = set()
        for name in sorted({*listed, *unlisted} - known.keys()):
            try:
                known[name] = want(remote_manifests.read(bucket, seal, name))
            except RemoteObjectMissing:
                missing.add(name)  # its upload may just have replaced an unlisted manifest
        lost = missing & listed.keys()
        # A remote session may meanwhile list another manifest in place of a missing one. That manifest was not read yet.
        if all(sessions.lists(listed[name], name) for name in lost):
            break
    else:
        raise StoreUnavailable(
            f"The sessions of remote {bucket.name} changed {_ATTEMPTS} times while they were read.",
            hint="Try again.",
        )
    for name in sorted(lost):
        _log.warning("%s is lost: its snapshot cannot be fetched.", name)
    return Roots(
        {name: (listed[name], known[name]) for name in listed if name in known},
        {name: known[name] for name in unlisted if name in known},
        {one: deleted | erased for one, (deleted, erased) in gone.items() if deleted | erased},
        deleted_at,
    )


def _named(
    sessions: Sessions,
) -> tuple[dict[str, str], dict[str, tuple[set[str], set[str]]], dict[str, float]]:
    """Return the remote session of each listed manifest, by remote session the deleted and the erased ones, and the times of deletions."""
    listed: dict[str, str] = {}
    gone, deleted_at = {}, dict[str, float]()
    for session_id in sessions.ids():
        session = sessions.get(session_id)
        listed |= {one.manifest: session_id for one in session.snapshots if not one.deleted_at}
        deleted = {one.manifest for one in session.snapshots if one.deleted_at}
        deleted_at |= {one.manifest: one.deleted_at for one in session.snapshots if one.deleted_at}
        gone[session_id] = deleted, set(session.erased)
    return listed, gone, deleted_at
