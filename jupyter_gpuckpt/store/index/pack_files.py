"""What is known of the files of packs: their identity when they were written or read in full last.

Covers: identities, their place in the database, the comparison. Does not cover: what follows from a difference (pack_checks.py).

The memory of this process has a copy, from which a rebuilt database gets its rows. Without an identity a pack counts as unread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from contextlib import suppress

import msgspec

from ...wire import decoding
from ..pack_identity import Identity, Trust
from .database import sealed, unsealed


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a pack's file. `checked_at`: when it was written or read; `damaged`: how many of its chunks were found damaged."""

    identity: Identity
    checked_at: float
    damaged: int = 0


class PackFiles:
    """The facts of all packs of a store. Methods with a connection are called in a turn of the database."""

    def __init__(self) -> None:
        self._known: dict[str, Facts] = {}
        self._is_loaded = False

    def load(self, connection: sqlite3.Connection) -> None:
        """Read the facts from the database, or write them to one that was rebuilt: it does not know any more which chunks are damaged."""
        if not self._is_loaded:
            self._is_loaded = True
            for name, data in connection.execute("SELECT name, facts FROM files"):
                found = unsealed(name, data)
                if found is not None:
                    with suppress(msgspec.DecodeError):  # facts of another version
                        self._known[name] = decoding.from_msgpack(found, Facts)
            return
        self._known = {name: facts for name, facts in self._known.items() if not facts.damaged}
        connection.execute("DELETE FROM files")
        for name, facts in self._known.items():
            self.note(connection, name, facts)

    def find(self, name: str) -> Facts | None:
        """Return what is known of a pack's file."""
        return self._known.get(name)

    def trust(self, name: str, identity: Identity) -> Trust:
        """Return how much a pack whose file has this identity now can be relied on."""
        facts = self._known.get(name)
        return identity.trust(facts.identity if facts else None)

    def note(self, connection: sqlite3.Connection, name: str, facts: Facts) -> None:
        """Record the facts of a pack's file."""
        self._known[name] = facts
        row = (name, sealed(name, msgspec.msgpack.encode(facts)))
        connection.execute("INSERT OR REPLACE INTO files VALUES (?, ?)", row)

    def note_damage(self, connection: sqlite3.Connection, names: Collection[str]) -> None:
        """Record that another chunk of these packs was found damaged."""
        for name in names:
            if (facts := self._known.get(name)) is not None:
                more = msgspec.structs.replace(facts, damaged=facts.damaged + 1)
                self.note(connection, name, more)

    def forget(self, connection: sqlite3.Connection, names: Collection[str]) -> None:
        """Delete the facts of packs that are gone, or whose files are others."""
        self.drop(names)
        connection.executemany("DELETE FROM files WHERE name = ?", [(name,) for name in names])

    def drop(self, names: Collection[str]) -> None:
        """Forget the facts of packs whose rows are being deleted."""
        for name in names:
            self._known.pop(name, None)

    def forget_others(self, connection: sqlite3.Connection, names: Collection[str]) -> None:
        """Delete the facts of all packs but these."""
        self.forget(connection, [name for name in self._known if name not in names])
