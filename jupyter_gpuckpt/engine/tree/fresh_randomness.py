"""New random numbers in every copy of a kernel (the daemon's side of fresh_randomness.c)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from ...wire.manifest_records import SCRATCH

#: The file with the number by which OpenSSL in the kernel, and in what was forked from it, knows which copy it is in, and the mark by
#: which the agent knows whether it is in another one. The kernel has the file mapped, so a snapshot contains it.
INSIDE = f"{SCRATCH}/copy"
_NUMBER_BYTES = _MARK_BYTES = 4


def install(root: Path) -> None:
    """Create the file for a kernel that is no copy. `root`: the path of the kernel's root directory, as seen from here."""
    (root / INSIDE.lstrip("/")).write_bytes(bytes(_NUMBER_BYTES + _MARK_BYTES))


def renew(inside: Callable[[str], Path], *, is_copy: bool) -> list[str]:
    """Write another number before any task runs, and another mark if this is a copy. Return what is not new, a sentence each.

    `is_copy`: whether the kernel of the snapshot may run elsewhere, or ran on after it.
    """
    # The file comes from a snapshot, so it may be anything.
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(inside(INSIDE), flags)
        try:
            os.pwrite(file, secrets.token_bytes(_NUMBER_BYTES), 0)
            if is_copy:
                os.pwrite(file, secrets.token_bytes(_MARK_BYTES), _NUMBER_BYTES)
        finally:
            os.close(file)
    except OSError as error:
        return [
            f"OpenSSL in the kernel may draw the same random numbers as in another copy of it ({INSIDE}: {error.strerror})."
        ]
    return []
