"""A snapshot that is on the disk and does not exist yet: what happens between the two is up to the caller."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from ..model import Manifest
from . import manifests
from .faults import store_errors


class Staged:
    """A manifest that was written to the disk under a temporary name; `manifest` is what was read back from there.

    Use as a context manager: leaving it without `publish` removes the file, and a crash inside leaves a file that the next
    opening of the store removes. Making it raises OSError.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._file, self.manifest = manifests.stage(directory, manifest)
        self.published = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.published:
            self._file.unlink(missing_ok=True)

    def publish(self) -> None:
        """Make the snapshot exist: durable when this returns, and then only. Raises StoreFull, StoreUnavailable."""
        with store_errors(self._file.parent):
            manifests.commit(self._file)
        self.published = True
