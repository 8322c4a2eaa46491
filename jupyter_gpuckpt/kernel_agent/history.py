"""IPython's history around a resume. Sent into kernels with the agent (`agent.py`)."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import Any

_SESSION_START = "SELECT start FROM sessions WHERE session = ?"


class History:
    """IPython's history: after a resume its lines must not collide with those that others have written meanwhile."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._manager: Any = getattr(shell, "history_manager", None)
        self._note()

    def go_on(self, *, branched: bool) -> None:
        """Open the history again if it is another file now; begin a new session of it where the old one is taken.

        An older snapshot finds lines that the kernel wrote after it; on another machine the number is somebody else's; the
        kernel that a branch was made from goes on with it.
        """
        if not getattr(self._manager, "enabled", False):
            return
        if self._identity() != self._file:
            self._open_again()
        last = self._ask("SELECT max(line) FROM history WHERE session = ?")
        ahead = isinstance(last, int) and last >= self._shell.execution_count
        if branched or ahead or self._ask(_SESSION_START) != self._began:
            with suppress(sqlite3.Error):
                self._manager.new_session()
        self._note()

    def _note(self) -> None:
        self._file, self._began = self._identity(), self._ask(_SESSION_START)

    def _identity(self) -> tuple[int, int]:
        try:
            status = os.stat(str(self._manager.hist_file))  # noqa: PTH116 - it may be ":memory:"
        except (OSError, AttributeError):
            return 0, 0
        return status.st_dev, status.st_ino

    def _open_again(self) -> None:
        """SQLite writes no more to a file that is not the one which it opened (SQLITE_READONLY_DBMOVED)."""
        manager, former, thread = self._manager, self._manager.db, self._manager.save_thread
        if thread is not None:
            thread.stop()
        manager.init_db()
        former.close()
        if thread is not None:
            manager.save_thread = type(thread)(manager)
            manager.save_thread.start()

    def _ask(self, question: str) -> Any:
        """The first value of the answer about this session; None where there is none, or no history."""
        if not getattr(self._manager, "enabled", False):
            return None
        with suppress(sqlite3.Error):
            found = self._manager.db.execute(question, (self._manager.session_number,)).fetchone()
            return found[0] if found else None
        return None
