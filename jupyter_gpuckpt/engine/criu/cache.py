"""What an unprivileged CRIU has found out about Linux: kept from one kernel's scratch to the next, as each begins without it.

CRIU takes 40 ms to find it out. It writes it to `$XDG_RUNTIME_DIR/criu.kdat` if that is a tmpfs, and knows by itself which version
of it wrote what it finds there. The copy lies where the daemon spills, which belongs to one boot and one place.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ...model import SCRATCH
from ..settings import EngineSettings

#: For CRIU's environment: where it looks, in the kernel's mount namespace.
VARIABLE, DIRECTORY = "XDG_RUNTIME_DIR", SCRATCH
NAME = "criu.kdat"
_MOST_BYTES = 1 << 16


def bring(settings: EngineSettings, scratch: Path) -> None:
    """Copy what is known onto a kernel's scratch; never raises."""
    with suppress(OSError):
        _copy(settings.spill_dir / NAME, scratch / NAME)


def keep(settings: EngineSettings, scratch: Path) -> None:
    """Copy what CRIU has found out from a kernel's scratch, if nothing is known yet; never raises."""
    with suppress(OSError):
        if (scratch / NAME).exists():
            settings.spill_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            _copy(scratch / NAME, settings.spill_dir / NAME)


def _copy(source: Path, target: Path) -> None:
    if target.exists():
        return
    with source.open("rb") as file:
        content = file.read(_MOST_BYTES)
    unfinished = target.with_name(f"{NAME}.{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.replace(target)
