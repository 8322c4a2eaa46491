"""Decoding of bytes from files, sockets and other programs to records.

Any invalid input raises `msgspec.DecodeError`. msgspec by itself also raises UnicodeDecodeError for text that is not UTF-8, which one
flipped bit can cause, and RecursionError for values that are nested too deep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

_Record = TypeVar("_Record")


def from_json(data: bytes | str | memoryview, kind: type[_Record]) -> _Record:
    """Decode a record from JSON. Raises msgspec.DecodeError."""
    return _decoded(msgspec.json.decode, data, kind)


def from_msgpack(data: bytes | memoryview, kind: type[_Record]) -> _Record:
    """Decode a record from MessagePack. Raises msgspec.DecodeError."""
    return _decoded(msgspec.msgpack.decode, data, kind)


def _decoded(decode: Callable[..., Any], data: object, kind: type[_Record]) -> _Record:
    try:
        record: _Record = decode(data, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
    return record
