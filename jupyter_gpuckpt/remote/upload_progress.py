"""Journals of uploads: files on this machine that list what the remote has confirmed, so that the next attempt does not repeat it.

Each confirmed object is one line of JSON. A line that a crash truncated is ignored.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ..store.faults import store_errors
from ..wire import decoding
from .epochs import Epoch
from .pack_refs import PackRows

_FOLDER, _SUFFIX = "uploads", ".jsonl"


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    store_id: bytes = b""
    #: Only in one entry: the epoch when the upload began.
    epoch: Epoch | None = None
    pack: PackRows | None = None
    #: The name of a manifest that is about to be written, and of the remote session that will list it.
    manifest: str = ""
    session_id: str = ""


def path_of(state: Path, snapshot_id: str) -> Path:
    """Return the path of an upload's journal in the state folder of a remote."""
    return state / _FOLDER / f"{snapshot_id}{_SUFFIX}"


def unfinished(state: Path) -> list[str]:
    """Return the ids of snapshots whose uploads began and did not end. Raises StoreUnavailable."""
    with store_errors(state):
        return sorted(path.stem for path in (state / _FOLDER).glob(f"*{_SUFFIX}"))


class Journal:
    """The journal of one snapshot's upload. Entries of an earlier attempt for another store id are removed."""

    def __init__(self, path: Path, store_id: bytes) -> None:
        self._path = path
        #: The epoch that the upload read before it looked for chunks in the remote; None before that.
        self.epoch: Epoch | None = None
        self.packs: dict[str, PackRows] = {}
        self.manifests: list[str] = []
        #: The remote sessions that list the journal's manifests, or were about to.
        self.sessions: set[str] = set()
        with store_errors(path.parent):
            entries = self._entries()
            if not entries or entries[0].store_id != store_id:
                path.unlink(missing_ok=True)
                self._add(_Entry(store_id=store_id))
                return
            for entry in entries:
                self.epoch = self.epoch or entry.epoch
                if entry.pack:
                    self.packs[entry.pack.ref.name] = entry.pack
                if entry.manifest and entry.session_id:
                    self.manifests.append(entry.manifest)
                    self.sessions.add(entry.session_id)

    def begin(self, epoch: Epoch) -> None:
        """Record the epoch in which the upload began, unless an earlier attempt recorded one."""
        if self.epoch is None:
            self.epoch = epoch
            self._add(_Entry(epoch=epoch))

    def add_pack(self, pack: PackRows) -> None:
        """Record a pack that the remote has confirmed."""
        self.packs[pack.ref.name] = pack
        self._add(_Entry(pack=pack))

    def add_manifest(self, name: str, session_id: str) -> None:
        """Record a manifest before it is written, so that it can be removed if no remote session lists it in the end."""
        self.manifests.append(name)
        self.sessions.add(session_id)
        self._add(_Entry(manifest=name, session_id=session_id))

    def end(self) -> None:
        """Remove the journal, after the upload completed or was given up."""
        with store_errors(self._path.parent):
            self._path.unlink(missing_ok=True)

    def _add(self, entry: _Entry) -> None:
        with store_errors(self._path.parent):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            with os.fdopen(os.open(self._path, flags, 0o600), "wb") as file:
                # The leading newline ends a line that a crash truncated.
                file.write(b"\n" + msgspec.json.encode(entry) + b"\n")
                file.flush()
                os.fsync(file.fileno())

    def _entries(self) -> list[_Entry]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        found = []
        for text in data.splitlines():
            try:
                found.append(decoding.from_json(text, _Entry))
            except msgspec.DecodeError:
                continue
        return found
