"""References to packs in a bucket. It does not need NumPy, unlike `remote_packs.py`: a daemon also lists sessions when it has no kernel."""

from __future__ import annotations

import msgspec

from ..store.codecs import MAX_CHUNK_BYTES

FOLDER = "packs"
#: The folder of index objects (`index_objects.py`, which needs NumPy).
INDEX_FOLDER = "indexes"
#: A pack that has reached this length gets no more records. The last record may exceed it.
PACK_BYTES = 32 << 20
MAX_PACK_BYTES = PACK_BYTES + MAX_CHUNK_BYTES + (16 << 20)


class PackRef(msgspec.Struct, frozen=True):
    """The reference to a pack. `length`: the object's bytes; `index_length`: the bytes from the index to the object's end."""

    name: str
    length: int
    index_length: int


class PackRows(msgspec.Struct, frozen=True):
    """A pack with its index: rows of `remote_packs.ROW`."""

    ref: PackRef
    rows: bytes


def is_name(name: str) -> bool:
    """Return whether `name` is a possible name of a pack: names come from the remote."""
    folder, _, rest = name.partition("/")
    return folder == FOLDER and len(rest) == 32 and not rest.strip("0123456789abcdef")
