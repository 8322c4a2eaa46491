"""The use of memory of this machine and of the control groups above this process."""

from __future__ import annotations

from pathlib import Path

from ..linux import control_groups
from ..wire.protocol import MemoryUse
from . import memory_limits, processes

#: The free memory below which it is short.
_SHORT_BYTES = 256 << 20
_PRESSURE = Path("/proc/pressure/memory")


def memory_uses(
    root: Path = control_groups.ROOT, membership: Path = control_groups.MEMBERSHIP
) -> list[MemoryUse]:
    """Return the use of this machine's memory and below each limit of the groups above this process."""
    limits = memory_limits.limits(root, membership, throttling_too=True)
    total, available = processes.machine_memory()
    machine = MemoryUse("This machine", total, available, _stalled_percent(_PRESSURE))
    return [machine, *map(_of_group, limits)]


def is_short(uses: list[MemoryUse]) -> bool:
    """Return whether so little memory is free that processes which only wait are ended."""
    return any(use.free_bytes < min(_SHORT_BYTES, use.total_bytes / 4) for use in uses)


def _of_group(limit: memory_limits.MemoryLimit) -> MemoryUse:
    return MemoryUse(
        f"The control group {limit.folder}",
        limit.limit_bytes,
        limit.free_bytes,
        _stalled_percent(limit.folder / "memory.pressure"),
    )


def _stalled_percent(path: Path) -> float:
    """Return `avg10` of the line `full` (Linux: Documentation/accounting/psi.rst); 0 where Linux does not measure it."""
    try:
        lines = path.read_text().splitlines()
    except OSError:  # version 1, or Linux without PSI
        return 0.0
    full = next((line.split() for line in lines if line.startswith("full ")), [])
    fields = dict(field.split("=", 1) for field in full if "=" in field)
    return float(fields.get("avg10", 0.0))
