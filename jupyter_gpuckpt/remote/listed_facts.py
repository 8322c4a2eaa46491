"""The facts about a listed snapshot that a remote's retention needs, and how a machine's later changes reach the remote.

Each machine sends only what has changed on it since it last sent changes. If several change the same, the last change stays.
"""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec

from ..wire.manifest_records import Cause, SnapshotInfo

_MAX_TITLE_CHARACTERS = 4096
_Word = Annotated[str, msgspec.Meta(max_length=40)]


class About(msgspec.Struct, frozen=True):
    """The cause and kind of a snapshot (as in `SnapshotInfo`), whether it is pinned, and whether a user gave it a title or note."""

    cause: _Word = ""
    reason: _Word = ""
    pinned: bool = False
    named: bool = False

    @property
    def known_cause(self) -> Cause | None:
        """Return the cause; None if only newer versions know it."""
        return Cause(self.cause) if self.cause in set(Cause) else None


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a snapshot on one machine, as it was or will be sent to a remote.

    `relied_on_in`: the remote session with the copy of the snapshot that this machine relies on; empty if it relies on none. `store`: the
    identity of the local store that has the rest of the snapshot then.
    """

    pinned: bool = False
    named: bool = False
    title: str = ""
    relied_on_in: str = ""
    store: str = ""


class Deletion(msgspec.Struct, frozen=True):
    """The deletion of a snapshot by a user of this machine.

    `terms`: the term of this machine's last lease of each remote session. `unpinned`: whether the user ended the pin that this machine had
    sent. Another pin prevents the deletion.
    `was_relied_on`: whether the store in which it was deleted relied on it.
    """

    terms: dict[str, int] = {}
    unpinned: bool = False
    was_relied_on: bool = False


class Amendment(msgspec.Struct, frozen=True):
    """A change of a snapshot to be sent to a remote session. `sessions`: those that may list it, the likeliest first.

    `before`: what this machine sent last; None if that is not known. `about`: None if this machine no longer has the snapshot.
    `title`: the user's title. `deletion`: the deletion of the snapshot by the user; None if it was not deleted.
    """

    snapshot_id: str
    sessions: list[str]
    before: Told | None
    now: Told
    about: About | None = None
    title: str = ""
    deletion: Deletion | None = None

    @property
    def renames(self) -> bool:
        """Whether the user has changed the title since this machine sent it."""
        return self.before is not None and self.before.title != self.now.title


class Entry(Protocol):
    """What a remote session says of a snapshot."""

    @property
    def title(self) -> str:
        """The title by which it is listed."""

    @property
    def about(self) -> About:
        """The facts that retention needs."""

    @property
    def relied_on_by(self) -> dict[str, str]:
        """The machines that have its content nowhere else, by their ids, with their host names."""


def about(info: SnapshotInfo) -> About:
    """Return the facts about a snapshot that retention needs."""
    return About(str(info.cause), info.reason, info.pinned, bool(info.title or info.note))


def title_of(info: SnapshotInfo) -> str:
    """Return the title by which remotes list a snapshot."""
    return (info.title or info.name)[:_MAX_TITLE_CHARACTERS]


def told(info: SnapshotInfo, relied_on_in: str = "", store: str = "") -> Told:
    """Return the present state of a snapshot of this machine."""
    now = about(info)
    return Told(now.pinned, now.named, title_of(info), relied_on_in, store)


def amended(one: Entry, change: Amendment, machine: tuple[str, str]) -> dict[str, object]:
    """Return the fields of a snapshot's entry in a remote session after a change by `machine`, given by its id and host name.

    A change replaces only what it changes itself.
    """
    others = {name: host for name, host in one.relied_on_by.items() if name != machine[0]}
    # If it is not known what was sent before, only changes that protect the snapshot are sent.
    before, now, facts = change.before or Told(), change.now, one.about
    if change.about is not None:
        facts = msgspec.structs.replace(
            facts,
            pinned=now.pinned if now.pinned != before.pinned else facts.pinned,
            named=now.named if now.named != before.named else facts.named,
        )
    return {
        "title": now.title if change.renames else one.title,
        "about": facts,
        "relied_on_by": others | dict([machine] if now.relied_on_in else []),
    }
