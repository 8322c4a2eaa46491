"""How much memory Linux lets programs reserve (vm.overcommit_memory; Linux: Documentation/mm/overcommit-accounting.rst)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from . import processes

_GUESS, _NEVER = 0, 2
#: Linux keeps back this much of what a process could reserve, at most, for the others (vm.user_reserve_kbytes).
_RESERVED_BYTES = 128 << 20


class Overcommit(msgspec.Struct, frozen=True):
    """The limits for what is reserved: for one area, and for everything together. None: there is no such limit."""

    area_bytes: int | None
    free_bytes: int | None


def overcommit(proc: Path = processes.PROC) -> Overcommit:
    """Return the limits of this machine."""
    mode = int((proc / "sys/vm/overcommit_memory").read_text())
    lines = (proc / "meminfo").read_text().splitlines()
    sizes = {
        name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)
    }

    def size(name: str) -> int:
        return 1024 * sizes[name]

    area = size("MemTotal") + size("SwapTotal") if mode == _GUESS else None
    free = size("CommitLimit") - size("Committed_AS") - _RESERVED_BYTES if mode == _NEVER else None
    return Overcommit(area, free)
