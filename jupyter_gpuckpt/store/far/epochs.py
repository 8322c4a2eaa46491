"""Epochs of the collector, and the packs that it has condemned (`collect.py`).

The object `epoch` names the newest list of condemned packs that is complete. A pack that was condemned once never answers a
question again, even if something needs it after all: an older collector that wakes up may still remove it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, NamedTuple

import msgspec

from ...errors import FarObjectMissing
from .buckets import Bucket, Version
from .far_packs import is_name as is_pack_name
from .sealing import Seal, invalid
from .seen import Seen

NAME = "epoch"
FOLDER = "condemned"
_MOST_BYTES = 64 << 20
_ATTEMPTS = 5


class Epoch(msgspec.Struct, frozen=True):
    """The collector's count. `condemned`: of the epoch whose list counts; 0: none does."""

    number: Annotated[int, msgspec.Meta(ge=0)] = 0
    condemned: Annotated[int, msgspec.Meta(ge=0)] = 0


class _Condemned(msgspec.Struct, frozen=True):
    packs: list[str]


class Now(NamedTuple):
    """An epoch as it was read, and the packs that count as gone. `version` None: no collector has been there yet."""

    epoch: Epoch
    version: Version | None
    condemned: set[str]


def read(bucket: Bucket, seal: Seal, seen: Seen) -> Now:
    """Return the epoch now. Raises FarObjectInvalid, also where it is older than one that was seen."""
    for _ in range(_ATTEMPTS):
        epoch, version = _read(bucket, seal, seen)
        if not epoch.condemned:
            return Now(epoch, version, set())
        # The list is removed when a later epoch has begun.
        with suppress(FarObjectMissing):
            return Now(epoch, version, read_list(bucket, seal, epoch.condemned))
    raise invalid(list_name(epoch.condemned), "the epoch names it, and it is gone")


def _read(bucket: Bucket, seal: Seal, seen: Seen) -> tuple[Epoch, Version | None]:
    newest = seen.newest(NAME)
    try:
        stored = bucket.get(NAME, most_bytes=_MOST_BYTES)
    except FarObjectMissing:
        if newest:
            raise invalid(NAME, "it was there, and is gone") from None
        return Epoch(), None
    epoch = seal.open_record(NAME, stored.data, Epoch)
    if epoch.condemned > epoch.number:
        raise invalid(NAME, "it does not make sense")
    seen.check(NAME, epoch.number, newest)
    return epoch, stored.version


def advance(bucket: Bucket, seal: Seal, now: Now, after: Epoch) -> bool:
    """Begin the next epoch; False where somebody else has."""
    data = seal.seal_record(NAME, after)
    return (
        bucket.create(NAME, data) if now.version is None else bucket.swap(NAME, data, now.version)
    )


def list_name(number: int) -> str:
    """Return the name of an epoch's list."""
    return f"{FOLDER}/{number}"


def read_list(bucket: Bucket, seal: Seal, number: int) -> set[str]:
    """Return an epoch's list. Raises FarObjectMissing, FarObjectInvalid."""
    name = list_name(number)
    packs = seal.open_record(name, bucket.get(name, most_bytes=_MOST_BYTES).data, _Condemned).packs
    if not all(map(is_pack_name, packs)):
        raise invalid(name, "it names what is no pack")
    return set(packs)


def write_list(bucket: Bucket, seal: Seal, number: int, packs: set[str]) -> bool:
    """Write an epoch's list; False where there is one already."""
    name = list_name(number)
    return bucket.create(name, seal.seal_record(name, _Condemned(sorted(packs))))
