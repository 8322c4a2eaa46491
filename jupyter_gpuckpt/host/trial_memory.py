"""The memory of trials on this machine: files in the user's cache, named by a digest of all that could change a trial's outcome."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import msgspec

#: The number of trials of a kind that are remembered: containers and virtual machines may share a home directory.
_REMEMBERED = 64


def file(kind: str, circumstances: object) -> Path:
    """Return the path of the file with the outcome of a trial under these circumstances, which JSON can express."""
    digest = hashlib.blake2b(msgspec.json.encode(circumstances), digest_size=16).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(cache, "jupyter-gpuckpt", kind, digest)


def remember(file: Path, content: bytes = b"") -> None:
    """Write the file, and remove the oldest ones above the limit. Without a home directory nothing is remembered."""
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        unfinished.write_bytes(content)
        unfinished.replace(file)
        by_age = sorted(file.parent.iterdir(), key=lambda one: one.stat().st_mtime)
        for old in by_age[:-_REMEMBERED]:
            old.unlink()
