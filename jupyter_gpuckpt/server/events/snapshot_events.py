"""What pages hear about snapshots: one event for each change, whoever made it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from jupyter_events import EventLogger

    from ...snapshot_records import SnapshotChange

SCHEMA = Path(__file__).parent / "snapshot.yaml"
SCHEMA_ID = "https://events.jupyter.org/jupyter_gpuckpt/snapshot/v1"


class SnapshotEvents:
    """Emits what the daemon tells of its store. `logger` None: nobody hears it."""

    def __init__(self, logger: EventLogger | None) -> None:
        self._logger = logger
        if logger is not None:
            logger.register_event_schema(SCHEMA)

    def tell(self, change: SnapshotChange) -> None:
        """A snapshot came, changed or went."""
        if self._logger is not None:
            self._logger.emit(schema_id=SCHEMA_ID, data=msgspec.to_builtins(change))
