"""Mounts in a kernel's own mount namespace; they disappear with it."""

from __future__ import annotations

from pathlib import Path

from ...host import commands
from ..settings import INIT

_SECONDS = 10.0


def bind(init_pid: int, source: str | Path, target: str | Path) -> None:
    """Bind mount `source` over `target`, both paths of the kernel below this init. Raises CommandFailed."""
    commands.run([INIT, "bind", str(init_pid), source, target], timeout=_SECONDS)
