"""What pages hear about kernels: one event for each change, and some for progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jupyter_events import EventLogger

SCHEMA = Path(__file__).parent / "kernel.yaml"
SCHEMA_ID = "https://events.jupyter.org/jupyter_gpuckpt/kernel/v1"
#: At most five events a second for each kernel's progress.
PROGRESS_SECONDS = 0.2


class KernelEvents:
    """Emits a kernel's view when it differs from the one before; progress alone at a limited rate."""

    def __init__(self, logger: EventLogger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._clock = logger, clock
        self._last: dict[str, tuple[float, dict[str, Any]]] = {}
        logger.register_event_schema(SCHEMA)

    def tell(self, view: dict[str, Any]) -> None:
        """The kernel is now as `view` says."""
        kernel_id, now = view["kernel_id"], self._clock()
        when, before = self._last.get(kernel_id, (-PROGRESS_SECONDS, {}))
        if before == view:
            return
        if _without_progress(before) == _without_progress(view) and now - when < PROGRESS_SECONDS:
            return
        self._last[kernel_id] = (now, view)
        self._logger.emit(schema_id=SCHEMA_ID, data=view)

    def forget(self, kernel_id: str) -> None:
        """The kernel is gone."""
        self._last.pop(kernel_id, None)


def _without_progress(view: dict[str, Any]) -> dict[str, Any]:
    operation = view.get("operation")
    if operation is None:
        return view
    progress = {"stage": operation["progress"]["stage"]}
    return {**view, "operation": {**operation, "progress": progress}}
