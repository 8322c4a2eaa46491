"""The daemon's side of CRIU's action script, by which CRIU waits for the daemon.

CRIU waits in a dump before it touches a task, and in a restore when all memory is mapped. The script is `gpuckpt-init` under the
name `notify` (init.c); it connects to a socket on the scratch tmpfs and reads one byte. See man criu, `--action-script`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from ...wire.manifest_records import SCRATCH

#: The program that CRIU runs, and the socket to which it connects, in the kernel's mount namespace.
PROGRAM = f"{SCRATCH}/notify"
SOCKET = f"{SCRATCH}/notify.socket"
_CONTINUE = b"1"


def listen(path: Path) -> socket.socket:
    """Return a listening unix socket at `path`; replace an existing file."""
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(str(path))
        server.listen(1)
    except BaseException:
        server.close()
        raise
    return server


def let_continue(connection: socket.socket) -> None:
    """Let CRIU continue. If the connection is closed without this call, CRIU gives up."""
    connection.sendall(_CONTINUE)


class PostRestore:
    """A thread that calls `work` when CRIU reaches post-restore; if `work` raises, CRIU gives up. Use it as a context manager.

    At post-restore all memory is mapped, and the tasks wait in CRIU's own code with every signal blocked. Filling memory later would be
    too late: CRIU lets each task return to the program, and Linux may then write the frame of a signal handler onto its stack before the
    task stops.
    """

    def __init__(self, path: Path, work: Callable[[], None]) -> None:
        self._server, self._work = listen(path), work
        self._thread = threading.Thread(target=self._serve, name="post-restore", daemon=True)
        #: The error that `work` raised.
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        try:
            self._thread.start()
        except RuntimeError:  # no thread can be started
            self._server.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()
        self._server.close()

    def end(self) -> None:
        """Wait for the thread, which ends at once if CRIU has not reached post-restore. May be called again."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # it wakes accept
        self._thread.join()

    def _serve(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:
            return
        with connection:
            try:
                self._work()
            except BaseException as error:
                self.error = error
            else:
                with suppress(OSError):  # CRIU was killed; its exit status says so
                    let_continue(connection)
