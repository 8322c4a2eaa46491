"""Messages between this process and a worker: length-prefixed MessagePack, with file descriptors after it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import TypeVar, Union

import msgspec

from ..wire import decoding

#: Below SCM_MAX_FD: Linux passes at most 253 descriptors in a message.
_DESCRIPTORS_AT_ONCE = 200
_LENGTH = struct.Struct("<I")

_Message = TypeVar("_Message", bound=msgspec.Struct)


def send(connection: socket.socket, message: msgspec.Struct) -> None:
    """Send a message without descriptors."""
    body = msgspec.msgpack.encode(message)
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive(connection: socket.socket, *kinds: type[_Message]) -> _Message | None:
    """Return the next message, which must be of one of `kinds`; None at EOF.

    With several kinds, each must have a msgspec tag.
    """
    head = connection.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(head) < _LENGTH.size:
        return None
    left = _LENGTH.unpack(head)[0]
    body = bytearray()
    while len(body) < left:
        part = connection.recv(left - len(body), socket.MSG_WAITALL)
        if not part:
            return None
        body += part
    message: _Message = decoding.from_msgpack(bytes(body), Union[kinds])  # type: ignore[arg-type] # noqa: UP007 - as many as there are
    return message


def receive_descriptors(connection: socket.socket, count: int) -> list[int]:
    """Return the `count` descriptors that `send_with_descriptors` sent after a message."""
    found: list[int] = []
    while len(found) < count:
        _, received, _, _ = socket.recv_fds(connection, 1, _DESCRIPTORS_AT_ONCE)
        if not received:
            raise EOFError("the descriptors were cut off")
        found += received
    return found


def send_with_descriptors(
    ours: socket.socket, message: msgspec.Struct, descriptors: Sequence[int]
) -> None:
    """Send a message, and after it descriptors for `receive_descriptors`."""
    send(ours, message)
    for first in range(0, len(descriptors), _DESCRIPTORS_AT_ONCE):
        socket.send_fds(ours, [b"d"], descriptors[first : first + _DESCRIPTORS_AT_ONCE])
