"""New random numbers in every copy of a kernel (the daemon's side of fresh_randomness.c)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from ...wire.manifest_records import SCRATCH

#: The file with the number by which OpenSSL in the kernel, and in what was forked from it, knows which copy it is in. The kernel has it
#: mapped, so a snapshot contains it.
INSIDE = f"{SCRATCH}/copy"
_BYTES = 8


def install(root: Path) -> None:
    """Create the file for a kernel that is no copy. `root`: the path of the kernel's root directory, as seen from here."""
    (root / INSIDE.lstrip("/")).write_bytes(bytes(_BYTES))


def renew(inside: Callable[[str], Path]) -> None:
    """Write another number before any task runs."""
    # The file comes from a snapshot, so it may be anything.
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(inside(INSIDE), flags)
    try:
        os.pwrite(file, secrets.token_bytes(_BYTES), 0)
    finally:
        os.close(file)
