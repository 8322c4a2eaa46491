"""Edits of files.img before a restore, of entries that CRIU would restore wrongly or refuse.

Field numbers are those of CRIU's images/fdinfo.proto, regfile.proto and timerfd.proto.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from . import images as criu_images
from .images import Field

_VARINT = 0
_REG, _TIMERFD = 3, 12
_REG_POSITION, _REG_NAME, _REG_SIZE, _REG_BUILD_ID = 3, 6, 8, 11
#: Fields that `criu restore` compares with the file that it finds: size, build_id, checksum and its parameters.
_REG_VALIDATION = frozenset({8, 11, 12, 13, 14})
_VALUE_SECONDS, _VALUE_NANOSECONDS, _INTERVAL_SECONDS, _INTERVAL_NANOSECONDS = 7, 8, 9, 10
#: The beginning of a name in /proc that belongs to a thread.
_OF_THREAD = re.compile(rb"^(/?proc/)(\d+)/task/\d+/")

#: What was mended last, before and after: copies of a snapshot have the same images.
_last_mended = b"", b""

_Change = Callable[[list[Field]], list[Field]]


@criu_images.strict
def mend(path: Path) -> None:
    """Edit files.img so that CRIU finds files on scratch, accepts files whose size changed, and keeps timers that it would stop."""
    global _last_mended  # noqa: PLW0603 - replaced as a whole, by any thread
    before, (known, mended) = path.read_bytes(), _last_mended
    if before == known:
        path.write_bytes(mended)
        return
    _edit(path, {_REG: _mended, _TIMERFD: _rearmed})
    if len(before) <= criu_images.REMEMBERED_BYTES:
        _last_mended = before, path.read_bytes()


@criu_images.strict
def rewind(path: Path, names: Collection[str]) -> None:
    """Set the offset of these files to 0: they were recreated empty, and a write at the old offset would leave a hole."""
    wanted = {name.lstrip("/") for name in names}

    def rewound(parts: list[Field]) -> list[Field]:
        names = [value for number, _, value in parts if number == _REG_NAME]
        if not any(
            os.fsdecode(name).lstrip("/") in wanted for name in names if isinstance(name, bytes)
        ):
            return parts
        return [(n, wire, 0 if n == _REG_POSITION else value) for n, wire, value in parts]

    if wanted:
        _edit(path, {_REG: rewound})


@criu_images.strict
def rename(path: Path, names: Mapping[str, str]) -> None:
    """Rename files: `names` maps the present name of each to its new one."""

    def renamed(parts: list[Field]) -> list[Field]:
        return [
            (number, wire, _renamed(value, names) if number == _REG_NAME else value)
            for number, wire, value in parts
        ]

    if names:
        _edit(path, {_REG: renamed})


def _renamed(value: int | bytes, names: Mapping[str, str]) -> int | bytes:
    if isinstance(value, int):
        return value
    name = os.fsdecode(value)
    return os.fsencode(names.get("/" + name.lstrip("/"), name))


def _mended(parts: list[Field]) -> list[Field]:
    return _relaxed([_moved(part) for part in parts])


def _moved(part: Field) -> Field:
    """Return the name field of a file, for a thread's file that of its process's first thread.

    CRIU opens files before it makes the threads: a thread's file in /proc becomes that of its process's first thread.
    """
    number, wire, value = part
    if number == _REG_NAME and isinstance(value, bytes):
        return number, wire, _OF_THREAD.sub(rb"\1\2/task/\2/", value)
    return part


def _relaxed(parts: list[Field]) -> list[Field]:
    """Return a file's entry without the fields that CRIU compares, unless it has a build id (programs and libraries).

    Databases and logs grow while a kernel is away; IPython's own history.sqlite is written by every other kernel.
    """
    kinds = {number for number, _, _ in parts}
    if _REG_BUILD_ID in kinds or _REG_SIZE not in kinds:
        return parts
    return [part for part in parts if part[0] not in _REG_VALIDATION]


def _rearmed(parts: list[Field]) -> list[Field]:
    """Return a timer's entry that expires at once if the timer is periodic, had expired and was not read.

    Linux stops such a timer until it is read, and reports no time until its next expiry; CRIU restores it as a disarmed timer.
    """
    numbers = {number: value for number, _, value in parts}
    if not (numbers.get(_INTERVAL_SECONDS) or numbers.get(_INTERVAL_NANOSECONDS)):
        return parts
    if numbers.get(_VALUE_SECONDS) or numbers.get(_VALUE_NANOSECONDS):
        return parts
    kept = [part for part in parts if part[0] != _VALUE_NANOSECONDS]
    return [*kept, (_VALUE_NANOSECONDS, _VARINT, 1)]


def _edit(path: Path, changes: Mapping[int, _Change]) -> None:
    """Replace the fields of every entry of the kinds that `changes` names, in one pass."""
    edited = []
    for message in criu_images.messages(path):
        parts, is_edited = list(criu_images.fields(message)), False
        for index, (number, wire, value) in enumerate(parts):
            if number in changes and isinstance(value, bytes):
                before = list(criu_images.fields(value))
                if (changed := changes[number](before)) != before:
                    parts[index] = (number, wire, criu_images.encode(changed))
                    is_edited = True
        edited.append(criu_images.encode(parts) if is_edited else message)
    criu_images.replace(path, edited)
