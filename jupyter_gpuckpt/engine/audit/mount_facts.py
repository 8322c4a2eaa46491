"""Facts of the mounts that a kernel's programs have made in their own mount namespace, which ends with the kernel (man mountinfo)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .records import Values

#: The sources of what init mounts, and the places of the rest of it (`tree/init.c`).
_OURS = frozenset({"gpuckpt", "gpuckpt-shm", "gpuckpt-gpu"})
_PLACES = frozenset({"/proc", "/dev/pts", "/dev/ptmx"})


def of_namespace(pid: int) -> Values:
    """Return the mounts that a process sees and this process does not, except those that init has made."""
    here, found = set(_mounts("self")), {}
    with suppress(OSError):
        for mount in _mounts(str(pid)):
            point, kind, source = mount
            if mount not in here and source not in _OURS and point not in _PLACES:
                found[f"mount {point}"] = kind
    return found


def _mounts(pid: str) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the file system and the source of each mount."""
    for line in Path(f"/proc/{pid}/mountinfo").read_text(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        kind, source = after.split()[:2]
        yield before.split()[4], kind, source
