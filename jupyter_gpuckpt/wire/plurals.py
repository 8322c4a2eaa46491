"""Quantities in messages: 1 kernel, 2 kernels; sizes and ages; the first of many names."""

from __future__ import annotations

from collections.abc import Sequence

SECONDS_PER_MINUTE, SECONDS_PER_HOUR, SECONDS_PER_DAY = 60, 3600, 86400
#: The most names of one kind that a message lists.
_SHOWN = 3


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless there is exactly one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size(count_bytes: int) -> str:
    """Format a number of bytes: `999 B`, `1.2 GB` (powers of 1000)."""
    value, units = float(count_bytes), ["kB", "MB", "GB", "TB"]
    if count_bytes < 1000:
        return f"{count_bytes} B"
    while (value := value / 1000) >= 999.95 and len(units) > 1:
        del units[0]
    return f"{value:.1f} {units[0]}"


def age(seconds: float) -> str:
    """Format an age: `just now`, `3 min ago`, `2 h ago`, `5 days ago`."""
    seconds = max(0.0, seconds)  # the clock may have been set back
    for unit, length in (("day", SECONDS_PER_DAY), ("h", SECONDS_PER_HOUR)):
        count = int(seconds // length)
        if count:
            return f"{count} {unit}{'s' * (unit == 'day' and count > 1)} ago"
    minutes = int(seconds // SECONDS_PER_MINUTE)
    return f"{minutes} min ago" if minutes else "just now"


def some(names: Sequence[object]) -> str:
    """Join the first names with commas, and say how many more there are."""
    shown = ", ".join(str(name) for name in names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
