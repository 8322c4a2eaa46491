"""A reader and editor of CRIU's image files, at the level of protobuf's wire format.

The images are magic numbers followed by length-prefixed messages (criu/protobuf.c). Only fields that this project needs are
named here (images/*.proto of CRIU 4.x); everything else passes through unread, so that newer images survive an edit byte
for byte. See https://protobuf.dev/programming-guides/encoding/ for the format.

Snapshots are untrusted input: an invalid image raises ObjectCorrupt, and nothing else.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec

from ...errors import ObjectCorrupt

_MAGIC_BYTES = 8
_LENGTH = struct.Struct("<I")
_COPY_BYTES = 4 << 20
#: The size of a files.img or a pagemap, with a few thousand entries, up to which its content is remembered.
REMEMBERED_BYTES = 1 << 20
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

PAGE = 4096
#: pagemap_entry.flags (criu/include/pagemap.h).
PAGEMAP_FLAGS, PAGEMAP_COUNT = 4, 5
PE_LAZY, PE_PRESENT = 2, 4

#: core_entry and thread_core_entry (images/core.proto), and the policies that CRIU restores (criu/cr-restore.c, validate_sched_parm).
_THREAD_CORE, _POLICY = 5, 4
_RESTORED = {os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE, os.SCHED_FIFO, os.SCHED_RR}

#: pstree_entry (images/pstree.proto).
_TREE_PID, _TREE_THREADS = 1, 5
#: PID_MAX_LIMIT of 64-bit Linux (include/linux/threads.h).
_MAX_PID = 1 << 22

#: fdinfo_entry (images/fdinfo.proto).
_FD_NUMBER = 4

#: remap_type (images/remap-file-path.proto).
_REMAP_LINKED, _REMAP_GHOST = 0, 1
_FILE_REG = 3
_REG_ID, _REG_FLAGS, _REG_POSITION = 1, 2, 3
_REG_NAME, _REG_SIZE, _REG_MODE, _REG_BUILD_ID = 6, 8, 10, 11

Field = tuple[int, int, "int | bytes"]

#: The most bytes of a 64-bit varint, seven bits in each.
_VARINT_BYTES = 10

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def strict(
    read: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Decorate a function that reads images: it raises ObjectCorrupt for any invalid image."""

    @wraps(read)
    def wrapped(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        try:
            return read(*args, **kwargs)
        except (
            ArithmeticError,
            LookupError,
            StopIteration,
            TypeError,
            ValueError,
            struct.error,
        ) as error:
            raise ObjectCorrupt(
                "CRIU's images in the snapshot are damaged.",
                hint="The kernel cannot be brought back from this snapshot; resume an older one.",
                details=f"{read.__name__}: {type(error).__name__}: {error}",
            ) from error

    return wrapped


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for byte in data[at : at + _VARINT_BYTES]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number does not end")


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def fields(message: bytes) -> Iterator[Field]:
    """Yield (number, wire type, value) of every field, in order; a value is an int (varint) or bytes."""
    at, end = 0, len(message)
    while at < end:
        # Most numbers have one byte. A save decodes ten thousand fields and more, so the call counts.
        if (key := message[at]) < 0x80:
            at += 1
        else:
            key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        value: int | bytes
        if wire == _VARINT:
            if at < end and message[at] < 0x80:
                value, at = message[at], at + 1
            else:
                value, at = _varint(message, at)
        elif wire == _BYTES:
            length, at = _varint(message, at)
            value, at = message[at : at + length], at + length
        elif wire in (_FIXED32, _FIXED64):
            width = 4 if wire == _FIXED32 else 8
            value, at = message[at : at + width], at + width
        else:
            raise ValueError(f"wire type {wire} is not used by CRIU")
        if at > end:
            raise ValueError("a field is truncated")
        yield number, wire, value


def encode(parts: list[Field]) -> bytes:
    """Return the message with these fields: the inverse of `fields`."""
    out = bytearray()
    for number, wire, value in parts:
        out += _encode_varint(number << 3 | wire)
        if isinstance(value, int):
            out += _encode_varint(value)
        else:
            out += (_encode_varint(len(value)) if wire == _BYTES else b"") + value
    return bytes(out)


def messages(path: Path) -> Iterator[bytes]:
    """Yield the messages of an image file."""
    return split_messages(path.read_bytes())


def split_messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages of an image's content."""
    at = _MAGIC_BYTES
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        if at > len(data):
            raise ValueError("a message is truncated")
        yield data[at - length : at]


def replace(path: Path, entries: list[bytes]) -> None:
    """Replace all messages of an image file."""
    out = bytearray(path.read_bytes()[:_MAGIC_BYTES])
    for message in entries:
        out += _LENGTH.pack(len(message)) + message
    path.write_bytes(out)


def edit_first(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replace the first message of an image file, and keep all bytes that follow it."""
    with path.open("rb") as source:
        head = source.read(_MAGIC_BYTES)
        (length,) = _LENGTH.unpack(source.read(_LENGTH.size))
        message = source.read(length)
        edited = change(message)
        if edited == message:
            return
        copy = path.with_name(f"{path.name}.edited")
        with copy.open("wb") as target:
            target.write(head + _LENGTH.pack(len(edited)) + edited)
            shutil.copyfileobj(source, target, _COPY_BYTES)
    copy.replace(path)


def inner(message: bytes, number: int) -> Iterator[bytes]:
    """Yield every message that is in the field `number` of another one."""
    for found, _, value in fields(message):
        if found == number and isinstance(value, bytes):
            yield value


def with_inner(message: bytes, number: int, change: Callable[[bytes], bytes]) -> bytes:
    """Return a message in which every message in the field `number` is replaced by what `change` returns for it."""
    parts = list(fields(message))
    if all(found != number for found, _, _ in parts):
        return message
    return encode(
        [
            (found, wire, change(value) if found == number and isinstance(value, bytes) else value)
            for found, wire, value in parts
        ]
    )


def numbers(message: bytes) -> dict[int, int]:
    """Return the integer fields of a message, by field number."""
    return {number: value for number, _, value in fields(message) if isinstance(value, int)}


class Extent(msgspec.Struct, frozen=True):
    """A run of pages of one process: `address` and `length` in bytes."""

    address: int
    length: int
    lazy: bool


@strict
def pagemap(images: Path, nspid: int) -> list[Extent]:
    """Return the pages of a process in the order of its pagemap; the bytes of lazy pages are not in the images."""
    content = (images / f"pagemap-{nspid}.img").read_bytes()
    if len(content) > REMEMBERED_BYTES:
        return list(_extents(content))
    return list(_remembered_extents(content))


def _extents(content: bytes) -> tuple[Extent, ...]:
    entries = split_messages(content)
    next(entries)
    return tuple(map(_extent, entries))


#: A resume asks several times, and each copy of a snapshot does.
_remembered_extents = lru_cache(maxsize=8)(_extents)


def _extent(entry: bytes) -> Extent:
    values = numbers(entry)
    count = values.get(PAGEMAP_COUNT) or values[2]
    return Extent(values[1], count * PAGE, bool(values.get(PAGEMAP_FLAGS, 0) & PE_LAZY))


@strict
def pages_id(images: Path, nspid: int) -> int:
    """Return the number in the name of the file that holds the pages of a process."""
    return numbers(next(messages(images / f"pagemap-{nspid}.img")))[1]


class ImageProcess(msgspec.Struct, frozen=True):
    """A process in the images."""

    pid: int
    parent: int
    name: str


@strict
def processes(images: Path) -> list[ImageProcess]:
    """Return the processes of the tree, root first, zombies included, which have no pagemap."""
    found = []
    for message in messages(images / "pstree.img"):
        values = numbers(message)
        found.append(ImageProcess(values[1], values[2], _comm(images / f"core-{values[1]}.img")))
    return found


@strict
def highest_pid(images: Path) -> int:
    """Return the highest pid, thread id, group or session of the tree: later processes must not get one of them.

    CRIU leaves the thread ids of a zombie uninitialized (criu/pstree.c), so those are not counted. A zombie has no pagemap.
    """
    found = []
    for message in messages(images / "pstree.img"):
        pid = numbers(message)[_TREE_PID]
        is_zombie = not (images / f"pagemap-{pid}.img").exists()
        found += [
            value
            for number, _, value in fields(message)
            if isinstance(value, int) and not (is_zombie and number == _TREE_THREADS)
        ]
    return max(value for value in found if value <= _MAX_PID)


@strict
def clocks(images: Path) -> list[int]:
    """Return the tree's clocks as [monotonic s, ns, since boot s, ns]; [] if unknown."""
    path = next(images.glob("timens-*.img"), None)
    if path is None:
        return []
    shown = {
        n: numbers(value)
        for n, _, value in fields(next(messages(path)))
        if isinstance(value, bytes)
    }
    return [part for clock in (1, 2) for part in (shown[clock][1], shown[clock][2])]


def _comm(path: Path) -> str:
    """Return core_entry.tc.comm; empty when the image has none."""
    for message in messages(path):
        for number, _, value in fields(message):
            if number == 3 and isinstance(value, bytes):  # task_core_entry
                for inner, _, text in fields(value):
                    if inner == 6 and isinstance(text, bytes):
                        return text.decode(errors="replace")
    return ""


class RegularFile(msgspec.Struct, frozen=True):
    """A regular file that the tree has open or mapped. `length` None: CRIU does not check it. `mode`: as st_mode."""

    file_id: int
    path: str
    flags: int
    length: int | None
    build_id: str
    mode: int = 0
    position: int = 0


@strict
def regular_files(images: Path) -> list[RegularFile]:
    """Return every regular file of files.img."""
    content = (images / "files.img").read_bytes()
    return list(_remembered_files(content) if len(content) <= REMEMBERED_BYTES else _files(content))


def _files(content: bytes) -> tuple[RegularFile, ...]:
    return tuple(
        _regular(file) for message in split_messages(content) for file in inner(message, _FILE_REG)
    )


#: Every save and resume asks several times, before and after an edit, and most images are those of the last save.
_remembered_files = lru_cache(maxsize=4)(_files)


def _regular(message: bytes) -> RegularFile:
    numbers: dict[int, int] = {}
    path, words = "", []
    for number, wire, value in fields(message):
        if number == _REG_BUILD_ID and isinstance(value, int):
            words.append(value)
        elif number == _REG_BUILD_ID and wire == _BYTES and isinstance(value, bytes):
            words += [word for (word,) in struct.iter_unpack("<I", value)]
        elif number == _REG_NAME and isinstance(value, bytes):
            path = value.decode(errors="surrogateescape")
        elif isinstance(value, int):
            numbers[number] = value
    return RegularFile(
        numbers[_REG_ID],
        path,
        numbers.get(_REG_FLAGS, 0),
        numbers.get(_REG_SIZE),
        "".join(f"{word:08x}" for word in words),
        numbers.get(_REG_MODE, 0),
        numbers.get(_REG_POSITION, 0),
    )


@strict
def highest_descriptor(images: Path) -> int:
    """Return the highest number of a descriptor that any process has open; -1 if there is none."""
    return max(
        (
            numbers(message).get(_FD_NUMBER, 0)
            for path in images.glob("fdinfo-*.img")
            for message in messages(path)
        ),
        default=-1,
    )


@strict
def ghosts(images: Path) -> dict[int, int]:
    """Return the ids of ghost images (deleted files), by the id of the file that the tree has open or mapped."""
    return {
        values[1]: values[2]
        for values in _remaps(images)
        if values.get(3, _REMAP_LINKED) == _REMAP_GHOST
    }


@strict
def ghost_images(images: Path) -> list[str]:
    """Return the names of the images that hold deleted files which the tree has open or mapped (criu/files-reg.c)."""
    return [f"ghost-file-{number:x}.img" for number in ghosts(images).values()]


@strict
def link_remaps(images: Path) -> list[tuple[str, str]]:
    """Return (`link_remap.N` path, original path) of hard links that CRIU made for files whose name is gone or taken.

    With --leave-stopped CRIU leaves these links behind: a second save would fail on them (criu/files-reg.c, linkat).
    """
    names = {file.file_id: "/" + file.path.lstrip("/") for file in regular_files(images)}
    return [
        (names[values[2]], names.get(values[1], ""))
        for values in _remaps(images)
        if values.get(3, _REMAP_LINKED) == _REMAP_LINKED and values[2] in names
    ]


@strict
def remapped(images: Path) -> set[int]:
    """Return the ids of files that CRIU does not restore by their name; most of them are deleted files."""
    return {values[1] for values in _remaps(images)}


def _remaps(images: Path) -> list[dict[int, int]]:
    """Return the entries of remap-fpath.img by field: 1 is the file's id, 2 the id of its replacement, 3 the replacement's kind."""
    path = images / "remap-fpath.img"
    return [numbers(message) for message in messages(path)] if path.exists() else []


@strict
def mend_scheduling(images: Path) -> None:
    """Replace every scheduling policy that CRIU saves, but refuses at a restore, by the closest one that it restores.

    These are deadlines, and policies that a fork resets. The audit sets them again (`audit/proc_facts.py`).
    """
    for path in images.glob("core-*.img"):
        before = list(messages(path))
        after = [with_inner(core, _THREAD_CORE, _accepted) for core in before]
        if after != before:
            replace(path, after)


def _accepted(thread: bytes) -> bytes:
    parts: list[Field] = [
        (number, wire, _closest(value) if number == _POLICY and isinstance(value, int) else value)
        for number, wire, value in fields(thread)
    ]
    return encode(parts)


def _closest(policy: int) -> int:
    kept = policy & ~os.SCHED_RESET_ON_FORK
    return kept if kept in _RESTORED else os.SCHED_OTHER
