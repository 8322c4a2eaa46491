"""Small files of the daemon that are replaced as a whole."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

#: The prefix of the name of a file that is being written.
UNFINISHED = ".unfinished-"


def write_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: a reader sees the old or the new content, even after a power cut."""
    temporary = path.with_name(f"{UNFINISHED}{path.name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
