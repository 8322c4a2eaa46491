"""What this machine has seen of a remote: its key, and the newest generations of objects, below which an object was put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ..errors import RemoteObjectInvalid
from ..linux.file_locks import alone
from ..store.faults import store_errors
from ..store.manifests import replace_file
from ..wire import decoding
from .sealing import invalid


class _File(msgspec.Struct, frozen=True):
    #: The newest generation of each object, by the object's name.
    generations: dict[str, int] = {}


class Seen:
    """The record of the generations that were seen of one remote, in the file `path`, and of the last key that was opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: The file of the remote's key as it was last opened, which can be put back (`store_key`).
        self.key_path = path.with_suffix(".key")

    def kept_key(self) -> bytes:
        """Return the object `key` as this machine last opened it; empty if it never did."""
        with store_errors(self._path.parent), suppress(FileNotFoundError):
            return self.key_path.read_bytes()
        return b""

    def keep_key(self, data: bytes) -> None:
        """Keep the object `key`. The caller holds the lock."""
        replace_file(self.key_path, data)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the record inside the block. Raises StoreUnavailable."""
        with store_errors(self._path.parent), alone(self._path.with_suffix(".lock")):
            yield

    def newest(self, name: str) -> int:
        """Return the newest generation of an object that was seen. Call this before reading the object."""
        with store_errors(self._path.parent):
            return self._read().generations.get(name, 0)

    def check(self, name: str, generation: int, newest: int) -> None:
        """Refuse an object whose generation is below `newest`, the result of `newest()` before the read; else record its generation.

        Raises RemoteObjectInvalid, StoreUnavailable.
        """
        if generation < newest:
            raise invalid(
                name,
                f"its generation {generation} is older than generation {newest}, which this machine has seen",
            )
        with self.locked():
            known = self._read()
            if generation > known.generations.get(name, 0):
                changed = _File(known.generations | {name: generation})
                replace_file(self._path, msgspec.json.encode(changed))

    def _read(self) -> _File:
        try:
            return decoding.from_json(self._path.read_bytes(), _File)
        except FileNotFoundError:
            return _File()
        except msgspec.DecodeError as error:
            raise RemoteObjectInvalid(
                f"{self._path} is damaged, so an older state of the remote would not be noticed.",
                hint="Remove the file to trust the remote as it is now.",
            ) from error
