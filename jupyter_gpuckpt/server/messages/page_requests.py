"""Requests of pages to a kernel, read as far as the gate needs them (`gate.py`)."""

# jupyter_server's functions carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_server.services.kernels.connection.base import (
    deserialize_binary_message,
    deserialize_msg_from_ws_v1,
)

if TYPE_CHECKING:
    from jupyter_client.session import Session

_log = logging.getLogger(__name__)

#: The name of the newer websocket subprotocol; the older one has none.
V1 = "v1.kernel.websocket.jupyter.org"


class Request(NamedTuple):
    """A message of a page. `content` is empty where the gate does not use it; `raw` is the message as it came."""

    channel: str
    header: dict[str, Any]
    metadata: dict[str, Any]
    content: dict[str, Any]
    raw: Any

    @property
    def kind(self) -> str:
        """Return the message's type; "None" if it has none."""
        return str(self.header.get("msg_type"))


def read_request(message: Any, protocol: str | None, session: Session) -> Request:
    """Return a page's message as a request; an unreadable one has no kind and is sent to the kernel unchanged."""
    try:
        if protocol == V1:
            channel, parts = deserialize_msg_from_ws_v1(message)
            header, metadata = _fields(session.unpack(parts[0])), _fields(session.unpack(parts[2]))
            about_comms = str(header.get("msg_type")).startswith("comm_")
            content = _fields(session.unpack(parts[3])) if about_comms else {}
            return Request(str(channel), header, metadata, content, message)
        binary = isinstance(message, bytes)
        unpacked = deserialize_binary_message(message) if binary else json.loads(message)
        header, metadata, content = (
            _fields(unpacked.get(name)) for name in ("header", "metadata", "content")
        )
        return Request(str(unpacked.get("channel") or "shell"), header, metadata, content, message)
    except Exception as error:
        _log.debug("a request cannot be read: %s", error)
        return Request("shell", {}, {}, {}, message)


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
