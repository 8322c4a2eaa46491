"""Files of a kernel's messages. A frame is its length (4 bytes, little-endian) and the MessagePack of (sequence number, parts)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from . import decoding

_LENGTH_BYTES = 4


def frame_of(number: int, parts: list[bytes]) -> bytes:
    """Return the frame of a message."""
    frame = msgspec.msgpack.encode((number, [bytes(part) for part in parts]))
    return len(frame).to_bytes(_LENGTH_BYTES, "little") + frame


def unpacked(frame: bytes) -> tuple[int, list[bytes]]:
    """Return the number and the parts in a frame of `frame_of`."""
    return decoding.from_msgpack(frame[_LENGTH_BYTES:], tuple[int, list[bytes]])


def opened(path: Path) -> int:
    """Open a file for appending with mode 0600, because output may be as private as the notebook; return the descriptor."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def replace(path: Path, content: bytes) -> None:
    """Replace a small file beside a log, with the same mode. A reader sees the old or the new content. Raises OSError."""
    new = path.with_suffix(".new")
    fd = opened(new)
    try:
        os.ftruncate(fd, 0)
        if os.write(fd, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(new))
    finally:
        os.close(fd)
    new.replace(path)


def frames(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the kept messages with their numbers, including those added meanwhile."""
    with path.open("rb") as file:
        while length := file.read(_LENGTH_BYTES):
            frame = file.read(int.from_bytes(length, "little"))
            yield decoding.from_msgpack(frame, tuple[int, list[bytes]])


def next_frame(file: BinaryIO) -> tuple[int, list[bytes]] | None:
    """Return the next message of an open file; None, with an unchanged position, if no complete one is there."""
    begin = file.tell()
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    frame = file.read(length)
    if not frame or len(frame) < length:
        file.seek(begin)
        return None
    return decoding.from_msgpack(frame, tuple[int, list[bytes]])


def content_of(path: Path) -> bytes:
    """Return the content of a file; nothing if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
