"""The creation of a store's folders, which only their owner can read."""

from __future__ import annotations

from pathlib import Path

from ..errors import ConfigurationError
from ..linux import disk_reserve

#: The name of the file with a store's catalog.
CATALOG = "catalog.sqlite"
#: What may be in a folder before it is a store.
_EARLY = frozenset({"lock", disk_reserve.NAME, disk_reserve.FILES_NAME})


def prepare(root: Path, packs: Path) -> None:
    """Create the folder of a store, whose packs will be in `packs`. Raises OSError, ConfigurationError if it holds other files."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    is_store = packs.exists() or (root / CATALOG).exists()  # the packs may have been removed
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
