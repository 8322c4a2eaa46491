"""The operations that leases and remote sessions need from the storage of their objects: a bucket, or a folder that hosts share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar

_Record = TypeVar("_Record")
#: The version of an object, as conditional writes expect it.
Version = Mapping[str, str]


class ListedObject(NamedTuple):
    """The entry of an object in a list. `modified`: by the remote's clock."""

    name: str
    size: int
    modified: datetime


class Stored(NamedTuple):
    """An object's content with its version."""

    data: bytes
    version: Version
    modified: datetime


class Objects(Protocol):
    """A storage of objects with compare-and-swap."""

    @property
    def name(self) -> str:
        """The name of the place, for messages."""

    def get(self, name: str, *, max_bytes: int = ...) -> Stored:
        """Return an object. Raises RemoteObjectMissing."""

    def create(self, name: str, data: bytes) -> bool:
        """Write an object if it does not exist; return whether this write created it."""

    def swap(self, name: str, data: bytes, old: Version) -> bool:
        """Replace the version `old` of an object; return whether the object now has this content."""

    def delete(self, names: Sequence[str]) -> list[str]:
        """Delete objects; return those that cannot be deleted."""

    def list(self, folder: str) -> list[ListedObject]:
        """Return the objects below a folder."""


class Sealing(Protocol):
    """The encoding of records as objects. Two encodings of a record never have the same bytes."""

    def seal_record(self, name: str, record: object) -> bytes:
        """Return the object `name` that holds a record."""

    def open_record(self, name: str, data: bytes, kind: type[_Record]) -> _Record:
        """Return the record that the object `name` holds. Raises RemoteObjectInvalid."""


class Remembering(Protocol):
    """The memory of the generations that were seen, by which older states are refused."""

    def newest(self, name: str) -> int:
        """Return the newest generation of an object that was seen."""

    def check(self, name: str, generation: int, newest: int) -> None:
        """Raise RemoteObjectInvalid for an object that is older than `newest`."""
