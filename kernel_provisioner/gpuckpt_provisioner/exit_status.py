"""The exit code of a kernel, read from the file that its init writes."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

#: The exit code of a kernel that was killed before its init could write one.
KILLED = -int(signal.SIGKILL)


def exit_code(exit_path: str) -> int | None:
    """Return the exit code as `Popen.poll` does (minus the signal's number for a signal); None while there is none.

    The file holds a raw wait status as a decimal number and appears in one piece, so reading it needs no lock.
    """
    if not exit_path:
        return None
    # A directory that cannot be read for a moment (a network home) does not mean that the kernel has ended.
    with suppress(OSError, ValueError):
        text = Path(exit_path).read_text()
        # On a full disk init could make the file, but not write into it.
        return os.waitstatus_to_exitcode(int(text)) if text else KILLED
    return None
