"""Bytes from files, sockets and other programs, as records.

Whatever is wrong with the bytes is a `msgspec.DecodeError`. msgspec by itself lets two other errors pass: UnicodeDecodeError for
text that is no UTF-8, which one flipped bit makes, and RecursionError for values that are nested too deep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

_Record = TypeVar("_Record")


def from_json(data: bytes | str | memoryview, kind: type[_Record]) -> _Record:
    """Return the record that `data` is in JSON. Raises msgspec.DecodeError."""
    return _decoded(msgspec.json.decode, data, kind)


def from_msgpack(data: bytes | memoryview, kind: type[_Record]) -> _Record:
    """Return the record that `data` is in MessagePack. Raises msgspec.DecodeError."""
    return _decoded(msgspec.msgpack.decode, data, kind)


def _decoded(decode: Callable[..., Any], data: object, kind: type[_Record]) -> _Record:
    try:
        record: _Record = decode(data, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
    return record
