"""Edits of scheduling policies in core images that CRIU saves, but refuses at a restore: deadlines, and policies that a fork resets.

The audit sets them again (`audit/proc_facts.py`). The fields are those of core_entry and thread_core_entry (images/core.proto).
"""

from __future__ import annotations

import os
from pathlib import Path

from . import images as criu_images
from .images import Field

_THREAD_CORE, _POLICY = 5, 4
#: The policies that CRIU restores (criu/cr-restore.c, validate_sched_parm).
_RESTORED = {os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE, os.SCHED_FIFO, os.SCHED_RR}


@criu_images.strict
def mend(images: Path) -> None:
    """Replace every policy that CRIU refuses by the closest one that it restores."""
    for path in images.glob("core-*.img"):
        before = list(criu_images.messages(path))
        after = [criu_images.with_inner(core, _THREAD_CORE, _accepted) for core in before]
        if after != before:
            criu_images.replace(path, after)


def _accepted(thread: bytes) -> bytes:
    parts: list[Field] = [
        (number, wire, _closest(value) if number == _POLICY and isinstance(value, int) else value)
        for number, wire, value in criu_images.fields(thread)
    ]
    return criu_images.encode(parts)


def _closest(policy: int) -> int:
    kept = policy & ~os.SCHED_RESET_ON_FORK
    return kept if kept in _RESTORED else os.SCHED_OTHER
