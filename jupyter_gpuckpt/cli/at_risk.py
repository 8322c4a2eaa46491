"""What would be lost of each kernel if this machine were lost with its disk, as far as remotes have its snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..wire.protocol import Kernel
from ..wire.snapshot_records import Snapshot, Upload, UploadState
from ..wire.states import ALIVE
from . import printing

#: A periodic save is late when twice its interval has passed, and this time for the save and its upload.
_GRACE_SECONDS = 30.0


class AtRisk(NamedTuple):
    """What would be lost of a kernel: its work of the last `seconds`; None: all of it. `is_late`: periodic saves should have saved it."""

    seconds: float | None
    is_late: bool = False

    def __str__(self) -> str:
        if self.seconds is None:
            return "all"
        return printing.duration(self.seconds) if self.seconds else "nothing"


def at_risk(kernel: Kernel, snapshots: Iterable[Snapshot], now: float) -> AtRisk:
    """Return what would be lost of a kernel. `snapshots`: of all kernels, newest first."""
    own = [one for one in snapshots if one.kernel_id == kernel.kernel_id]
    there = next((one for one in own if _is_there(one.uploads)), None)
    interval = kernel.autosave_seconds
    runs = kernel.state in ALIVE
    # Without periodic saves nobody looks for changes, so a kernel that runs may have changed all the time.
    has_changed = runs and (bool(kernel.changed_at) or not interval)
    if there is None:
        began = kernel.changed_at or now
        return AtRisk(None, bool(interval) and has_changed and _is_late(now - began, interval))
    if there is own[0]:
        seconds = now - (kernel.changed_at or there.created) if has_changed else 0.0
    else:
        seconds = (now if has_changed else own[0].created) - there.created
    return AtRisk(max(0.0, seconds), bool(interval) and runs and _is_late(seconds, interval))


def _is_there(uploads: Sequence[Upload]) -> bool:
    return any(one.state is UploadState.UPLOADED for one in uploads)


def _is_late(seconds: float, interval_seconds: float) -> bool:
    return seconds > 2 * interval_seconds + _GRACE_SECONDS
