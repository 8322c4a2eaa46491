"""The process that reads packs and compares their chunks with their digests, at the lowest priority.

It may be killed at any moment. `scrubbing.py` starts it.

python -m jupyter_gpuckpt.daemon.scrub.pack_reader      with a socket as standard input
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from pathlib import Path

from ...host import idle_priority
from ...images.worker_messages import receive, send
from ...store.pack_reading import forget_cached, read_pack
from .pack_reader_messages import Next, PackRead, PieceRead


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
