"""The program of the relay: it goes to the background when it listens, and only one of a user runs."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..daemon import lifetime
from ..errors import ConfigurationError
from ..wire.place import SOCKET_PATH_BYTES, runtime_dir
from .address import address_file, relay_folder


def main() -> int:
    """Run the relay in the background; return when it, or another one, listens."""
    return lifetime.detached(_run)


def _run(ready: Callable[[], None]) -> int:
    os.umask(0o077)
    folder, address = Path(relay_folder()), Path(address_file())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    address.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        path = runtime_dir(folder.parent) / f"relay-{address.name[:8]}-{address.name[-10:]}.sock"
    except ConfigurationError as error:
        sys.stderr.write(f"{error.message} {error.hint}\n")
        return 1
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
        sys.stderr.write(f"The path of the relay's socket is too long: {path}\n")
        return 1
    # The lock is beside the data: one relay has the records of the kernels.
    if not lifetime.hold_alone(Path(f"{address}.lock")):
        ready()
        return 0
    with suppress(FileNotFoundError):
        path.unlink()  # of a killed relay, because this one holds the lock
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(str(path))
    listener.listen(100)
    new = address.with_suffix(".new")
    new.write_text(str(path))
    new.replace(address)
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    os.chdir("/")
    ready()
    lifetime.log_to(folder.parent / "log" / "relay.log")
    from .service import Relay  # noqa: PLC0415 - ZMQ is imported while the first program connects

    Relay(folder, listener).run()
    path.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
