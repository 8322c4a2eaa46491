"""Far sessions: a notebook's snapshots, as other machines see them, in one swapped object for each.

It is written last of all: what it names is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from ... import ids
from ...errors import ConfigurationError, FarObjectMissing, StoreUnavailable
from ..codecs import DIGEST_BYTES
from ..manifest_checks import is_time
from .buckets import Bucket, Version
from .far_manifests import is_name as is_manifest_name
from .sealing import Seal, invalid
from .seen import Seen

FOLDER = "sessions"
_MOST_BYTES = 8 << 20
_ATTEMPTS = 50

#: Of one text that is written here.
MOST_TEXT = 4096
Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]


class FarSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of a far session. `manifest`: the object; `digest`: BLAKE3 of it as it lies there."""

    snapshot_id: Text
    kernel_id: Text
    manifest: Text
    digest: bytes
    created: float
    title: Text = ""
    raw_bytes: int = 0
    stored_bytes: int = 0
    #: Seconds since the epoch; 0: it is there. A tombstone stays until the collector has removed what only it needed.
    deleted_at: float = 0.0


class Facts(msgspec.Struct, frozen=True):
    """What a far session is found by: whose it is and where its notebook lies."""

    session_id: Text
    hub_user: Text = ""
    server_name: Text = ""
    #: Relative to the server's root.
    path: Text = ""
    title: Text = ""
    host_name: Text = ""


class FarSession(msgspec.Struct, frozen=True):
    """A far session. `generation` grows by one with every change."""

    facts: Facts
    generation: Annotated[int, msgspec.Meta(ge=1)]
    snapshots: list[FarSnapshot] = []

    @property
    def listed(self) -> list[FarSnapshot]:
        """The snapshots that are not deleted, newest first."""
        there = [one for one in self.snapshots if not one.deleted_at]
        return sorted(there, key=lambda one: one.created, reverse=True)


class Sessions:
    """The far sessions of a store."""

    def __init__(self, bucket: Bucket, seal: Seal, seen: Seen) -> None:
        self._bucket, self._seal, self._seen = bucket, seal, seen

    def get(self, session_id: str) -> FarSession:
        """Return a far session. Raises FarObjectMissing, FarObjectInvalid, FormatTooNew."""
        return self._read(name_of(session_id))[0]

    def ids(self) -> list[str]:
        """Return the ids of those that the remote lists."""
        found = (one.name.partition("/")[2] for one in self._bucket.list(FOLDER))
        return sorted(one for one in found if ids.is_id(one))

    def add(self, facts: Facts, snapshot: FarSnapshot) -> FarSession:
        """List a snapshot, in place of an earlier upload of the same one. The facts of the newest one count."""

        def add(session: FarSession) -> FarSession:
            others = [one for one in session.snapshots if one.snapshot_id != snapshot.snapshot_id]
            is_newest = all(one.created <= snapshot.created for one in others)
            return msgspec.structs.replace(
                session,
                facts=facts if is_newest else session.facts,
                snapshots=[*others, snapshot],
            )

        return self._change(facts, add)

    def mark_deleted(self, session_id: str, snapshot_id: str, now: float) -> FarSession:
        """Delete a snapshot for all machines; nothing to do where it is not, or is already."""

        def mark(session: FarSession) -> FarSession:
            marked = [
                msgspec.structs.replace(one, deleted_at=now)
                if one.snapshot_id == snapshot_id and not one.deleted_at
                else one
                for one in session.snapshots
            ]
            return msgspec.structs.replace(session, snapshots=marked)

        return self._change(self.get(session_id).facts, mark)

    def forget_deleted(self, session_id: str, manifests: set[str]) -> None:
        """Drop tombstones whose manifests are gone."""

        def forget(session: FarSession) -> FarSession:
            left = [
                one
                for one in session.snapshots
                if not (one.deleted_at and one.manifest in manifests)
            ]
            return msgspec.structs.replace(session, snapshots=left)

        self._change(self.get(session_id).facts, forget)

    def _change(self, facts: Facts, change: Callable[[FarSession], FarSession]) -> FarSession:
        """Change a far session on top of whatever others make of it meanwhile. `change` must bear being done twice."""
        name = name_of(facts.session_id)
        for _ in range(_ATTEMPTS):
            try:
                before, version = self._read(name)
            except FarObjectMissing:
                made = change(FarSession(facts, 1))
                if self._bucket.create(name, self._seal.seal_record(name, made)):
                    self._seen.check(name, made.generation, 0)
                    return made
                continue
            after = change(before)
            if after == before:
                return before
            after = msgspec.structs.replace(after, generation=before.generation + 1)
            if self._bucket.swap(name, self._seal.seal_record(name, after), version):
                self._seen.check(name, after.generation, 0)
                return after
        raise StoreUnavailable(f"{name} in remote {self._bucket.name} changes all the time.")

    def _read(self, name: str) -> tuple[FarSession, Version]:
        newest = self._seen.newest(name)
        stored = self._bucket.get(name, most_bytes=_MOST_BYTES)
        session = self._seal.open_record(name, stored.data, FarSession)
        if f"{FOLDER}/{session.facts.session_id}" != name or not all(
            map(_sound, session.snapshots)
        ):
            raise invalid(name, "it does not make sense")
        self._seen.check(name, session.generation, newest)
        return session, stored.version


def name_of(session_id: str) -> str:
    """Return the name of a far session's object. Raises ConfigurationError for what cannot be an id."""
    if not ids.is_id(session_id):
        raise ConfigurationError(f"{session_id[:200]!r} is not the id of a session.")
    return f"{FOLDER}/{session_id}"


def _sound(one: FarSnapshot) -> bool:
    return (
        ids.is_id(one.snapshot_id)
        and ids.is_id(one.kernel_id)
        and is_manifest_name(one.manifest, one.snapshot_id)
        and len(one.digest) == DIGEST_BYTES
        and is_time(one.created)
        and is_time(one.deleted_at)
        and one.raw_bytes >= 0
        and one.stored_bytes >= 0
    )
