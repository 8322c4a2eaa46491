"""What makes objects of a remote unreadable and unforgeable for whoever has no key.

A store has a random master key; rekeying adds another. From each come, by HKDF with the store's id, a key for every object, out of
the 32 random bytes in the object's header. The name of the object, the header and the store's id are associated data: an object
that was altered, renamed or taken from another store does not open. A chunk's id on the remote is the keyed BLAKE3 of its digest,
always with the first master key, so that ids tell nothing and stay the same.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
import zstandard
from blake3 import blake3

from ... import decoding
from ...errors import FarObjectInvalid, FormatTooNew, ToolMissing
from ..codecs import DIGEST_BYTES

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
STORE_ID_BYTES = 16

#: Of everything in a remote; a reader refuses a higher one.
FAR_VERSION = 1

# Magic, version, number of the master key, salt of the object's own key.
_HEADER = struct.Struct("<8sII32s")
_MAGIC = b"GPUCKFS\n"
HEADER_BYTES = _HEADER.size
_SALT_BYTES = 32
#: Before compression a record may have so many bytes, and so many for each byte after.
_FREE_BYTES, _BYTES_PER_BYTE = 4 << 20, 16
_LEVEL = 3

_Record = TypeVar("_Record")


class Seal:
    """Seals and opens objects of the store `store_id` with its master keys, the newest of which is the last. Thread-safe."""

    def __init__(self, masters: Sequence[bytes], store_id: bytes) -> None:
        if not masters or any(len(one) != KEY_BYTES for one in masters):
            raise ValueError("a store has at least one key, of 32 bytes")
        self._masters, self._store_id = list(masters), store_id
        self._id_key = _derived(masters[0], store_id, b"chunk ids")

    def far_id(self, digest: bytes) -> bytes:
        """Return what a chunk is called on the remote."""
        return blake3(digest, key=self._id_key).digest(DIGEST_BYTES)

    def begin(self) -> tuple[bytes, AESGCM]:
        """Return the header of a new object, and its key."""
        header = _HEADER.pack(_MAGIC, FAR_VERSION, len(self._masters) - 1, os.urandom(_SALT_BYTES))
        return header, self._key(header)

    def key_of(self, name: str, header: bytes) -> AESGCM:
        """Return the key of the object `name` that begins with `header`. Raises FarObjectInvalid, FormatTooNew."""
        if len(header) < HEADER_BYTES:
            raise invalid(name, "it is truncated")
        magic, version, number, _ = _HEADER.unpack_from(header)
        if magic != _MAGIC or version < 1:
            raise invalid(name, "it does not begin as objects of a remote do")
        if version > FAR_VERSION:
            raise FormatTooNew(
                f"{name} has format version {version}; this version of jupyter-gpuckpt reads up to {FAR_VERSION}.",
                hint="Upgrade jupyter-gpuckpt.",
            )
        if number >= len(self._masters):
            raise invalid(name, "it was sealed with a key that this store has not")
        return self._key(header)

    def said_beside(self, name: str, header: bytes) -> bytes:
        """Return the associated data of the object `name`: what it is bound to."""
        return header[:HEADER_BYTES] + self._store_id + name.encode()

    def seal(self, name: str, content: bytes) -> bytes:
        """Return the object `name` that holds `content`; no two calls return the same."""
        header, key = self.begin()
        nonce = os.urandom(NONCE_BYTES)
        return header + nonce + key.encrypt(nonce, content, self.said_beside(name, header))

    def open(self, name: str, data: bytes) -> bytes:
        """Return what the object `name` holds. Raises FarObjectInvalid, FormatTooNew."""
        key = self.key_of(name, data[:HEADER_BYTES])
        nonce = data[HEADER_BYTES : HEADER_BYTES + NONCE_BYTES]
        sealed = data[HEADER_BYTES + NONCE_BYTES :]
        return decrypted(name, key, nonce, sealed, self.said_beside(name, data))

    def seal_record(self, name: str, record: object) -> bytes:
        """Return the object `name` that holds a record."""
        packed = zstandard.ZstdCompressor(level=_LEVEL).compress(msgspec.msgpack.encode(record))
        return self.seal(name, packed)

    def open_record(self, name: str, data: bytes, kind: type[_Record]) -> _Record:
        """Return the record that the object `name` holds. Raises FarObjectInvalid, FormatTooNew."""
        packed = self.open(name, data)
        try:
            length = zstandard.frame_content_size(packed)
            if not 0 <= length <= _FREE_BYTES + _BYTES_PER_BYTE * len(packed):
                raise invalid(name, f"it would be {length:,} bytes long")
            unpacked = zstandard.ZstdDecompressor().decompress(packed)
            return decoding.from_msgpack(unpacked, kind)
        except (zstandard.ZstdError, msgspec.MsgspecError) as error:
            raise invalid(name, f"it does not make sense ({error})") from error

    def _key(self, header: bytes) -> AESGCM:
        _, _, number, salt = _HEADER.unpack_from(header)
        return cipher(_derived(self._masters[number], self._store_id + salt, b"object"))


def _derived(master: bytes, salt: bytes, purpose: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - optional
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    kdf = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=b"jupyter-gpuckpt " + purpose)
    return kdf.derive(master)


def cipher(key: bytes) -> AESGCM:
    """Return AES-256-GCM with a key. Raises ToolMissing."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ToolMissing(
            "Remotes need the Python package cryptography.",
            hint="Install it: pip install 'jupyter_gpuckpt[far]'",
        ) from error
    return AESGCM(key)


def decrypted(name: str, key: AESGCM, nonce: bytes, sealed: bytes, beside: bytes) -> bytes:
    """Return what was sealed with `key`. Raises FarObjectInvalid naming the object."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - optional

    if len(nonce) < NONCE_BYTES or len(sealed) < TAG_BYTES:
        raise invalid(name, "it is truncated")
    try:
        return key.decrypt(nonce, sealed, beside)
    except InvalidTag as error:
        raise invalid(name, "it was altered, or belongs elsewhere") from error


def invalid(name: str, why: str) -> FarObjectInvalid:
    """Return the error for an object that is not what it should be."""
    return FarObjectInvalid(
        f"{name[:200]} in the remote is not sound: {why}.",
        hint="Nothing of it is used. Somebody changed the remote, or a part of it was lost there.",
    )
