"""The newest generations of a remote's objects that this machine has seen: an older generation is refused, because somebody put it back."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..errors import FarObjectInvalid
from ..linux.file_locks import alone
from ..store.faults import store_errors
from ..store.manifests import replace_file
from ..wire import decoding
from .sealing import invalid


class _File(msgspec.Struct, frozen=True):
    store_id: bytes = b""
    #: The newest generation of each object, by the object's name.
    generations: dict[str, int] = {}


class Seen:
    """The record of the generations that were seen of one remote, in the file `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def newest(self, name: str) -> int:
        """Return the newest generation of an object that was seen. Call this before reading the object."""
        with store_errors(self._path.parent):
            return self._read().generations.get(name, 0)

    def check(self, name: str, generation: int, newest: int, store_id: bytes = b"") -> None:
        """Refuse an object whose generation is below `newest`, the result of `newest()` before the read; else record its generation.

        `store_id`: that of the keyring; the keyring of another store is refused. Raises FarObjectInvalid, StoreUnavailable.
        """
        if generation < newest:
            raise invalid(
                name,
                f"its generation {generation} is older than generation {newest}, which this machine has seen",
            )
        with store_errors(self._path.parent), alone(self._path.with_suffix(".lock")):
            known = self._read()
            if store_id and known.store_id not in {b"", store_id}:
                raise FarObjectInvalid(
                    "The remote contains another store than the one that was added.",
                    hint="Somebody replaced it. If it was you, remove the remote and add it again.",
                )
            if generation > known.generations.get(name, 0):
                changed = _File(store_id or known.store_id, known.generations | {name: generation})
                replace_file(self._path, msgspec.json.encode(changed))

    def _read(self) -> _File:
        try:
            return decoding.from_json(self._path.read_bytes(), _File)
        except FileNotFoundError:
            return _File()
        except msgspec.DecodeError as error:
            raise FarObjectInvalid(
                f"{self._path} is damaged, so an older state of the remote would not be noticed.",
                hint="Remove the file to trust the remote as it is now.",
            ) from error
