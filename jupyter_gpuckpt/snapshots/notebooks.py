"""The notebook of a kernel in its snapshot: cells, outputs and execution counts, as in the notebook's file at that time.

A few neighboring cells are a stream, and so is each output of a cell with large outputs. The content of a cell decides whether it is
the last of its stream, so a snapshot after a changed or inserted cell stores only that cell and its neighbors. The bytes are those of
the file: nothing is decoded but the places of cells and outputs. A snapshot may be hostile, so who uses a notebook from one must
validate it.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..errors import ManifestInvalid
from ..images.pack import BytesSource
from ..images.unpack import read_stream
from ..linux.foreign_files import open_regular
from ..store.local import LocalStore
from ..wire import decoding
from ..wire.manifest_records import Manifest
from ..wire.snapshot_records import SnapshotNotebook

#: The most bytes of a notebook that a snapshot contains. Reading one takes a few times as much memory.
MAX_BYTES = 64 << 20
#: The most streams of a notebook. Each takes about a hundred bytes in the manifest.
MAX_PARTS = 10_000
#: The outputs of a cell are stored with it if they are smaller together.
_SMALL_BYTES = 4096
#: The most values outside of large outputs. Each takes many times as much memory as its few bytes.
_MAX_VALUES = 2_000_000
#: One cell in so many is the last one of its stream.
_CELLS_PER_STREAM = 16
#: The version of the format in which a notebook has a list of cells.
_NBFORMAT = 4

_HEAD = "notebook"
_CELLS = re.compile(r"notebook/cells/(\d{1,6})")
_OUTPUT = re.compile(r"notebook/output/(\d{1,6})/(\d{1,6})")

_Fields = dict[str, msgspec.Raw]


class Notebook(NamedTuple):
    """A notebook as it was read from its file. `modified`: when that was last written, in seconds since the epoch."""

    modified: float
    sources: list[BytesSource]


def read(described: dict[str, Any]) -> tuple[Notebook | None, list[str]]:
    """Return the notebook of a kernel that Jupyter described, and warnings. None: it has none, or it cannot be stored; never raises."""
    root, path = described.get("root"), described.get("path")
    if not (isinstance(root, str) and isinstance(path, str) and path.endswith(".ipynb") and root):
        return None, []
    try:
        data, modified = _content(Path(root, path))
        parts = _split(data)
        if len(parts) > MAX_PARTS:
            raise ValueError(f"it has more than {MAX_PARTS:,} cells and outputs")
    except FileNotFoundError:
        return None, []  # it was moved, or Jupyter keeps its notebooks elsewhere than in files
    except (OSError, ValueError, msgspec.DecodeError) as error:
        return None, [f"The snapshot does not contain the notebook {path}: {error}."]
    sources = [BytesSource(name, part) for name, part in parts]
    return Notebook(modified, sources), []


def stored(snapshot_id: str, store: LocalStore) -> SnapshotNotebook:
    """Return the notebook in a snapshot; none for those whose chunks only a remote has. Raises as `document`."""
    manifest = store.manifest(snapshot_id)
    if not manifest.notebook_modified or store.stubs.find(snapshot_id) is not None:
        return SnapshotNotebook()
    return SnapshotNotebook(manifest.notebook_modified, msgspec.Raw(document(manifest, store)))


def document(manifest: Manifest, store: LocalStore) -> bytes:
    """Return the notebook in a snapshot as JSON, not validated. Raises ObjectCorrupt, and ManifestInvalid if it cannot be a notebook."""
    streams = [one for one in manifest.streams if one.name.split("/")[0] == _HEAD]
    if len(streams) > MAX_PARTS or sum(stream.length for stream in streams) > MAX_BYTES:
        raise _invalid(manifest, "it is larger than notebooks can be")
    try:
        return _joined({stream.name: read_stream(stream, store) for stream in streams})
    except (msgspec.DecodeError, LookupError) as error:
        raise _invalid(manifest, "its parts do not fit together") from error


def _content(path: Path) -> tuple[bytes, float]:
    """Return the bytes of a file and the time of its last change. Raises OSError, and ValueError for one that is too large."""
    with os.fdopen(open_regular(path, follows_links=True), "rb") as file:
        data = file.read(MAX_BYTES + 1)
        modified = os.fstat(file.fileno()).st_mtime
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MB")
    return data, modified


def _split(data: bytes) -> list[tuple[str, bytes]]:
    """Split the JSON of a notebook into streams; return their names and contents. Raises msgspec.DecodeError if it is not a notebook."""
    head = decoding.from_json(data, _Fields)
    if decoding.from_json(bytes(head.get("nbformat", b"0")), int) != _NBFORMAT:
        raise msgspec.DecodeError("its format is not version 4")
    cells = decoding.from_json(bytes(head.pop("cells", b"[]")), list[_Fields])
    parts = [(_HEAD, msgspec.json.encode(head))]
    together: list[bytes] = []
    for number, cell in enumerate(cells):
        if len(bytes(cell.get("outputs", b""))) > _SMALL_BYTES:
            outputs = decoding.from_json(bytes(cell.pop("outputs")), list[msgspec.Raw])
            parts += [
                (f"{_HEAD}/output/{number}/{place}", bytes(output))
                for place, output in enumerate(outputs)
            ]
        together.append(msgspec.json.encode(cell))
        if number == len(cells) - 1 or not zlib.crc32(together[-1]) % _CELLS_PER_STREAM:
            parts.append((f"{_HEAD}/cells/{number}", bytes(_raw(together))))
            together = []
    return parts


def _joined(parts: dict[str, bytes]) -> bytes:
    """Join streams into the JSON of their notebook. Raises msgspec.DecodeError, LookupError."""
    # All values but the first of each list or object come after a comma.
    if (
        sum(data.count(b",") for name, data in parts.items() if not _OUTPUT.fullmatch(name))
        > _MAX_VALUES
    ):
        raise msgspec.DecodeError("too many values")
    head = decoding.from_json(parts[_HEAD], _Fields)
    outputs: dict[int, dict[int, bytes]] = {}
    together: dict[int, bytes] = {}
    for name, data in parts.items():
        if found := _OUTPUT.fullmatch(name):
            outputs.setdefault(int(found[1]), {})[int(found[2])] = data
        elif found := _CELLS.fullmatch(name):
            together[int(found[1])] = data
    cells = [
        cell
        for last in sorted(together)
        for cell in decoding.from_json(together[last], list[_Fields])
    ]
    for number, of_cell in outputs.items():
        cells[number]["outputs"] = _raw(of_cell[place] for place in range(len(of_cell)))
    head["cells"] = _raw(map(msgspec.json.encode, cells))
    return msgspec.json.encode(head)


def _raw(parts: Iterable[bytes]) -> msgspec.Raw:
    """Return a JSON list of these values."""
    return msgspec.Raw(b"[" + b",".join(parts) + b"]")


def _invalid(manifest: Manifest, problem: str) -> ManifestInvalid:
    return ManifestInvalid(
        f"The notebook in snapshot {manifest.info.snapshot_id} cannot be read: {problem}.",
        hint="The kernel can be restored without its cells and outputs.",
    )
