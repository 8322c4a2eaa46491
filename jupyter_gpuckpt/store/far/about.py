"""What the retention of a remote must know of a snapshot that a far session lists, and how a machine's later changes get there.

Each machine sends only what has changed there since it last told the remote, so that it does not undo another machine's pin.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ...manifest_records import Cause, SnapshotInfo

_MAX_TITLE_CHARACTERS = 4096
_Word = Annotated[str, msgspec.Meta(max_length=40)]


class About(msgspec.Struct, frozen=True):
    """The cause and kind of a snapshot (as in `SnapshotInfo`), whether it is pinned, and whether a user gave it a title or note."""

    cause: _Word
    reason: _Word
    pinned: bool
    named: bool

    @property
    def known_cause(self) -> Cause | None:
        """Return the cause; None if only newer versions know it."""
        return Cause(self.cause) if self.cause in set(Cause) else None


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a snapshot on one machine, as it was or will be told to a remote.

    `relied_on_in`: the far session with the copy of the snapshot that this machine relies on; empty if it relies on none. `store`: the
    identity of the local store that has the rest of the snapshot then. `pinned_there`: the pin came from another machine by the remote.
    """

    pinned: bool = False
    named: bool = False
    title: str = ""
    relied_on_in: str = ""
    store: str = ""
    pinned_there: bool = False


class Deletion(msgspec.Struct, frozen=True):
    """The deletion of a snapshot by a user of this machine.

    `terms`: by far session the term of the last lease that this machine had of it. `unpinned`: whether the user ended the pin that this
    machine had told. Other pins prevent the deletion, because an entry does not say which machines have pinned the snapshot.
    `was_relied_on`: whether the store in which it was deleted relied on it.
    """

    terms: dict[str, int] = {}
    unpinned: bool = False
    was_relied_on: bool = False


class Amendment(msgspec.Struct, frozen=True):
    """A change of a snapshot that a far session has to be told. `sessions`: those that may list it, the likeliest first.

    `before`: what this machine told last; None if that is not known. `about`: None if this machine has the snapshot no longer.
    `title`: what the user has called it. `deletion`: that the user has deleted it here; None if not.
    """

    snapshot_id: str
    sessions: list[str]
    before: Told | None
    now: Told
    about: About | None = None
    title: str = ""
    deletion: Deletion | None = None


def about(info: SnapshotInfo) -> About:
    """Return what retention must know of a snapshot."""
    return About(str(info.cause), info.reason, info.pinned, bool(info.title or info.note))


def title_of(info: SnapshotInfo) -> str:
    """Return the title by which remotes list a snapshot."""
    return (info.title or info.name)[:_MAX_TITLE_CHARACTERS]


def told(info: SnapshotInfo, relied_on_in: str = "", store: str = "") -> Told:
    """Return the present state of a snapshot of this machine."""
    now = about(info)
    return Told(now.pinned, now.named, title_of(info), relied_on_in, store)


def amended(known: About | None, change: Amendment) -> About | None:
    """Return what a far session has to say of a snapshot after a change. What others have told stays, unless this change differs.

    If an older version uploaded the snapshot and said nothing of it, nothing is added: another machine cannot know whether the one that
    uploaded it has pinned it, so retention keeps it.
    """
    before, now = change.before, change.now
    if change.about is None or known is None:
        return known
    if before is None:
        # What was told before is not known, so only what protects the snapshot is told.
        before = Told()
    return msgspec.structs.replace(
        known,
        pinned=now.pinned if now.pinned != before.pinned else known.pinned,
        named=now.named if now.named != before.named else known.named,
    )
