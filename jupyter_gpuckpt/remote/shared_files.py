"""A storage of objects as plain files in a folder that several hosts may share. Their records are not encrypted.

A file lock and a rename implement compare-and-swap. Every version of a record has a fresh nonce, so no two are equal. Modification times
are the file server's: nothing else sets them, and a file is opened before its time is read, which makes NFS ask the server.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import RemoteObjectInvalid, RemoteObjectMissing
from ..linux.disk_reserve import with_room
from ..linux.file_locks import alone
from ..store.faults import store_errors
from ..store.manifests import TEMPORARY
from ..wire import decoding, ids
from .objects import ListedObject, Stored, Version

_LOCK = "lock"
_MAX_FILE_BYTES = 1 << 20

_Record = TypeVar("_Record")


class SharedFiles:
    """Objects `<folder>/<id>` below the folder `root`. Thread-safe. Methods raise StoreUnavailable, StoreFull."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def name(self) -> str:
        """The folder, for messages."""
        return str(self._root)

    def get(self, name: str, *, max_bytes: int = _MAX_FILE_BYTES) -> Stored:
        """Return an object. Raises RemoteObjectMissing, RemoteObjectInvalid."""
        with store_errors(self._root):
            try:
                with self._path(name).open("rb") as file:
                    data = file.read(max_bytes + 1)
                    modified = os.fstat(file.fileno()).st_mtime
            except FileNotFoundError as error:
                raise RemoteObjectMissing(f"{name} is not in {self._root}.") from error
        if len(data) > max_bytes:
            raise _damaged(name, "it is too long")
        return Stored(data, _version(data), datetime.fromtimestamp(modified, UTC))

    def create(self, name: str, data: bytes) -> bool:
        """Write an object if it does not exist; return whether it was written."""
        return self._write(name, data, None)

    def swap(self, name: str, data: bytes, old: Version) -> bool:
        """Replace the version `old` of an object; return whether it was replaced."""
        return self._write(name, data, old)

    def delete(self, names: Sequence[str]) -> list[str]:
        """Delete objects. Missing objects are no error."""
        with store_errors(self._root):
            for name in names:
                self._path(name).unlink(missing_ok=True)
        return []

    def list(self, folder: str) -> list[ListedObject]:
        """Return the objects of a folder."""
        found = []
        with store_errors(self._root), suppress(FileNotFoundError):
            for entry in os.scandir(self._root / folder):
                if ids.is_id(entry.name) and not entry.name.endswith(TEMPORARY):
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        modified = datetime.fromtimestamp(status.st_mtime, UTC)
                        found.append(
                            ListedObject(f"{folder}/{entry.name}", status.st_size, modified)
                        )
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude all writers inside the block."""
        with store_errors(self._root), alone(self._root / _LOCK):
            yield

    def _write(self, name: str, data: bytes, old: Version | None) -> bool:
        path = self._path(name)
        with self.locked():
            try:
                found = _version(path.read_bytes())
            except FileNotFoundError:
                found = None
            if found != old:
                return False
            with_room(path, lambda: path.parent.mkdir(mode=0o700, exist_ok=True))
            with_room(path, lambda: self._replace(path, data))
        return True

    def _replace(self, path: Path, data: bytes) -> None:
        # No sync is needed: a power cut also ends the kernels that the leases are for, and NFS writes a file when it is closed.
        temporary = path.with_name(path.name + TEMPORARY)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.rename(path)

    def _path(self, name: str) -> Path:
        folder, _, last = name.partition("/")
        if not (ids.is_id(folder) and ids.is_id(last)):
            raise _damaged(name, "it cannot be the name of a file")
        return self._root / folder / last


class Plain:
    """The encoding of records as JSON with a nonce, without encryption."""

    def seal_record(self, name: str, record: object) -> bytes:
        """Encode a record with a fresh nonce as the content of the object `name`."""
        return msgspec.json.encode([secrets.token_hex(16), record])

    def open_record(self, name: str, data: bytes, kind: type[_Record]) -> _Record:
        """Return the record that an object holds. Raises RemoteObjectInvalid."""
        try:
            parts = decoding.from_json(data, tuple[str, msgspec.Raw])
            return decoding.from_json(bytes(parts[1]), kind)
        except msgspec.MsgspecError as error:
            raise _damaged(name, f"it cannot be decoded ({error})") from error


class NothingSeen:
    """A memory of no generations: whoever could put back an older file here could also forge a new one."""

    def newest(self, name: str) -> int:
        """Return 0, because nothing is remembered."""
        return 0

    def check(self, name: str, generation: int, newest: int) -> None:
        """Accept every object."""


def _version(data: bytes) -> Version:
    return {"digest": hashlib.blake2b(data, digest_size=16).hexdigest()}


def _damaged(name: str, why: str) -> RemoteObjectInvalid:
    return RemoteObjectInvalid(
        f"{name[:200]} in the data directory is damaged: {why}.",
        hint="It is not used. Nothing has to be done: it is created again.",
    )
