"""Remote sessions: one object per notebook, replaced by compare-and-swap, that lists the notebook's snapshots for other machines.

An upload changes it last, so every snapshot that it lists is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated

import msgspec

from ..errors import ConfigurationError, RemoteObjectMissing, SessionLost, StoreUnavailable
from ..store.codecs import DIGEST_BYTES
from ..store.manifest_checks import is_time
from ..wire import ids
from ..wire.snapshot_order import MAX_ARRIVING_NUMBER, MAX_NUMBER
from .listed_facts import About, Amendment, amended
from .objects import Objects, Remembering, Sealing, Version
from .remote_manifests import snapshot_of
from .sealing import invalid

FOLDER = "sessions"
_MAX_SESSION_BYTES = 8 << 20
_ATTEMPTS = 50

#: The hint for a machine that has lost the lease of a session.
BRANCHED = (
    "The kernel on this machine continues as a branch, in a session of its own. Nothing is lost."
)
#: The most characters of a text in a remote session.
MAX_TEXT_CHARACTERS = 4096
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARACTERS)]


class RemoteSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of a remote session. `manifest`: the name of its manifest's object; `digest`: the BLAKE3 of that object's content."""

    snapshot_id: Text
    kernel_id: Text
    manifest: Text
    digest: bytes
    created: float
    title: Text = ""
    raw_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    stored_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    #: When it was deleted, in seconds since 1970; 0 if it was not. This tombstone stays until the collector has removed its manifest.
    deleted_at: float = 0.0
    about: About = About()
    #: The machines that have its content nowhere else, by their ids, with their host names. Retention keeps it.
    relied_on_by: dict[Text, Text] = {}
    #: The id of the machine that uploaded it.
    machine_id: Text = ""
    #: The term of the session in which it was made (0: before any lease), and its number (`snapshot_order.py`).
    term: Annotated[int, msgspec.Meta(ge=0)] = 0
    number: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)] = 0

    @property
    def place(self) -> tuple[int, int, float, str]:
        """The sort key of the snapshots of one session. Clocks of machines differ, so times come last."""
        return self.term, self.number, self.created, self.snapshot_id


class Facts(msgspec.Struct, frozen=True):
    """The facts by which users find a remote session: its owner and the path of its notebook."""

    session_id: Text
    hub_user: Text = ""
    server_name: Text = ""
    #: Relative to the server's root.
    path: Text = ""
    title: Text = ""
    host_name: Text = ""


class Lease(msgspec.Struct, frozen=True):
    """The right of one daemon to run a remote session. `since`: by that daemon's own clock, for people only."""

    daemon_id: Text
    host_name: Text = ""
    since: float = 0.0


class Tenure(msgspec.Struct, frozen=True):
    """A daemon's own record of a lease, which is valid while the remote session names the same daemon and term."""

    daemon_id: str
    term: int
    #: The highest number of a snapshot in the remote session when the lease was granted.
    highest: int = 0


class RemoteSession(msgspec.Struct, frozen=True):
    """A remote session. `generation` grows by one with every change."""

    facts: Facts
    generation: Annotated[int, msgspec.Meta(ge=1)]
    snapshots: list[RemoteSnapshot] = []
    #: Manifests that must not be listed again because an erasure removes them. An upload that still runs may not know this yet.
    erased: list[Text] = []
    #: None if no machine runs the session.
    lease: Lease | None = None
    #: A fencing token: the number of leases granted so far. It does not change when a lease ends.
    term: Annotated[int, msgspec.Meta(ge=0)] = 0
    #: When a user moved it here for another machine, in seconds since 1970; 0 if that was not done, or a machine has taken it since.
    moved_at: float = 0.0

    @property
    def listed(self) -> list[RemoteSnapshot]:
        """Return the snapshots that are not deleted, newest first."""
        there = (one for one in self.snapshots if not one.deleted_at)
        return sorted(there, key=lambda one: one.place, reverse=True)

    @property
    def highest(self) -> int:
        """Return the highest number of a snapshot, even of a deleted one; one that another machine could not continue is left out."""
        numbers = (one.number for one in self.snapshots)
        return max((one for one in numbers if one <= MAX_ARRIVING_NUMBER), default=0)


class ManifestErased(Exception):  # noqa: N818 - an event
    """The manifest that an upload lists was erased before."""


