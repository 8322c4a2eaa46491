"""The folders of a store: their creation, for their owner alone, and the removal of what a crash left in them."""

from __future__ import annotations

import logging
from pathlib import Path

from ..errors import ConfigurationError
from ..linux import disk_reserve
from . import annotation_files, manifests, packs, stub_files

logger = logging.getLogger(__name__)

#: The name of the file with a store's catalog.
CATALOG = "catalog.sqlite"
#: What may be in a folder before it is a store.
_EARLY = frozenset({"lock", disk_reserve.NAME, disk_reserve.FILES_NAME})


def prepare(root: Path, packs_directory: Path) -> None:
    """Create the folder of a store. Raises OSError, ConfigurationError if it holds other files."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    is_store = (
        packs_directory.exists() or (root / CATALOG).exists()
    )  # the packs may have been removed
    if not is_store and any(p.name not in _EARLY for p in root.iterdir()):
        raise ConfigurationError(
            f"{root} holds other files, so it is not used as a snapshot store.",
            hint="Choose a directory that is empty, or that does not exist yet.",
        )
    make(root)


def make(path: Path) -> None:
    """Create a folder with mode 0700. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)


def remove_leftovers(packs_directory: Path, manifests_directory: Path) -> None:
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
