"""Jupyter events about notices that this machine will go: one for each change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..kernels.kernel_listener import KernelListener
from ..rest_records import as_event, notice_view

if TYPE_CHECKING:
    from jupyter_events import EventLogger

    from ...wire.reclaim_records import Notice

SCHEMA = Path(__file__).parent / "notice.yaml"
SCHEMA_ID = "https://events.jupyter.org/jupyter_gpuckpt/notice/v1"


class NoticeEvents(KernelListener):
    """A listener that emits the notices that the daemon reports."""

    def __init__(self, logger: EventLogger) -> None:
        self._logger = logger
        logger.register_event_schema(SCHEMA)

    def notice_changed(self, notice: Notice) -> None:
        """Emit a notice."""
        self._logger.emit(schema_id=SCHEMA_ID, data=as_event(notice_view(notice)))
