"""Edits of files.img before a restore: what CRIU would restore wrongly, or refuse, is written as it can be restored.

Field numbers are those of CRIU's images/fdinfo.proto, regfile.proto and timerfd.proto.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from . import criu_images
from .criu_images import Field

_VARINT = 0
_REG, _TIMERFD = 3, 12
_REG_POSITION, _REG_NAME, _REG_SIZE, _REG_BUILD_ID = 3, 6, 8, 11
#: size, build_id, checksum and its parameters: what `criu restore` compares with the file that it finds.
_REG_VALIDATION = frozenset({8, 11, 12, 13, 14})
_VALUE_SECONDS, _VALUE_NANOSECONDS, _INTERVAL_SECONDS, _INTERVAL_NANOSECONDS = 7, 8, 9, 10


@criu_images.strict
def relax_validation(path: Path) -> None:
    """Make `criu restore` accept files whose size changed, except those with a build id (programs and libraries).

    Databases and logs grow while a kernel is away; IPython's own history.sqlite is written by every other kernel.
    """

    def relax(parts: list[Field]) -> list[Field]:
        kinds = {number for number, _, _ in parts}
        if _REG_BUILD_ID in kinds or _REG_SIZE not in kinds:
            return parts
        return [part for part in parts if part[0] not in _REG_VALIDATION]

    _edit(path, _REG, relax)


@criu_images.strict
def rearm_timers(path: Path) -> None:
    """Let periodic timers that had expired and were not read expire at once.

    Linux stops such a timer until it is read, and reports no time until its next expiry; CRIU restores that as a timer that
    was switched off.
    """

    def rearm(parts: list[Field]) -> list[Field]:
        numbers = {number: value for number, _, value in parts}
        if not (numbers.get(_INTERVAL_SECONDS) or numbers.get(_INTERVAL_NANOSECONDS)):
            return parts
        if numbers.get(_VALUE_SECONDS) or numbers.get(_VALUE_NANOSECONDS):
            return parts
        kept = [part for part in parts if part[0] != _VALUE_NANOSECONDS]
        return [*kept, (_VALUE_NANOSECONDS, _VARINT, 1)]

    _edit(path, _TIMERFD, rearm)


@criu_images.strict
def rewind(path: Path, names: Collection[str]) -> None:
    """Set the offset of the files of these paths to 0: they were made anew, empty, and would begin with a hole otherwise."""
    wanted = {name.lstrip("/") for name in names}

    def rewound(parts: list[Field]) -> list[Field]:
        names = [value for number, _, value in parts if number == _REG_NAME]
        if not any(
            os.fsdecode(name).lstrip("/") in wanted for name in names if isinstance(name, bytes)
        ):
            return parts
        return [(n, wire, 0 if n == _REG_POSITION else value) for n, wire, value in parts]

    if wanted:
        _edit(path, _REG, rewound)


def _edit(path: Path, kind: int, change: Callable[[list[Field]], list[Field]]) -> None:
    """Replace the fields of every entry of one kind."""
    edited = []
    for message in criu_images.messages(path):
        parts = list(criu_images.fields(message))
        for index, (number, wire, value) in enumerate(parts):
            if number == kind and isinstance(value, bytes):
                changed = change(list(criu_images.fields(value)))
                parts[index] = (number, wire, criu_images.encode(changed))
        edited.append(criu_images.encode(parts))
    criu_images.replace(path, edited)
