"""Opening of files that others may have created or replaced, for example by a pipe, whose opening would wait for a writer."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def open_regular(path: str | Path, *, follows_links: bool = False) -> int:
    """Open a regular file for reading, without waiting, and return its descriptor.

    Raises OSError, also for anything that is no regular file, and for a link in its place unless `follows_links` is set.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follows_links else os.O_NOFOLLOW)
    opened = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(f"{path} is not a file")
    return opened
