"""The process that reads packs and compares their chunks with their digests, at the lowest priority.

It may be killed at any moment. `scrubbing.py` starts it.

python -m jupyter_gpuckpt.daemon.scrub.pack_reader      with a socket as standard input
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from pathlib import Path

import msgspec

from ...host import idle_priority
from ...images.worker_messages import receive, send
from ...store.pack_identity import Identity
from ...store.pack_reading import forget_cached, read_pack


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


def reading_of(path: Path, connection: socket.socket) -> PackRead:
    """Read a pack from the disk; wait for the caller after each piece. Raises ConnectionError when the caller has gone."""

    def between() -> None:
        send(connection, PieceRead())
        if receive(connection, Next) is None:
            raise ConnectionAbortedError

    try:
        forget_cached(path)
        found = read_pack(path, between)
        # Linux need not keep what no kernel has asked for.
        forget_cached(path)
    except ConnectionError:
        raise
    except FileNotFoundError:
        return PackRead()
    except OSError as error:
        return PackRead(error=str(error))
    return PackRead(found.identity, list(found.intact)) if found else PackRead()


def main(connection: socket.socket) -> None:
    """Read the packs that the caller names by `connection`, until it closes that."""
    idle_priority.take()
    logging.getLogger().setLevel(logging.CRITICAL)
    with suppress(ConnectionError):
        while (wanted := receive(connection, Next)) is not None:
            send(connection, reading_of(Path(wanted.path), connection))


if __name__ == "__main__":
    main(socket.socket(fileno=0))
