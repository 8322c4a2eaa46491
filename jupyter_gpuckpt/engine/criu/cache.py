"""Copies of CRIU's cache of Linux features, from one kernel's scratch to the next kernel's. An unprivileged CRIU writes it.

CRIU needs 40 ms to examine Linux. It writes the result to `$XDG_RUNTIME_DIR/criu.kdat` if that is a tmpfs, and checks by itself
which version of CRIU wrote the file. The copy lies in the spill directory, which belongs to one boot and one place.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ...wire.manifest_records import SCRATCH
from ..settings import EngineSettings

#: The variable with the directory of CRIU's cache, and its value, a path of the kernel's mount namespace.
VARIABLE, DIRECTORY = "XDG_RUNTIME_DIR", SCRATCH
NAME = "criu.kdat"
_MAX_FILE_BYTES = 1 << 16


def bring(settings: EngineSettings, scratch: Path) -> None:
    """Copy the cache to a kernel's scratch, if there is one; never raises."""
    with suppress(OSError):
        _copy(settings.spill_dir / NAME, scratch / NAME)


def keep(settings: EngineSettings, scratch: Path) -> None:
    """Copy the cache from a kernel's scratch, if there is no copy yet; never raises."""
    with suppress(OSError):
        if (scratch / NAME).exists():
            settings.spill_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            _copy(scratch / NAME, settings.spill_dir / NAME)


def _copy(source: Path, target: Path) -> None:
    if target.exists():
        return
    with source.open("rb") as file:
        content = file.read(_MAX_FILE_BYTES)
    unfinished = target.with_name(f"{NAME}.{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.replace(target)
