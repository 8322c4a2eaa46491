"""The identity of a pack's file, and how much two identities tell about whether it is the same file."""

from __future__ import annotations

import os
from enum import IntEnum

import msgspec

from ..wire.deadlines import boot_id


class Trust(IntEnum):
    """How much a pack can be relied on without reading it, the least first."""

    #: Its time of modification differs: something has written to it, or replaced it. Or it may not be read any more.
    CHANGED = 0
    #: Its length and time of modification are the same, but it may be a copy, or the time was set back after a change: its inode or
    #: its time of change of status differs, as after hard links, backups and chmod, too. Or nothing is known of it.
    UNREAD = 1
    #: It is the file that was written or read last.
    SAME = 2


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """The identity of a file. `modified`, `changed`: its times in nanoseconds. A device has the same number only within one boot."""

    length: int
    modified: int
    changed: int
    inode: int
    device: int
    boot: str

    @classmethod
    def of(cls, facts: os.stat_result) -> Identity:
        """Return the identity of the file with these facts."""
        times = (facts.st_mtime_ns, facts.st_ctime_ns)
        return cls(facts.st_size, *times, facts.st_ino, facts.st_dev, boot_id())

    def trust(self, before: Identity | None) -> Trust:
        """Return how much a file with this identity can be relied on if it had the identity `before`; None: it is not known."""
        if before is None:
            return Trust.UNREAD
        if (self.length, self.modified) != (before.length, before.modified):
            return Trust.CHANGED
        same_device = self.device == before.device or self.boot != before.boot
        is_same = same_device and (self.inode, self.changed) == (before.inode, before.changed)
        return Trust.SAME if is_same else Trust.UNREAD
