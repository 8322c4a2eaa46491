"""Numbers of things in messages: 1 kernel, 2 kernels."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless there is exactly one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
