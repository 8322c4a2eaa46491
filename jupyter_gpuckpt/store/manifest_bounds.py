"""Bounds on the memory that decoding a manifest takes, checked before it is decoded: a manifest from an archive is untrusted.

A few bytes can decode to many: by compression, and in MessagePack, where an empty list is one byte and takes 56 in memory. Manifests
of this version stay far below these bounds: digests do not compress, and neighboring chunks of zeros are merged.
"""

from __future__ import annotations

import msgspec

from ..wire import decoding

#: The most bytes of a manifest. It has some 40 bytes per chunk, and a chunk is usually a quarter of a megabyte of memory.
_MAX_MANIFEST_BYTES = 1 << 30
#: The decompressed size may be this many bytes, plus this many per compressed byte.
_FREE_BYTES, _BYTES_PER_BYTE = 32 << 20, 8
#: The number of streams and chunks that are always allowed; beyond it, each must have at least this many bytes.
_FREE_ITEMS, _STREAM_BYTES, _CHUNK_BYTES = 1 << 16, 64, 16
#: Values are counted if everything but the chunks is larger than this; the most values.
_UNCOUNTED_BYTES, _MAX_VALUES = 1 << 20, 2_000_000
_MAX_FIELDS = 100

#: MessagePack types: the number of bytes after the first one that hold a length or count, or the value.
_STRINGS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_LISTS, _MAPS = {0xDC: 2, 0xDD: 4}, {0xDE: 2, 0xDF: 4}
#: Numbers, and extensions of fixed length.
_FIXED = dict(enumerate((4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17), 0xCA))


class _StreamOutline(msgspec.Struct):
    """The outline of a stream: the undecoded bytes of its chunks."""

    chunks: msgspec.Raw


def max_bytes(compressed: int) -> int:
    """Return the limit of the decompressed size of a manifest of this many compressed bytes."""
    return min(_MAX_MANIFEST_BYTES, _FREE_BYTES + _BYTES_PER_BYTE * compressed)


def require_bounded(body: bytes) -> None:
    """Raise msgspec.DecodeError for a manifest that has more values than its length justifies, or that is not a manifest."""
    if _items(body) > _MAX_FIELDS:
        raise msgspec.DecodeError("too many fields")
    parts = decoding.from_msgpack(body, dict[str, msgspec.Raw])
    streams = bytes(parts.pop("streams", b"\x90"))
    if _items(streams) > _FREE_ITEMS + len(streams) // _STREAM_BYTES:
        raise msgspec.DecodeError("too many streams")
    found = [bytes(one.chunks) for one in decoding.from_msgpack(streams, list[_StreamOutline])]
    length = sum(map(len, found))
    if sum(map(_items, found)) > _FREE_ITEMS + length // _CHUNK_BYTES:
        raise msgspec.DecodeError("too many chunks")
    if len(body) - length > _UNCOUNTED_BYTES:
        left = _MAX_VALUES
        for part in parts.values():
            left -= _values(bytes(part), left)


def _items(data: bytes) -> int:
    """Return the number of items that a list or map states."""
    first = data[0] if data else 0xC0
    if 0x80 <= first < 0xA0:
        return first & 0x0F
    width = _LISTS.get(first) or _MAPS.get(first)
    return int.from_bytes(data[1 : 1 + width], "big") if width else 0


def _values(data: bytes, max_values: int) -> int:
    """Return the number of nested values, the outer one included. Raises msgspec.DecodeError for more than `max_values`."""
    at, count, left = 0, 0, 1
    while left and at < len(data):
        count += 1
        if count > max_values:
            raise msgspec.DecodeError("too many values")
        left -= 1
        first = data[at]
        at += 1
        if 0x80 <= first < 0x90:
            left += 2 * (first & 0x0F)
        elif 0x90 <= first < 0xA0:
            left += first & 0x0F
        elif 0xA0 <= first < 0xC0:
            at += first & 0x1F
        elif first in _FIXED:
            at += _FIXED[first]
        elif first in _LISTS or first in _MAPS:
            width = _LISTS.get(first) or _MAPS[first]
            left += (1 if first in _LISTS else 2) * int.from_bytes(data[at : at + width], "big")
            at += width
        elif first in _STRINGS or first in _EXTENSIONS:
            width = _STRINGS.get(first) or _EXTENSIONS[first]
            at += int.from_bytes(data[at : at + width], "big") + width + (first in _EXTENSIONS)
    return count
