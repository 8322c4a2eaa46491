"""Jupyter events about snapshots: one for each change, whichever client made it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..kernels.kernel_listener import KernelListener

if TYPE_CHECKING:
    from jupyter_events import EventLogger

    from ...wire.snapshot_records import SnapshotChange

SCHEMA = Path(__file__).parent / "snapshot.yaml"
SCHEMA_ID = "https://events.jupyter.org/jupyter_gpuckpt/snapshot/v1"


class SnapshotEvents(KernelListener):
    """A listener that emits the changes of snapshots that the daemon reports."""

    def __init__(self, logger: EventLogger) -> None:
        self._logger = logger
        logger.register_event_schema(SCHEMA)

    def snapshot_changed(self, change: SnapshotChange) -> None:
        """Emit a change of a snapshot."""
        self._logger.emit(schema_id=SCHEMA_ID, data=msgspec.to_builtins(change))
