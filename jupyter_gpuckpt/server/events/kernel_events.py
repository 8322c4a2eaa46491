"""Jupyter events about kernels, snapshots and notices that this machine will go: one for each change, and some for progress."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..kernels.kernel_listener import KernelListener
from ..rest_records import as_event, notice_view

if TYPE_CHECKING:
    from jupyter_events import EventLogger

    from ...wire.reclaim_records import Notice
    from ...wire.snapshot_records import SnapshotChange
    from ..kernels.kernel_list import KernelList

_SCHEMAS = "https://events.jupyter.org/jupyter_gpuckpt"
KERNEL, NOTICE, SNAPSHOT = (f"{_SCHEMAS}/{name}/v1" for name in ("kernel", "notice", "snapshot"))
#: The shortest time between two progress events of a kernel, in seconds.
PROGRESS_SECONDS = 0.2


class KernelEvents(KernelListener):
    """A listener that emits changes, whichever client made them.

    A kernel's record is emitted when it differs from the last one, for progress at a limited rate.
    """

    def __init__(self, logger: EventLogger, kernels: KernelList) -> None:
        self._logger, self._kernels = logger, kernels
        self._last: dict[str, tuple[float, dict[str, Any]]] = {}
        for name in ("kernel", "notice", "snapshot"):
            logger.register_event_schema(Path(__file__).parent / f"{name}.yaml")

    def notice_changed(self, notice: Notice) -> None:
        """Emit a notice."""
        self._logger.emit(schema_id=NOTICE, data=as_event(notice_view(notice)))

    def snapshot_changed(self, change: SnapshotChange) -> None:
        """Emit a change of a snapshot."""
        self._logger.emit(schema_id=SNAPSHOT, data=msgspec.to_builtins(change))

    def kernel_changed(self, kernel_id: str) -> None:
        """Emit a kernel's record; forget a kernel that is gone."""
        if kernel_id not in self._kernels:
            self._last.pop(kernel_id, None)
            return
        view, now = as_event(self._kernels.view(kernel_id)), time.monotonic()
        when, before = self._last.get(kernel_id, (-PROGRESS_SECONDS, {}))
        if before == view:
            return
        if _without_progress(before) == _without_progress(view) and now - when < PROGRESS_SECONDS:
            return
        self._logger.emit(schema_id=KERNEL, data=view)
        # Only an emitted record is stored, so that after a failure the next change is emitted in full.
        self._last[kernel_id] = (now, view)


def _without_progress(view: dict[str, Any]) -> dict[str, Any]:
    operation = view.get("operation")
    if operation is None:
        return view
    progress = {"stage": operation["progress"]["stage"]}
    return {**view, "operation": {**operation, "progress": progress}}
