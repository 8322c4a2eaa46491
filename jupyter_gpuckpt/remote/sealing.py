"""Encryption and authentication of a remote's objects: nobody without a key can read or forge them.

A store has a random master key; rekeying adds another one. The key of an object is derived from a master key by HKDF, with the
store's id and the 32 random bytes in the object's header as salt. The object's name, its header and the store's id are associated
data, so an object that was altered, renamed or copied from another store cannot be opened. The remote id of a chunk is the keyed BLAKE3
of its digest, always with the first master key, so that remote ids reveal nothing and never change.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
import zstandard
from blake3 import blake3

from ..errors import FormatTooNew, RemoteObjectInvalid, ToolMissing
from ..store.codecs import DIGEST_BYTES
from ..wire import decoding

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
STORE_ID_BYTES = 16

#: The format version of a remote's objects. Readers refuse a higher one.
REMOTE_VERSION = 1

# Magic, version, number of the master key, salt of the object's own key.
_HEADER = struct.Struct("<8sII32s")
_MAGIC = b"GPUCKFS\n"
HEADER_BYTES = _HEADER.size
_SALT_BYTES = 32
#: A record may decompress to `_FREE_BYTES` plus `_BYTES_PER_BYTE` for each compressed byte.
_FREE_BYTES, _BYTES_PER_BYTE = 4 << 20, 16
_LEVEL = 3

_Record = TypeVar("_Record")


class Seal:
    """The encryption of one store's objects with its master keys, the newest of which is the last. Thread-safe."""

    def __init__(self, masters: Sequence[bytes], store_id: bytes) -> None:
        if not masters or any(len(one) != KEY_BYTES for one in masters):
            raise ValueError("a store has at least one key, of 32 bytes")
        self._masters, self._store_id = list(masters), store_id
        self._id_key = _derived(masters[0], store_id, b"chunk ids")

    def remote_id(self, digest: bytes) -> bytes:
        """Return the remote id of a chunk."""
        return blake3(digest, key=self._id_key).digest(DIGEST_BYTES)

    def begin(self) -> tuple[bytes, AESGCM]:
        """Return a header for a new object, and the object's key."""
        header = _HEADER.pack(
            _MAGIC, REMOTE_VERSION, len(self._masters) - 1, os.urandom(_SALT_BYTES)
        )
        return header, self._key(header)

    def key_of(self, name: str, header: bytes) -> AESGCM:
        """Return the cipher of the object `name` that begins with `header`. Raises RemoteObjectInvalid, FormatTooNew."""
        return cipher(self.secret_of(name, header))

    def secret_of(self, name: str, header: bytes) -> bytes:
        """Return the bytes of that key, for another process. Raises RemoteObjectInvalid, FormatTooNew."""
        if len(header) < HEADER_BYTES:
            raise invalid(name, "it is truncated")
        magic, version, number, _ = _HEADER.unpack_from(header)
        if magic != _MAGIC or version < 1:
            raise invalid(name, "it has no header of a jupyter-gpuckpt object")
        if version > REMOTE_VERSION:
            raise FormatTooNew(
                f"{name} has format version {version}; this version of jupyter-gpuckpt reads up to {REMOTE_VERSION}.",
                hint="Upgrade jupyter-gpuckpt.",
            )
        if number >= len(self._masters):
            raise invalid(name, "it was sealed with a key that this store does not have")
        return self._secret(header)

    def associated_data(self, name: str, header: bytes) -> bytes:
        """Return the associated data of the object `name`, which binds it to its header, store and name."""
        return header[:HEADER_BYTES] + self._store_id + name.encode()

    def seal(self, name: str, content: bytes) -> bytes:
        """Return `content` sealed as the object `name`; each call returns different bytes."""
        header, key = self.begin()
        nonce = os.urandom(NONCE_BYTES)
        return header + nonce + key.encrypt(nonce, content, self.associated_data(name, header))

    def open(self, name: str, data: bytes) -> bytes:
        """Return the content of the object `name`. Raises RemoteObjectInvalid, FormatTooNew."""
        key = self.key_of(name, data[:HEADER_BYTES])
        nonce = data[HEADER_BYTES : HEADER_BYTES + NONCE_BYTES]
        sealed = data[HEADER_BYTES + NONCE_BYTES :]
        return decrypted(name, key, nonce, sealed, self.associated_data(name, data))

    def seal_record(self, name: str, record: object) -> bytes:
        """Return a record, compressed and sealed as the object `name`."""
        packed = zstandard.ZstdCompressor(level=_LEVEL).compress(msgspec.msgpack.encode(record))
        return self.seal(name, packed)

    def open_record(self, name: str, data: bytes, kind: type[_Record]) -> _Record:
        """Return the record in the object `name`. Raises RemoteObjectInvalid, FormatTooNew."""
        packed = self.open(name, data)
        try:
            length = zstandard.frame_content_size(packed)
            if not 0 <= length <= _FREE_BYTES + _BYTES_PER_BYTE * len(packed):
                raise invalid(name, f"it would be {length:,} bytes long")
            unpacked = zstandard.ZstdDecompressor().decompress(packed)
            return decoding.from_msgpack(unpacked, kind)
        except (zstandard.ZstdError, msgspec.MsgspecError) as error:
            raise invalid(name, f"its record cannot be decoded ({error})") from error

    def _key(self, header: bytes) -> AESGCM:
        return cipher(self._secret(header))

    def _secret(self, header: bytes) -> bytes:
        _, _, number, salt = _HEADER.unpack_from(header)
        return _derived(self._masters[number], self._store_id + salt, b"object")


