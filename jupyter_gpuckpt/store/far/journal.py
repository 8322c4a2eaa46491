"""What an upload has done so far, in a file of this machine, so that the next attempt does not do it again.

One line of JSON for each thing that the remote has confirmed. A line that a crash cut off counts for nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ... import decoding
from ..faults import store_errors
from .epochs import Epoch
from .indexes import PackRows


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    store_id: bytes = b""
    #: The first one: when the upload began.
    epoch: Epoch | None = None
    pack: PackRows | None = None
    #: The name of a manifest that is about to be written.
    manifest: str = ""


class Journal:
    """Of the upload of one snapshot. What an earlier attempt did in another store is forgotten."""

    def __init__(self, path: Path, store_id: bytes) -> None:
        self._path = path
        #: The epoch before the first answer that the upload rests on; None before that.
        self.epoch: Epoch | None = None
        self.packs: dict[str, PackRows] = {}
        self.manifests: list[str] = []
        with store_errors(path.parent):
            lines = self._lines()
            if not lines or lines[0].store_id != store_id:
                path.unlink(missing_ok=True)
                self._append(_Line(store_id=store_id))
                return
            for line in lines:
                self.epoch = self.epoch or line.epoch
                if line.pack:
                    self.packs[line.pack.ref.name] = line.pack
                if line.manifest:
                    self.manifests.append(line.manifest)

    def begin(self, epoch: Epoch) -> None:
        """Note when the upload began, if it did not before."""
        if self.epoch is None:
            self.epoch = epoch
            self._add(_Line(epoch=epoch))

    def add_pack(self, pack: PackRows) -> None:
        """Note a pack that the remote has."""
        self.packs[pack.ref.name] = pack
        self._add(_Line(pack=pack))

    def add_manifest(self, name: str) -> None:
        """Note a manifest before it is written: one that is not listed in the end has to go."""
        self.manifests.append(name)
        self._add(_Line(manifest=name))

    def end(self) -> None:
        """Forget the upload: it is complete, or given up."""
        with store_errors(self._path.parent):
            self._path.unlink(missing_ok=True)

    def _add(self, line: _Line) -> None:
        with store_errors(self._path.parent):
            self._append(line)

    def _append(self, line: _Line) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with os.fdopen(os.open(self._path, flags, 0o600), "wb") as file:
            # After a line that was cut off.
            file.write(b"\n" + msgspec.json.encode(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[_Line]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        found = []
        for text in data.splitlines():
            try:
                found.append(decoding.from_json(text, _Line))
            except msgspec.DecodeError:
                continue
        return found
