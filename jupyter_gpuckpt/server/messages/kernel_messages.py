"""Tolerant readers of iopub messages: some kernels send null or other values where an object is expected."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ...client.agent_code import PROBE_SESSION
from ...wire import decoding

#: The delimiter between the identities and the signature of a message (jupyter_client.session.DELIM).
DELIMITER = b"<IDS|MSG>"
_USER_REQUEST = b"gpuckpt_user_request"
_ABOUT_COMMS = frozenset({"comm_open", "comm_msg", "comm_close"})


class Header(msgspec.Struct):
    """The fields of a message's header that are used here."""

    msg_id: str = ""
    msg_type: str = ""
    session: str = ""


def is_about_comms(parts: list[bytes]) -> bool:
    """Return whether a message is about comms. A new page requests comms itself and closes those of unknown targets."""
    return read(parts)[0].msg_type in _ABOUT_COMMS


def is_about_ours(parts: list[bytes]) -> bool:
    """Return whether a message is caused by a request of this server's own."""
    return read(parts)[1].session == PROBE_SESSION


def is_user_request(parts: list[bytes]) -> bool:
    """Return whether a message is a request of the user's code to this server (`kernel_agent/agent.py`)."""
    return bool(parts) and parts[0] == _USER_REQUEST


def with_cell(parts: list[bytes], cell: str) -> list[bytes]:
    """Return the message with the cell's id in its metadata, where the front end of this package reads it."""
    at = parts.index(DELIMITER) + 4
    metadata = {**fields(parts[at]), "cellId": cell}
    return [*parts[:at], json.dumps(metadata).encode(), *parts[at + 1 :]]


def read(parts: list[bytes]) -> tuple[Header, Header, bytes]:
    """Return a message's header, its parent's header, and its content; unreadable parts are empty."""
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
