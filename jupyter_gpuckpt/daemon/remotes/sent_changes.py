"""The file that records what this machine has sent to one remote about its snapshots: pins, titles, and which it has only there.

A state that differs from the record is sent again. So no change is lost when a daemon ends or the remote cannot be reached.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from ...remote.listed_facts import Told
from ...store.faults import store_errors
from ...wire import decoding
from ..kernels.whole_files import change_records

_log = logging.getLogger(__name__)


class SentChanges:
    """The file of changes sent to one remote, in the folder of its local state. Thread-safe. Methods raise StoreUnavailable, StoreFull."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "told.json"

    def all(self) -> dict[str, Told]:
        """Return what was sent, by snapshot; nothing if the file is damaged. Then only changes that protect snapshots are sent."""
        with store_errors(self._path.parent):
            try:
                return decoding.from_json(self._path.read_bytes(), dict[str, Told])
            except FileNotFoundError:
                return {}
            except msgspec.DecodeError as error:
                _log.warning("%s is damaged, so its changes are sent again: %s", self._path, error)
                return {}

    def note(self, told: Mapping[str, Told], forgotten: Collection[str] = ()) -> None:
        """Record what was sent about snapshots, and remove the records of those in `forgotten`."""
        change_records(
            self._path,
            self.all,
            lambda known: {k: v for k, v in {**known, **told}.items() if k not in forgotten},
        )
