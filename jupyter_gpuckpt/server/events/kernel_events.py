"""Jupyter events about kernels: one for each change, and some for progress."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..kernels.kernel_listener import KernelListener
from ..rest_records import as_event

if TYPE_CHECKING:
    from jupyter_events import EventLogger

    from ..kernels.kernel_list import KernelList

SCHEMA = Path(__file__).parent / "kernel.yaml"
SCHEMA_ID = "https://events.jupyter.org/jupyter_gpuckpt/kernel/v1"
#: The shortest time between two progress events of a kernel, in seconds.
PROGRESS_SECONDS = 0.2


class KernelEvents(KernelListener):
    """A listener that emits a kernel's record when it differs from the last one, and progress at a limited rate."""

    def __init__(self, logger: EventLogger, kernels: KernelList) -> None:
        self._logger, self._kernels = logger, kernels
        self._last: dict[str, tuple[float, dict[str, Any]]] = {}
        logger.register_event_schema(SCHEMA)

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
        self._logger.emit(schema_id=SCHEMA_ID, data=view)
        # Only an emitted record is stored, so that after a failure the next change is emitted in full.
        self._last[kernel_id] = (now, view)


def _without_progress(view: dict[str, Any]) -> dict[str, Any]:
    operation = view.get("operation")
    if operation is None:
        return view
    progress = {"stage": operation["progress"]["stage"]}
    return {**view, "operation": {**operation, "progress": progress}}
