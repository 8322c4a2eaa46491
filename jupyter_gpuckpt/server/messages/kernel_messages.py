"""The parts of iopub messages, read as far as possible: some kernels send null, or anything, where others send an object."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ... import decoding

#: Every question of this server's own carries it as `header.session`, which distinguishes its echoes from a page's messages.
PROBE_SESSION = "gpuckpt-probe"
#: Between the identities and the signature of a message (jupyter_client.session.DELIM).
DELIMITER = b"<IDS|MSG>"
_ABOUT_COMMS = frozenset({"comm_open", "comm_msg", "comm_close"})


class Header(msgspec.Struct):
    """The fields of a message's header that are used here."""

    msg_id: str = ""
    msg_type: str = ""
    session: str = ""


def is_about_comms(parts: list[bytes]) -> bool:
    """Return whether a message is about comms. A new page asks for them itself; it would close one whose target it does not know."""
    return read(parts)[0].msg_type in _ABOUT_COMMS


def with_cell(parts: list[bytes], cell: str) -> list[bytes]:
    """Return the message with the cell's id in its metadata, where our front end reads it."""
    at = parts.index(DELIMITER) + 4
    metadata = {**fields(parts[at]), "cellId": cell}
    return [*parts[:at], json.dumps(metadata).encode(), *parts[at + 1 :]]


def read(parts: list[bytes]) -> tuple[Header, Header, bytes]:
    """Return a message's header, its parent's header, and its content; empty where they cannot be read."""
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
    """Return the fields of a JSON object; none for anything else."""
    try:
        value = json.loads(part)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
