"""The lock that gives a store to one process at a time."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path

import msgspec

from ..errors import StoreUnavailable
from ..wire import decoding
from ..wire.deadlines import boot_id

logger = logging.getLogger(__name__)


class StoreLock:
    """The lock of a store, held from construction to `release` or to the end of the process.

    It is a flock, which NFS passes to its server; the file's content only names the holder. A file that names another host although
    the lock was free is reported in the log: either that host crashed, or the file system does not share locks between hosts.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            holder = self._holder()
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreUnavailable(
                    f"The snapshot store {path.parent} is in use by process {holder.get('pid', '?')} "
                    f"on host {holder.get('host', '?')}.",
                    hint="Stop that gpuckptd, or choose another store: only one process may write to it.",
                ) from error
            here = {"host": socket.gethostname(), "boot": boot_id(), "pid": os.getpid()}
            if holder and holder.get("host") != here["host"]:
                logger.warning(
                    "The store %s was not released by process %s on host %s, which crashed or still uses it.",
                    path.parent, holder.get("pid"), holder.get("host"),
                )  # fmt: skip
            self._name(json.dumps(here).encode())
        except BaseException:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        """Release the lock; may be called again."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1

    def _name(self, holder: bytes) -> None:
        """Write who holds the lock. A full disk does not keep a store from being opened."""
        # The file is not emptied before: its block might go to another file.
        with suppress(OSError):
            os.pwrite(self._descriptor, holder, 0)
            os.ftruncate(self._descriptor, len(holder))

    def _holder(self) -> dict[str, object]:
        try:
            return decoding.from_json(os.pread(self._descriptor, 4096, 0), dict[str, object])
        except msgspec.DecodeError:
            return {}


def names_another_host(path: Path) -> bool:
    """Return whether the last holder of a store's lock was on another host, and has not released it."""
    try:
        found = decoding.from_json(path.read_bytes()[:4096], dict[str, object])
    except (FileNotFoundError, msgspec.DecodeError):
        return False
    return (found.get("host"), found.get("boot")) != (socket.gethostname(), boot_id())
