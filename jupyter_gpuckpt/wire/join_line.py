"""The line by which a machine joins a remote: where the store is, which store it is, how new its key is, and a code that opens it."""

from __future__ import annotations

import base64
import binascii
import hashlib

import msgspec

from ..errors import ConfigurationError

_CHECKSUM_BYTES = 5
_STORE_ID_BYTES = 16
_MAX_GENERATION = 1 << 62


class JoinLine(msgspec.Struct, frozen=True):
    """A store's URL and id, the generation of its key, and the secret code, which is empty where a password opens the key.

    The URL is not part of the checksum, so that it may be changed where the same place has another name.
    """

    url: str
    store_id: bytes
    generation: int
    code: bytes = b""

    def __repr__(self) -> str:
        return f"JoinLine({self.url})"

    def text(self) -> str:
        """Return the line as it is printed."""
        code = base64.b32encode(self.code + self._checksum()).decode()
        return f"{self.url} {self.store_id.hex()} {self.generation} {code}"

    def _checksum(self) -> bytes:
        said = self.store_id + self.generation.to_bytes(8, "big") + self.code
        return hashlib.sha256(said).digest()[:_CHECKSUM_BYTES]


def parse(text: str) -> JoinLine:
    """Return the parts of a line. Raises ConfigurationError if it was mistyped."""
    try:
        url, store_id, generation, code = text.strip().rsplit(maxsplit=3)
        number, secret = int(generation), base64.b32decode(code.upper())
        line = JoinLine(url, bytes.fromhex(store_id), number, secret[:-_CHECKSUM_BYTES])
        if (
            len(line.store_id) == _STORE_ID_BYTES
            and 0 < number < _MAX_GENERATION
            and secret == line.code + line._checksum()
            # The last character has bits that do not count.
            and base64.b32encode(secret).decode() == code.upper()
        ):
            return line
    except (ValueError, binascii.Error):
        pass
    # The line is not repeated in the message, because it may contain a secret.
    raise ConfigurationError(
        "This is not a line that joins a remote: a part is missing or mistyped.",
        hint="Copy the whole line as it was shown: URL, store, generation and code.",
        command="`jupyter gpuckpt remote key code` prints a new one, on a machine that uses the remote.",
    )
