"""What a kernel says on iopub, read as far as it can be read: some kernels have null, or anything, where others have an object."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ... import decoding

#: Every question of this server's own carries it as `header.session`, so that its echoes can be told from a page's messages.
PROBE_SESSION = "gpuckpt-probe"
#: Between the identities and the signature of a message (jupyter_client.session.DELIM).
DELIMITER = b"<IDS|MSG>"
_ABOUT_COMMS = frozenset({"comm_open", "comm_msg", "comm_close"})


class Header(msgspec.Struct):
    """The fields of a header that somebody looks at."""

    msg_id: str = ""
    msg_type: str = ""
    session: str = ""


def is_about_comms(parts: list[bytes]) -> bool:
    """What a new page asks for itself, as it is by then; a comm that it hears of before it knows the target it would close."""
    return read(parts)[0].msg_type in _ABOUT_COMMS


def with_cell(parts: list[bytes], cell: str) -> list[bytes]:
    """The message with the cell's id in its metadata, where the front end of ours looks for it."""
    at = parts.index(DELIMITER) + 4
    metadata = {**fields(parts[at]), "cellId": cell}
    return [*parts[:at], json.dumps(metadata).encode(), *parts[at + 1 :]]


def read(parts: list[bytes]) -> tuple[Header, Header, bytes]:
    """A message's header, its parent's, and its content; empty where they cannot be read. Some kernels have null for none."""
    at = parts.index(DELIMITER) if DELIMITER in parts else len(parts)
    header, parent, _, content = [*parts[at + 2 : at + 6], b"", b"", b"", b""][:4]
    return _header(header), _header(parent), content


def _header(part: bytes) -> Header:
    try:
        return decoding.from_json(part, Header)
    except msgspec.DecodeError:
        found = {name: fields(part).get(name) for name in Header.__struct_fields__}
        return Header(**{name: value for name, value in found.items() if isinstance(value, str)})


def fields(part: bytes) -> dict[str, Any]:
    """The fields of a JSON object; none of anything else."""
    try:
        value = json.loads(part)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
