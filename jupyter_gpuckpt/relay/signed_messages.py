"""Messages of Jupyter's protocol as parts: verified with one key, and signed again with another."""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import new as hash_of
from typing import Any, NamedTuple

import msgspec

from ..wire import decoding

DELIMITER = b"<IDS|MSG>"
_PROTOCOL = "5.4"


class Header(msgspec.Struct):
    """The part of a header that the relay reads."""

    msg_id: str = ""
    msg_type: str = ""
    session: str = ""


class Message(NamedTuple):
    """A message without its signature. `parts`: header, parent's header, metadata, content, then the buffers."""

    idents: list[bytes]
    parts: list[bytes]

    @property
    def header(self) -> Header:
        """Return the header."""
        return header_in(self.parts[0])

    @property
    def parent(self) -> Header:
        """Return the header of the request that caused the message; empty if there is none."""
        return header_in(self.parts[1])

    @property
    def content(self) -> dict[str, Any]:
        """Return the decoded content; empty if it is not a JSON object."""
        try:
            return decoding.from_json(self.parts[3], dict[str, Any])
        except msgspec.DecodeError:
            return {}


def header_in(part: bytes) -> Header:
    """Decode a header; an invalid one is empty."""
    try:
        return decoding.from_json(part, Header)
    except msgspec.DecodeError:
        return Header()


class Signer:
    """The key of one connection file. Without a key nothing is signed, as in Jupyter."""

    def __init__(self, key: str, scheme: str) -> None:
        name = (scheme or "hmac-sha256").removeprefix("hmac-")
        self._base = hmac.new(key.encode(), digestmod=lambda: hash_of(name)) if key else None

    def sign(self, parts: Sequence[bytes]) -> bytes:
        """Return the signature of a message's first four parts."""
        if self._base is None:
            return b""
        made = self._base.copy()
        for part in parts[:4]:
            made.update(part)
        return made.hexdigest().encode()

    def frames(self, idents: Sequence[bytes], parts: Sequence[bytes]) -> list[bytes]:
        """Return a signed message for a socket."""
        return [*idents, DELIMITER, self.sign(parts), *parts]

    def opened(self, frames: Sequence[bytes]) -> Message | None:
        """Return the message in the frames of a socket; None if it is not signed with this key."""
        try:
            at = list(frames).index(DELIMITER)
        except ValueError:
            return None
        parts = list(frames[at + 2 :])
        if len(parts) < 4 or not hmac.compare_digest(self.sign(parts), frames[at + 1]):
            return None
        return Message(list(frames[:at]), parts)


def unsigned(frames: Sequence[bytes]) -> Message | None:
    """Return the message in frames of a private file, whose signature need not be verified."""
    frames = list(frames)
    if DELIMITER not in frames:
        return None
    at = frames.index(DELIMITER)
    parts = frames[at + 2 :]
    return Message(frames[:at], parts) if len(parts) >= 4 else None


def unlike_before(part: bytes) -> bytes:
    """Return equal JSON in other bytes each time: jupyter_client refuses a message whose signature it has seen."""
    return part + format(uuid.uuid4().int, "b").translate({48: " ", 49: "\t"}).encode()


class Author:
    """The writer of the relay's own messages."""

    def __init__(self) -> None:
        self._session = uuid.uuid4().hex

    def parts(self, kind: str, content: dict[str, Any], parent: bytes = b"{}") -> list[bytes]:
        """Return the four parts of a new message."""
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": kind,
            "session": self._session,
            "username": "kernel",
            "date": datetime.now(UTC).isoformat(),
            "version": _PROTOCOL,
        }
        return [msgspec.json.encode(header), parent, b"{}", msgspec.json.encode(content)]
