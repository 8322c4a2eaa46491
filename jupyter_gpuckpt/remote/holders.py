"""The holders of a remote's key. For each holder, the master key is encrypted with a key that is derived from the holder's secret."""

from __future__ import annotations

import os
import time
import unicodedata
from typing import TYPE_CHECKING, Annotated

import msgspec

from ..errors import ConfigurationError, KeyUnavailable, ToolMissing
from ..wire.remote_records import HolderKind
from .sealing import KEY_BYTES, NONCE_BYTES, cipher

if TYPE_CHECKING:
    from mnemonic import Mnemonic

_SALT_BYTES = 16
#: scrypt's cost, as powers of two: 128 MB and half a second for secrets that people choose. Other secrets are random, so nobody can
#: guess them. The cost that a keyring may demand is limited, too.
_COST, _COST_OF_RANDOM, _MIN_COST, _MAX_COST = 17, 10, 10, 18
_BLOCK, _FERRIES = 8, 1
_MIN_PASSPHRASE_CHARACTERS = 8
#: The most bytes of a secret in a file or in the output of a command.
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 32, 4096

Hostile = Annotated[str, msgspec.Meta(max_length=200)]


class Secret(msgspec.Struct, frozen=True):
    """A holder's secret. It is never stored or shown, except for a new recovery phrase, which is shown once."""

    kind: HolderKind
    value: bytes

    def __repr__(self) -> str:
        return f"Secret({self.kind})"


class Holder(msgspec.Struct, frozen=True):
    """A holder in the keyring. `name` tells people which person or machine it is."""

    holder_id: Hostile
    kind: HolderKind
    name: Hostile
    added: float
    salt: Annotated[bytes, msgspec.Meta(max_length=64)]
    cost: Annotated[int, msgspec.Meta(ge=_MIN_COST, le=_MAX_COST)]
    wrapped: Annotated[bytes, msgspec.Meta(max_length=128)]


def passphrase(text: str) -> Secret:
    """Return the secret of a passphrase that a user chose. Raises ConfigurationError if it is too short."""
    if len(text) < _MIN_PASSPHRASE_CHARACTERS:
        raise ConfigurationError(
            f"The passphrase is too short: it needs at least {_MIN_PASSPHRASE_CHARACTERS} characters.",
            hint="Several unrelated words are easy to remember and hard to guess.",
        )
    # Keyboards and systems may encode the same letters as different bytes.
    return Secret(HolderKind.PASSPHRASE, unicodedata.normalize("NFC", text).encode())


def wrap(
    master: bytes,
    secret: Secret,
    *,
    store_id: bytes,
    name: str,
    holder_id: str = "",
    cost: int = 0,
) -> Holder:
    """Return an entry for a new holder, with a random id unless one is given. `cost` 0 means today's default."""
    holder_id = holder_id or os.urandom(8).hex()
    cost = cost or (_COST if secret.kind is HolderKind.PASSPHRASE else _COST_OF_RANDOM)
    salt, nonce = os.urandom(_SALT_BYTES), os.urandom(NONCE_BYTES)
    key = cipher(_stretched(secret, salt, cost))
    sealed = key.encrypt(nonce, master, _beside(store_id, holder_id, secret.kind))
    return Holder(holder_id, secret.kind, name[:200], time.time(), salt, cost, nonce + sealed)


def unwrap(holder: Holder, secret: Secret, *, store_id: bytes) -> bytes:
    """Return the master key. Raises KeyUnavailable if the secret is not the holder's."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - optional

    key = cipher(_stretched(secret, holder.salt, holder.cost))
    nonce, sealed = holder.wrapped[:NONCE_BYTES], holder.wrapped[NONCE_BYTES:]
    try:
        master = key.decrypt(nonce, sealed, _beside(store_id, holder.holder_id, holder.kind))
    except (InvalidTag, ValueError) as error:
        raise KeyUnavailable(
            f"This {holder.kind} does not open the remote.",
            hint="Without a holder's secret or the recovery phrase nobody can read anything in the remote.",
        ) from error
    if len(master) != KEY_BYTES:
        raise KeyUnavailable("The remote's key has another length.")
    return master


def new_recovery_phrase() -> tuple[str, Secret]:
    """Return a new recovery phrase of 24 words, and its secret. Raises ToolMissing."""
    words = _mnemonic().to_mnemonic(os.urandom(KEY_BYTES))
    return words, recovery_phrase(words)


def recovery_phrase(text: str) -> Secret:
    """Return the secret of a recovery phrase that a user typed. Raises ConfigurationError if a word is wrong."""
    words = " ".join(text.lower().split())
    if len(words) > MAX_SECRET_BYTES or not _mnemonic().check(words):
        raise ConfigurationError(
            "This is not a recovery phrase: a word is missing or misspelt.",
            hint="It has 24 words in a fixed order.",
        )
    return Secret(HolderKind.RECOVERY, words.encode())


def _mnemonic() -> Mnemonic:
    try:
        from mnemonic import Mnemonic  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ToolMissing(
            "Recovery phrases need the Python package mnemonic.",
            hint="Install it: pip install 'jupyter_gpuckpt[far]'",
        ) from error
    return Mnemonic("english")


def _stretched(secret: Secret, salt: bytes, cost: int) -> bytes:
    """Derive a key from a secret by scrypt, which is slow on purpose, so that guessing passphrases is slow."""
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt  # noqa: PLC0415 - optional

    kdf = Scrypt(salt=salt, length=KEY_BYTES, n=1 << cost, r=_BLOCK, p=_FERRIES)
    return kdf.derive(secret.value)


def _beside(store_id: bytes, holder_id: str, kind: HolderKind) -> bytes:
    return b"holder" + store_id + f"{kind} {holder_id}".encode()
