"""Durations as users write them in options and settings."""

from __future__ import annotations

import math
import re

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def to_seconds(value: object) -> float:
    """Convert texts like `25s`, `2m`, `1h` or `90`, or a number of seconds. Raises ValueError with a sentence for users."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if 0 <= value < math.inf:
            return float(value)
    elif isinstance(value, str) and (
        match := re.fullmatch(r"(\d+(?:\.\d+)?) *([smh]?)", value.strip())
    ):
        return float(match[1]) * _UNITS[match[2]]
    raise ValueError(f"{value!r} is not a time such as 25s, 2m or 90.")
