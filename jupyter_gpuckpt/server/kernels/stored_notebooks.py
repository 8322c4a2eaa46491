"""The notebook in a snapshot, validated and without any trust that the snapshot itself claims: it may come from anywhere."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
import nbformat

from ...errors import ManifestInvalid
from ...wire import calls

if TYPE_CHECKING:
    from .daemon_link import DaemonLink

_NBFORMAT = 4


class StoredNotebook(msgspec.Struct, frozen=True):
    """A notebook from a snapshot; None if there is none. `modified`: when its file was last written before the snapshot."""

    notebook: dict[str, Any] | None = None
    modified: float = 0.0


class StoredNotebooks:
    """A reader of the notebooks in snapshots."""

    def __init__(self, link: DaemonLink, contents: Any) -> None:
        self._link, self._contents = link, contents

    async def notebook(self, snapshot_id: str) -> StoredNotebook:
        """Return the notebook in a snapshot. Raises SnapshotNotFound, ObjectCorrupt, and ManifestInvalid if it is not a valid notebook.

        As in a file, outputs are trusted only if this user has signed exactly this notebook.
        """
        found = await self._link.daemon.send(calls.snapshot_notebook(snapshot_id))
        if not found.modified:
            return StoredNotebook()
        try:
            notebook = await asyncio.to_thread(_valid, bytes(found.notebook))
        except (nbformat.ValidationError, ValueError, RecursionError) as error:
            raise ManifestInvalid(
                f"The notebook in snapshot {snapshot_id} is not valid.",
                hint="The kernel can be restored without its cells and outputs.",
                details=str(error),
            ) from error
        notary = getattr(self._contents, "notary", None)
        trusted = notary is not None and notary.check_signature(notebook)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.metadata["trusted"] = trusted
        return StoredNotebook(notebook, found.modified)


def _valid(data: bytes) -> Any:
    """Return a validated notebook. Raises nbformat.ValidationError, ValueError, RecursionError."""
    plain = json.loads(data)
    if not isinstance(plain, dict) or plain.get("nbformat") != _NBFORMAT:
        raise ValueError(f"its format is not version {_NBFORMAT}")
    # What follows expects a valid notebook: it raises TypeError for others.
    nbformat.validate(plain)
    # This joins texts that are stored as lists of lines, and removes the trust that the notebook claims.
    return nbformat.v4.to_notebook(plain)  # type: ignore[no-untyped-call]
