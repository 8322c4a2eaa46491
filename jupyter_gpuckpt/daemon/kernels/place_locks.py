"""The locks of places in a data directory. A place's daemon holds the place's lock for its whole life."""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import DaemonUnavailable
from ...linux.disk_reserve import with_room
from ...linux.file_locks import is_locked, lock_or_refuse
from ...wire.place import Place


class PlaceLocks:
    """The locks `<place>.lock` in a folder, as seen by the daemon of `place`. Methods raise OSError."""

    def __init__(self, folder: Path, place: Place) -> None:
        self._folder, self._place = folder, place
        self._lock = -1

    def hold(self) -> None:
        """Acquire the lock of the own place. Raises DaemonUnavailable if another daemon has it."""
        path = self._path(self._place)
        self._lock = with_room(path, lambda: lock_or_refuse(path))
        if self._lock < 0:
            raise DaemonUnavailable(
                "Another daemon of this place uses the data directory through another runtime directory.",
                hint="Use the same JUPYTER_GPUCKPT_RUNTIME_DIR everywhere.",
            )

    def release(self) -> None:
        """Release this daemon's lock."""
        self._path(self._place).unlink(missing_ok=True)
        os.close(self._lock)

    def is_held(self, place: Place) -> bool | None:
        """Return whether the daemon of a place holds its lock; None if it has exited and removed the file."""
        return is_locked(self._path(place))

    def _path(self, place: Place) -> Path:
        return self._folder / f"{place.key}.lock"
