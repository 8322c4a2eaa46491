"""Work at CRIU's `post-restore` stage, when all memory is mapped and the tasks wait in CRIU's own code with every signal blocked.

Filling memory later would be too late: CRIU lets each task return to the program, and Linux may then write the frame of a signal
handler onto its stack before the task stops. See man criu, `--action-script`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from . import action_script


class PostRestore:
    """A thread that calls `work` when CRIU reaches post-restore; if `work` raises, CRIU gives up. Use it as a context manager."""

    def __init__(self, path: Path, work: Callable[[], None]) -> None:
        self._server, self._work = action_script.listen(path), work
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
                    action_script.let_continue(connection)
