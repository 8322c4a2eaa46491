"""IPython's history after a resume. This module is sent into kernels with the agent (`agent.py`)."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import Any

from IPython.paths import get_ipython_dir

_MEMORY = ":memory:"
_SESSION_START = "SELECT start FROM sessions WHERE session = ?"


class History:
    """The keeper of IPython's history: after a resume its lines must not collide with lines that other kernels have written."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._manager: Any = getattr(shell, "history_manager", None)
        #: The file that was left, and IPython's folder then.
        self._left, self._folder = "", ""
        self._note()

    def continue_after_resume(self, *, branched: bool) -> None:
        """Reopen the history if its file was replaced, and begin a new history session if the old one's number is in use.

        It is in use where the kernel wrote lines after an older snapshot, where another machine's history has the same number, and
        where the kernel from which this one was branched still uses it.
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

    def leave_file(self) -> None:
        """Keep the history in memory until `take_file`: copies of this kernel may run as other users, who have files of their own."""
        path = str(getattr(self._manager, "hist_file", _MEMORY))
        if getattr(self._manager, "enabled", False) and path != _MEMORY:
            self._left, self._folder = path, get_ipython_dir()
            self._open(_MEMORY)

    def take_file(self) -> None:
        """Open the file of the present environment in place of the one that was left; without it the history stays in memory."""
        if not self._left:
            return
        below = os.path.relpath(self._left, self._folder)
        is_usual = not below.startswith(os.pardir)
        path = os.path.join(get_ipython_dir(), below) if is_usual else self._left  # noqa: PTH118 - Python 3.8
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - Python 3.8
            self._open(path)
        except (OSError, sqlite3.Error):
            self._open(_MEMORY)
        self._left = ""
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
        """Reopen the file if it was replaced: SQLite does not write to another file than it opened (SQLITE_READONLY_DBMOVED)."""
        self._open(self._manager.hist_file)

    def _open(self, path: Any) -> None:
        manager, former, thread = self._manager, self._manager.db, self._manager.save_thread
        if thread is not None:
            thread.stop()
        manager.hist_file = path
        manager.init_db()
        former.close()
        if thread is not None and path != _MEMORY:
            manager.save_thread = type(thread)(manager)
            manager.save_thread.start()

    def _ask(self, question: str) -> Any:
        """Return the first value of a query's result for this history session; None without a result or a history."""
        if not getattr(self._manager, "enabled", False):
            return None
        with suppress(sqlite3.Error):
            found = self._manager.db.execute(question, (self._manager.session_number,)).fetchone()
            return found[0] if found else None
        return None


def last_cell(shell: Any) -> int:
    """Return the execution count of the last cell that has begun; 0 if none has, or a user's code has changed the counter."""
    # IPython 9 counts a cell when it begins, older versions when it has ended. Its source is in the list from its beginning.
    with suppress(Exception):  # only a label depends on it
        count = int(shell.execution_count)
        begun = getattr(getattr(shell, "history_manager", None), "input_hist_raw", ())
        return max(0, count if len(begun) > count else count - 1)
    return 0