def _derived(master: bytes, salt: bytes, purpose: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - optional
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    kdf = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=b"jupyter-gpuckpt " + purpose)
    return kdf.derive(master)


def cipher(key: bytes) -> AESGCM:
    """Return AES-256-GCM with a key. Raises ToolMissing."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - optional

        AESGCM.encrypt_into  # noqa: B018 - earlier versions lack it
    except (ImportError, AttributeError) as error:
        raise ToolMissing(
            "Remotes need the Python package cryptography, version 47 or later.",
            hint="Install it: pip install 'jupyter-gpuckpt[remote]'",
        ) from error
    return AESGCM(key)


def decrypted(
    name: str,
    key: AESGCM,
    nonce: bytes | memoryview,
    sealed: bytes | memoryview,
    associated_data: bytes,
) -> bytes:
    """Return the content that was sealed with `key`. Raises RemoteObjectInvalid, which names the object."""
    if len(nonce) < NONCE_BYTES or len(sealed) < TAG_BYTES:
        raise invalid(name, "it is truncated")
    try:
        return key.decrypt(nonce, sealed, associated_data)
    except _invalid_tag() as error:
        raise _altered(name) from error


def decrypt_into(
    name: str, key: AESGCM, sealed: memoryview, associated_data: bytes, target: memoryview
) -> None:
    """Write the content of `sealed` (nonce, encrypted content, tag) to `target`, which has its length. Raises RemoteObjectInvalid."""
    if len(sealed) != NONCE_BYTES + len(target) + TAG_BYTES:
        raise invalid(name, "it is truncated")
    try:
        key.decrypt_into(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], associated_data, target)
    except _invalid_tag() as error:
        raise _altered(name) from error


def _invalid_tag() -> type[Exception]:
    """Return the class of the cipher's error. To import it for each chunk would take time, so it is imported only after an error."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - optional

    return InvalidTag


def _altered(name: str) -> RemoteObjectInvalid:
    return invalid(name, "it was altered, renamed, or copied from another store")


def invalid(name: str, why: str) -> RemoteObjectInvalid:
    """Return the error for an object that must not be used."""
    return RemoteObjectInvalid(
        f"{name[:200]} in the remote is damaged or was altered: {why}.",
        hint="It is not used. The remote lost data, or something else wrote to it.",
    )
