"""The file that names the damaged snapshots of a store.

Another process cannot open the store to find out (`jupyter gpuckpt doctor`).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..wire import decoding
from .faults import store_errors
from .manifests import replace_file

_FILE = "damaged.json"


def read(root: Path) -> list[str]:
    """Return the ids of damaged snapshots; none if the store in `root` has no file, or one that cannot be read."""
    try:
        return decoding.from_json((root / _FILE).read_bytes(), list[str])
    except (OSError, msgspec.DecodeError):
        return []


def write(root: Path, snapshot_ids: list[str]) -> None:
    """Write these ids, unless the file has them. Raises StoreUnavailable, StoreFull."""
    with store_errors(root):
        if not snapshot_ids:
            (root / _FILE).unlink(missing_ok=True)
        elif snapshot_ids != read(root):
            replace_file(root / _FILE, msgspec.json.encode(snapshot_ids))