class Sessions:
    """The remote sessions of a store."""

    def __init__(self, bucket: Objects, seal: Sealing, seen: Remembering) -> None:
        self._bucket, self._seal, self._seen = bucket, seal, seen

    def get(self, session_id: str) -> RemoteSession:
        """Return a remote session. Raises RemoteObjectMissing, RemoteObjectInvalid, FormatTooNew."""
        return self._read(name_of(session_id))[0]

    def ids(self) -> list[str]:
        """Return the ids of all remote sessions."""
        found = (one.name.partition("/")[2] for one in self._bucket.list(FOLDER))
        return sorted(one for one in found if ids.is_id(one))

    def add(
        self,
        facts: Facts,
        snapshot: RemoteSnapshot,
        tenure: Tenure | None = None,
        thinned: Callable[[RemoteSession], RemoteSession] = lambda session: session,
    ) -> RemoteSession:
        """List a snapshot; it replaces an earlier upload of the same snapshot. The session keeps the facts of its newest snapshot.

        `tenure`: the caller's lease of the session, or None. `thinned`: returns the session without what is not kept beside the new
        snapshot. Raises SessionLost if another daemon has held the lease since, ManifestErased, and the errors of `Bucket`.
        """

        def add(session: RemoteSession) -> RemoteSession:
            if tenure is not None:
                require(session, tenure)
            if snapshot.manifest in session.erased:
                raise ManifestErased
            others = [one for one in session.snapshots if one.snapshot_id != snapshot.snapshot_id]
            is_newest = all(one.place <= snapshot.place for one in others)
            # Nothing else would name the manifest of a replaced tombstone for the collector.
            old = {
                one.manifest
                for one in session.snapshots
                if one.deleted_at and one not in others and one.manifest != snapshot.manifest
            }
            after = msgspec.structs.replace(
                session,
                facts=facts if is_newest else session.facts,
                snapshots=[*others, _as_known(snapshot, session)],
                erased=_and(session.erased, old) if old else session.erased,
            )
            return thinned(after)

        return self._change(facts, add)

    def amend(
        self, session_id: str, changes: Mapping[str, Amendment], machine: tuple[str, str]
    ) -> set[str]:
        """Change what a remote session says of its snapshots, given by id; return the ids of those that it lists.

        `machine`: the id and host name of this machine. Raises RemoteObjectMissing.
        """

        def amend(session: RemoteSession) -> RemoteSession:
            snapshots, facts = [], session.facts
            for one in session.snapshots:
                change = changes.get(one.snapshot_id)
                if change is None or one.deleted_at:
                    snapshots.append(one)
                    continue
                snapshots.append(msgspec.structs.replace(one, **amended(one, change, machine)))
                if change.renames and one == session.listed[0]:
                    facts = msgspec.structs.replace(facts, title=change.title)
            return msgspec.structs.replace(session, facts=facts, snapshots=snapshots)

        after = self.change(session_id, amend)
        return {one.snapshot_id for one in after.listed} & changes.keys()

    def forget_deleted(self, session_id: str, manifests: set[str]) -> None:
        """Remove the tombstones of snapshots whose manifests were removed. Raises RemoteObjectMissing."""

        def forget(session: RemoteSession) -> RemoteSession:
            left = [
                one
                for one in session.snapshots
                if not (one.deleted_at and one.manifest in manifests)
            ]
            return msgspec.structs.replace(session, snapshots=left)

        self.change(session_id, forget)

    def lists(self, session_id: str, manifest: str) -> bool:
        """Return whether a remote session lists a manifest now."""
        return any(one.manifest == manifest for one in self.get(session_id).listed)

    def empty(self, session_id: str, manifests: set[str]) -> RemoteSession:
        """Empty a remote session, and erase its manifests and `manifests`; return the session as it was.

        The object stays to keep its generation: a machine that has seen it would refuse a new one as a rollback.
        """
        before = RemoteSession(Facts(session_id), 1)

        def empty(session: RemoteSession) -> RemoteSession:
            nonlocal before
            before = session if session.snapshots else before
            names = {one.manifest for one in session.snapshots} | manifests
            return RemoteSession(
                Facts(session_id),
                session.generation,
                erased=_and(session.erased, names),
                term=session.term,
            )

        self._change(Facts(session_id), empty)
        return before

    def erase(self, session_id: str, manifests: set[str]) -> set[str]:
        """Erase those of these manifests that the remote session does not list; return all of them that are erased now."""

        def erase(session: RemoteSession) -> RemoteSession:
            names = manifests.difference(one.manifest for one in session.snapshots)
            return msgspec.structs.replace(session, erased=_and(session.erased, names))

        return manifests.intersection(self._change(Facts(session_id), erase).erased)

    def replace(self, session_id: str, others: Mapping[str, tuple[str, bytes]]) -> RemoteSession:
        """Replace manifests of listed snapshots by others, given by name and digest, and erase those of both that are not listed then.

        A manifest whose replacement was erased meanwhile stays listed.
        """

        def replace(session: RemoteSession) -> RemoteSession:
            snapshots = []
            for one in session.snapshots:
                name, digest = others.get(one.manifest, (one.manifest, one.digest))
                is_erased = name in session.erased
                new = msgspec.structs.replace(one, manifest=name, digest=digest)
                snapshots.append(one if is_erased else new)
            names = {*others, *(name for name, _ in others.values())}
            erased = _and(session.erased, names.difference(one.manifest for one in snapshots))
            return msgspec.structs.replace(session, snapshots=snapshots, erased=erased)

        return self.change(session_id, replace)

    def begin(self, facts: Facts, term: int, lease: Lease | None = None) -> RemoteSession:
        """Create a remote session without snapshots, unless it is there already; return it."""
        name = name_of(facts.session_id)
        # Above the generations of a lost object, which every machine that has seen it would take for newer.
        generation = self._seen.newest(name) + 1
        new = RemoteSession(facts, generation, lease=lease, term=term)
        while not self._bucket.create(name, self._seal.seal_record(name, new)):
            with suppress(RemoteObjectMissing):
                return self.get(facts.session_id)
        return new

    def change(
        self, session_id: str, change: Callable[[RemoteSession], RemoteSession]
    ) -> RemoteSession:
        """Change a remote session, and return it. One that is missing, because it was erased, is not created anew.

        Raises RemoteObjectMissing, and the errors of `change`.
        """
        return self._change(Facts(session_id), change, creates=False)

    def rewrite(
        self, session_id: str, change: Callable[[RemoteSession], RemoteSession]
    ) -> RemoteSession:
        """Write a new version of a remote session, even if `change` returns it unchanged, so that swaps of older versions fail.

        Raises RemoteObjectMissing if the session does not exist, and the errors of `change`.
        """
        return self._change(Facts(session_id), change, creates=False, always=True)

    def _change(
        self,
        facts: Facts,
        change: Callable[[RemoteSession], RemoteSession],
        *,
        creates: bool = True,
        always: bool = False,
    ) -> RemoteSession:
        """Apply `change` to the newest version of a remote session. `change` must be idempotent: it is repeated after a lost race.

        With `creates` a missing session is created, otherwise it is an error. An unchanged one is written only with `always`.
        """
        name = name_of(facts.session_id)
        for _ in range(_ATTEMPTS):
            try:
                before, version = self._read(name)
            except RemoteObjectMissing:
                if not creates:
                    raise
                # As in `begin`.
                made = change(RemoteSession(facts, self._seen.newest(name) + 1))
                if self._bucket.create(name, self._seal.seal_record(name, made)):
                    self._seen.check(name, made.generation, 0)
                    return made
                continue
            after = change(before)
            if after == before and not always:
                return before
            after = msgspec.structs.replace(after, generation=before.generation + 1)
            if self._bucket.swap(name, self._seal.seal_record(name, after), version):
                self._seen.check(name, after.generation, 0)
                return after
        raise StoreUnavailable(f"Other machines keep changing {name} in {self._bucket.name}.")

    def _read(self, name: str) -> tuple[RemoteSession, Version]:
        newest = self._seen.newest(name)
        try:
            stored = self._bucket.get(name, max_bytes=_MAX_SESSION_BYTES)
        except RemoteObjectMissing as error:
            if not newest:
                raise
            raise RemoteObjectMissing(
                f"{name} was deleted in remote {self._bucket.name}, which no longer lists its snapshots.",
                hint="Upload them again from a machine that has them.",
                command="`jupyter gpuckpt remote upload` does that.",
            ) from error
        session = self._seal.open_record(name, stored.data, RemoteSession)
        if (
            f"{FOLDER}/{session.facts.session_id}" != name
            or not all(map(_is_sound_snapshot, session.snapshots))
            or not all(map(snapshot_of, session.erased))
            or not (session.lease is None or _is_sound(session.lease))
            or not is_time(session.moved_at)
        ):
            raise invalid(name, "its name or an entry in it is impossible")
        self._seen.check(name, session.generation, newest)
        return session, stored.version


