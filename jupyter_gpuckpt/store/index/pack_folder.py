"""The comparison of the catalog with the folder of packs, which is authoritative. Its methods are called in a turn of the database."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from .. import packs
from ..pack_identity import Identity
from . import rows
from .indexing import index_packs
from .needs import forget_needing
from .pack_files import PackFiles

logger = logging.getLogger(__name__)


class PackFolder:
    """The folder of packs. `files`: what is known of their files; it forgets those that are gone."""

    def __init__(self, path: Path, files: PackFiles) -> None:
        self.path, self._files = path, files
        #: Packs whose files are being removed; they count as gone.
        self.condemned: set[str] = set()

    def path_of(self, pack: str) -> Path:
        """Return the file of a pack."""
        return self.path / (pack + packs.SUFFIX)

    def found(self) -> dict[str, Identity]:
        """Return the identities of the files of all packs but those that are being removed. Raises OSError."""
        found = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                name = entry.name.removesuffix(packs.SUFFIX)
                if name == entry.name or name.startswith(packs.TEMPORARY):
                    continue
                with suppress(FileNotFoundError):  # it was removed just now
                    status = entry.stat()
                    if stat.S_ISREG(status.st_mode):  # the opening of a named pipe would not end
                        found[name] = Identity.of(status)
        return {name: one for name, one in found.items() if name not in self.condemned}

    def reconcile(self, connection: sqlite3.Connection) -> None:
        """Update a database that was just opened or made to match the folder, and end what an earlier process began."""
        found = {name: identity.length for name, identity in self.found().items()}
        known: dict[str, int] = dict(connection.execute("SELECT name, length FROM packs"))
        begun = {name for name, length in known.items() if not length and name in found}
        gone = [n for n, length in known.items() if found.get(n) != length and n not in begun]
        moving = [name for (name,) in connection.execute("SELECT name FROM moving")]
        if begun or moving:
            forget_needing(connection, {*begun, *moving})
            connection.execute("DELETE FROM moving")
        self._lose(connection, gone)
        self._files.forget_others(connection, found)
        self._index(connection, found.keys() - (known.keys() - begun - set(gone)))

    def refresh(self, connection: sqlite3.Connection) -> bool:
        """Update the database for packs that were removed, cut short or put back meanwhile; return whether there were any.

        Chunks that can still be read in a pack that was cut short stay known.
        """
        found = {name: identity.length for name, identity in self.found().items()}
        query = "SELECT name, length FROM packs WHERE id NOT IN temp.gone"
        known: dict[str, int] = dict(connection.execute(query))
        gone = [name for name, length in known.items() if length and found.get(name) != length]
        new = found.keys() - (known.keys() - set(gone))
        if gone:
            logger.warning("Packs are missing or have another length: %s", ", ".join(gone))
        if gone or new:
            self._lose(connection, gone)
            self._index(connection, new)
        # Packs of a newer version are not entered.
        return bool(gone) or any(rows.is_entered(connection, name) for name in new)

    def _lose(self, connection: sqlite3.Connection, gone: Collection[str]) -> None:
        """Mark packs as gone."""
        if gone:
            forget_needing(connection, gone)
            self._files.forget(connection, gone)
        for name in gone:
            rows.lose(connection, name)
        connection.commit()

    def _index(self, connection: sqlite3.Connection, new: Collection[str]) -> None:
        index_packs(connection, {name: self.path_of(name) for name in sorted(new)})
