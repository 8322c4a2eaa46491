"""Mounts in a kernel's own mount namespace, with which they go."""

from __future__ import annotations

from pathlib import Path

from ...host import commands
from ..settings import INIT

_SECONDS = 10.0


def bind(init_pid: int, source: str | Path, target: str | Path) -> None:
    """Lay `source` over `target`, both as the kernel of this init sees them. Raises CommandFailed."""
    commands.run([INIT, "bind", str(init_pid), source, target], timeout=_SECONDS)