def name_of(session_id: str) -> str:
    """Return the name of a remote session's object. Raises ConfigurationError for an invalid id."""
    if not ids.is_id(session_id):
        raise ConfigurationError(f"{session_id[:200]!r} is not the id of a session.")
    return f"{FOLDER}/{session_id}"


def named(session: RemoteSession) -> str:
    """Return by which notebook users know a remote session, to follow the word session; empty if it has none."""
    path = session.facts.path
    return f" of {path}" if path else ""


def require(session: RemoteSession, tenure: Tenure) -> None:
    """Raise SessionLost if another daemon got a lease of the remote session after `tenure` was granted."""
    lease = session.lease
    if session.term == tenure.term and (lease is None or lease.daemon_id == tenure.daemon_id):
        return
    whom = f"machine {lease.host_name or lease.daemon_id}" if lease else "another machine"
    raise SessionLost(
        f"The session{named(session)} was taken over by {whom}.",
        hint=BRANCHED,
    )


def _and(erased: list[str], names: set[str]) -> list[str]:
    return sorted({*erased, *names})


def _as_known(snapshot: RemoteSnapshot, session: RemoteSession) -> RemoteSnapshot:
    """Return a new upload of a snapshot, with what is listed of it already."""
    for one in session.listed:
        if one.snapshot_id == snapshot.snapshot_id:
            return msgspec.structs.replace(
                snapshot, about=one.about, relied_on_by=one.relied_on_by | snapshot.relied_on_by
            )
    return snapshot


def _is_sound(lease: Lease) -> bool:
    return ids.is_id(lease.daemon_id) and is_time(lease.since)


def _is_sound_snapshot(snapshot: RemoteSnapshot) -> bool:
    return (
        ids.is_id(snapshot.snapshot_id)
        and ids.is_id(snapshot.kernel_id)
        and snapshot_of(snapshot.manifest) == snapshot.snapshot_id
        and len(snapshot.digest) == DIGEST_BYTES
        and is_time(snapshot.created)
        and is_time(snapshot.deleted_at)
    )
