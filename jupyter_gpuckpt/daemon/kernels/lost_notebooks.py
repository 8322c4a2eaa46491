"""The notebooks whose session another machine has taken over, until a user has chosen where each is saved.

The note of a notebook outlives its kernel, because whichever kernel it gets here, the other machine may save to the same file. The
file has the name of this host: another one that shares its home with this one may be the one that has taken a session over. Several
daemons of this host, for instance in containers, may write it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ...linux.file_locks import alone
from ...store.manifests import replace_file
from ...wire import decoding
from .kernel_records import KernelRecord

#: The most notes; older ones are dropped.
_MAX_NOTES = 1000

_log = logging.getLogger(__name__)


class LostNotebooks:
    """The notes, by kernel id and by notebook."""

    def __init__(self, state_dir: Path) -> None:
        host = hashlib.blake2b(socket.gethostname().encode(), digest_size=8).hexdigest()
        self._path = state_dir / f"lost-notebooks.{host}.json"
        self._notes = self._read() or {}

    def of(self, record: KernelRecord) -> str:
        """Return the sentence about a kernel or its notebook; empty if there is none."""
        return next((self._notes[key] for key in _keys(record) if key in self._notes), "")

    def is_about(self, kernel_id: str) -> bool:
        """Return whether there is a note about this kernel itself, not only about its notebook."""
        return kernel_id in self._notes

    def note(self, record: KernelRecord, sentence: str) -> None:
        """Add a note about a kernel and its notebook."""

        def add(notes: dict[str, str]) -> None:
            notes |= dict.fromkeys(_keys(record), sentence)
            for key in list(notes)[:-_MAX_NOTES]:
                del notes[key]

        self._change(add)

    def forget(self, record: KernelRecord) -> None:
        """Remove the notes about a kernel and its notebook."""

        def remove(notes: dict[str, str]) -> None:
            for key in _keys(record):
                notes.pop(key, None)

        self._change(remove)

    def _change(self, change: Callable[[dict[str, str]], None]) -> None:
        """Change the notes here and in the file, which has those of this host's other daemons."""
        # Few bytes, and seldom: when a session was taken over, and when its user has chosen.
        try:
            with alone(self._path.with_suffix(".lock")):
                found = self._read()
                self._notes = self._notes if found is None else found
                change(self._notes)
                replace_file(self._path, msgspec.json.encode(self._notes))
        except OSError as error:
            change(self._notes)
            _log.error("notebooks whose sessions were taken over are not recorded: %s", error)

    def _read(self) -> dict[str, str] | None:
        """Return the notes in the file; None if it cannot be read."""
        try:
            return decoding.from_json(self._path.read_bytes(), dict[str, str])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            _log.error("notebooks whose sessions were taken over are not known: %s", error)
            return None


def notebook_of(jupyter: dict[str, Any]) -> str:
    """Return the path of the notebook in a description of Jupyter's; empty if there is none."""
    root, path = jupyter.get("root"), jupyter.get("path")
    if not (isinstance(root, str) and isinstance(path, str) and root and path):
        return ""
    return os.path.normpath(Path(root, path))


def _keys(record: KernelRecord) -> list[str]:
    return [key for key in (record.kernel_id, notebook_of(record.jupyter)) if key]
