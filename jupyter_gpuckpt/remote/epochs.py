"""Epochs of the collector, and the packs that it has condemned (`collector.py`).

The object `epoch` names the newest complete list of condemned packs. No upload relies on a pack that was ever condemned, even if a
manifest needs the pack after all: an older collector that continues later may still remove it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, NamedTuple

import msgspec

from ..errors import RemoteObjectMissing
from .buckets import Bucket
from .objects import Version
from .pack_refs import is_name as is_pack_name
from .sealing import Seal, invalid
from .seen import Seen

NAME = "epoch"
FOLDER = "condemned"
_MAX_RECORD_BYTES = 64 << 20
_ATTEMPTS = 5


class Epoch(msgspec.Struct, frozen=True):
    """The collector's counter. `condemned`: the epoch whose list of condemned packs is valid; 0 if there is none."""

    number: Annotated[int, msgspec.Meta(ge=0)] = 0
    condemned: Annotated[int, msgspec.Meta(ge=0)] = 0


class _Condemned(msgspec.Struct, frozen=True):
    packs: list[str]


class CurrentEpoch(NamedTuple):
    """The current epoch and its condemned packs. `version` is None if no collector has run yet."""

    epoch: Epoch
    version: Version | None
    condemned: set[str]


def read(bucket: Bucket, seal: Seal, seen: Seen) -> CurrentEpoch:
    """Return the current epoch. Raises RemoteObjectInvalid, also if it is older than an epoch that this machine has seen."""
    for _ in range(_ATTEMPTS):
        epoch, version = _read(bucket, seal, seen)
        if not epoch.condemned:
            return CurrentEpoch(epoch, version, set())
        # The list is removed when a later epoch has begun.
        with suppress(RemoteObjectMissing):
            return CurrentEpoch(epoch, version, read_list(bucket, seal, epoch.condemned))
    raise invalid(list_name(epoch.condemned), "the epoch names it, but it is missing")


def _read(bucket: Bucket, seal: Seal, seen: Seen) -> tuple[Epoch, Version | None]:
    newest = seen.newest(NAME)
    try:
        stored = bucket.get(NAME, max_bytes=_MAX_RECORD_BYTES)
    except RemoteObjectMissing:
        if newest:
            raise invalid(NAME, "this machine has seen it, but it is missing now") from None
        return Epoch(), None
    epoch = seal.open_record(NAME, stored.data, Epoch)
    if epoch.condemned > epoch.number:
        raise invalid(NAME, "its condemned epoch is newer than itself")
    seen.check(NAME, epoch.number, newest)
    return epoch, stored.version


def advance(bucket: Bucket, seal: Seal, now: CurrentEpoch, after: Epoch) -> bool:
    """Begin the epoch `after`; return False if another collector has begun one since `now`."""
    data = seal.seal_record(NAME, after)
    return (
        bucket.create(NAME, data) if now.version is None else bucket.swap(NAME, data, now.version)
    )


def list_name(number: int) -> str:
    """Return the name of an epoch's list of condemned packs."""
    return f"{FOLDER}/{number}"


def read_list(bucket: Bucket, seal: Seal, number: int) -> set[str]:
    """Return an epoch's list. Raises RemoteObjectMissing, RemoteObjectInvalid."""
    name = list_name(number)
    packs = seal.open_record(
        name, bucket.get(name, max_bytes=_MAX_RECORD_BYTES).data, _Condemned
    ).packs
    if not all(map(is_pack_name, packs)):
        raise invalid(name, "it contains a name that no pack can have")
    return set(packs)


def write_list(bucket: Bucket, seal: Seal, number: int, packs: set[str]) -> bool:
    """Write an epoch's list; return False if there is one already."""
    name = list_name(number)
    return bucket.create(name, seal.seal_record(name, _Condemned(sorted(packs))))
