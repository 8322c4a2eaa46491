"""Removal of files that a crash left in the store and that belong to no snapshot."""

from __future__ import annotations

import logging
from pathlib import Path

from . import annotation_files, manifests, packs, stub_files

logger = logging.getLogger(__name__)


def remove(packs_directory: Path, manifests_directory: Path) -> None:
    """Remove half-written packs and manifests, and annotations and stubs without a manifest. Raises OSError."""
    for path in (
        *packs_directory.glob(packs.TEMPORARY + "*"),
        *manifests_directory.glob("*" + manifests.TEMPORARY),
    ):
        logger.info("Removing %s, which a crash left half-written.", path)
        path.unlink(missing_ok=True)
    for path in (
        *manifests_directory.glob("*" + annotation_files.SUFFIX),
        *manifests_directory.glob("*" + stub_files.SUFFIX),
    ):
        if not path.with_suffix(manifests.SUFFIX).exists():
            path.unlink(missing_ok=True)
