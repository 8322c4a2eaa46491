"""The messages between the daemon and the process that reads packs (`pack_reader.py`)."""

from __future__ import annotations

import msgspec

from ...store.pack_identity import Identity


class Next(msgspec.Struct, frozen=True):
    """A request to read the pack in the file `path`, or, without a path, the next piece of the present one."""

    path: str = ""


class PieceRead(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Next` while the pack is not read to its end."""


class PackRead(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Next` at the end of a pack: what was read (`store.pack_reading.PackReading`).

    `identity`: None if the pack is gone, has changed meanwhile or, with an `error`, cannot be read.
    """

    identity: Identity | None = None
    intact: list[bytes] = []
    error: str = ""
