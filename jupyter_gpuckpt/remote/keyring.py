"""The keys of a remote, in its object `keyring`: the newest master key, encrypted for each holder, and older ones, sealed with it.

The newest key authenticates the whole keyring: somebody who can write to the bucket but has no secret can neither add nor remove a
holder unnoticed. An older keyring that somebody puts back can be opened, but every machine that has seen the newer one refuses it.

Removing a holder does not take back what the holder may have copied. Rekeying creates a new key for everything that is written from
then on; only the holders named in that call have it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, NamedTuple

import msgspec

from ..errors import (
    ConfigurationError,
    FarObjectInvalid,
    FarObjectMissing,
    FormatTooNew,
    GpuCkptError,
    KeyUnavailable,
)
from ..wire import decoding
from . import holders
from .buckets import Bucket
from .holders import Holder, Secret
from .objects import Version
from .sealing import (
    FAR_VERSION,
    KEY_BYTES,
    NONCE_BYTES,
    STORE_ID_BYTES,
    Seal,
    cipher,
    decrypted,
    invalid,
)
from .seen import Seen

NAME = "keyring"
_HEADER = struct.Struct("<8sI32s20x")
_MAGIC = b"GPUCKFK\n"
_MAX_KEYRING_BYTES = 1 << 20
_MAX_HOLDERS = 64
_ATTEMPTS = 20


class Undecided(Exception):  # noqa: N818 - it may have succeeded
    """A change to the keyring failed with `error`, but may have been written.

    `recovery_phrase`: the new words, which may open the remote from now on and which nobody has seen yet.
    """

    def __init__(self, error: GpuCkptError, recovery_phrase: str = "") -> None:
        super().__init__(str(error))
        self.error, self.recovery_phrase = error, recovery_phrase


@contextmanager
def undecided(recovery_phrase: str = "") -> Iterator[None]:
    """Replace errors by `Undecided` from the first writing request on."""
    try:
        yield
    except GpuCkptError as error:
        raise Undecided(error, recovery_phrase) from error


class _Public(msgspec.Struct, frozen=True):
    store_id: Annotated[bytes, msgspec.Meta(min_length=STORE_ID_BYTES, max_length=STORE_ID_BYTES)]
    generation: Annotated[int, msgspec.Meta(ge=1)]
    holders: Annotated[list[Holder], msgspec.Meta(max_length=_MAX_HOLDERS)]
    #: The id of the only machine that may write, if the endpoint has no compare-and-swap.
    only_machine: Annotated[str, msgspec.Meta(max_length=200)] = ""


class _Body(msgspec.Struct, frozen=True):
    """The keyring as it is stored. `public` is encoded msgpack, so that the same bytes serve as associated data."""

    public: Annotated[bytes, msgspec.Meta(max_length=_MAX_KEYRING_BYTES)]
    #: The older master keys, sealed with the newest.
    older: Annotated[bytes, msgspec.Meta(max_length=_MAX_KEYRING_BYTES)]


class Keyring(NamedTuple):
    """An opened keyring. `holder_id`: the holder whose secret opened it."""

    public: _Public
    masters: list[bytes]
    holder_id: str
    version: Version

    @property
    def seal(self) -> Seal:
        """Return the encryption of the store's objects."""
        return Seal(self.masters, self.public.store_id)

    @property
    def holders(self) -> list[Holder]:
        """Return the holders whose secrets open the keyring."""
        return self.public.holders


def create(
    bucket: Bucket, seen: Seen, names: dict[str, Secret], *, only_machine: str = "", cost: int = 0
) -> Keyring | None:
    """Create the keyring of a new store for these holders; return None if the remote has a store already. Raises Undecided."""
    master, store_id = os.urandom(KEY_BYTES), os.urandom(STORE_ID_BYTES)
    entries = _wrapped(master, names, store_id, cost)
    public = _Public(store_id, 1, entries, only_machine)
    with undecided():
        if not bucket.create(NAME, _encoded(public, [master])):
            return None
        return _read(bucket, seen).opened(master, entries[0].holder_id)


def open_with(bucket: Bucket, seen: Seen, secret: Secret, holder_id: str = "") -> Keyring:
    """Open the keyring with a holder's secret. Without a holder's name, all holders of the secret's kind are tried.

    Raises KeyUnavailable, FarObjectInvalid if the keyring was altered or is older than one that this machine has seen,
    FarObjectMissing, FormatTooNew.
    """
    found = _read(bucket, seen)
    fitting = [
        one
        for one in found.public.holders
        if one.kind is secret.kind and holder_id in {"", one.holder_id}
    ]
    for holder in fitting:
        try:
            master = holders.unwrap(holder, secret, store_id=found.public.store_id)
        except KeyUnavailable:
            continue
        return found.opened(master, holder.holder_id)
    raise KeyUnavailable(
        f"This {secret.kind} does not open remote {bucket.name}"
        + (": its holder was removed." if not fitting else "."),
        hint="Another holder can add this machine again. Without a holder's secret or the recovery phrase nobody can read anything in"
        " the remote.",
    )


def add_holder(
    bucket: Bucket, seen: Seen, secret: Secret, name: str, new: Secret, *, cost: int = 0
) -> Keyring:
    """Add a holder. `secret`: that of a present holder.

    Raises the errors of `open_with`, Undecided, and ConfigurationError if there are too many holders.
    """

    holder_id = os.urandom(8).hex()

    def add(ring: Keyring) -> tuple[_Public, list[bytes]] | None:
        if any(one.holder_id == holder_id for one in ring.holders):
            return None
        if len(ring.holders) >= _MAX_HOLDERS:
            raise ConfigurationError(
                f"A remote has at most {_MAX_HOLDERS} holders.", hint="Remove one first."
            )
        entry = holders.wrap(
            ring.masters[-1],
            new,
            store_id=ring.public.store_id,
            name=name,
            holder_id=holder_id,
            cost=cost,
        )
        return _next(ring.public, [*ring.holders, entry]), ring.masters

    return _change(bucket, seen, secret, add)._replace(holder_id=holder_id)


def remove_holder(bucket: Bucket, seen: Seen, secret: Secret, holder_id: str) -> Keyring:
    """Remove a holder.

    Raises the errors of `open_with`, Undecided, and ConfigurationError if the holder does not exist or is the last one.
    """

    ring = open_with(bucket, seen, secret)
    if all(one.holder_id != holder_id for one in ring.holders):
        raise ConfigurationError(f"There is no holder {holder_id[:100]!r}.")
    if holder_id == ring.holder_id:
        raise ConfigurationError(
            "A holder cannot be removed with its own secret.",
            hint="Use another holder's secret, or the recovery phrase.",
        )

    def remove(ring: Keyring) -> tuple[_Public, list[bytes]] | None:
        left = [one for one in ring.holders if one.holder_id != holder_id]
        if len(left) == len(ring.holders):
            return None
        return _next(ring.public, left), ring.masters

    return _change(bucket, seen, secret, remove)


def rekey(
    bucket: Bucket, seen: Seen, secret: Secret, names: dict[str, Secret], *, cost: int = 0
) -> Keyring:
    """Create a new master key for everything that is written from now on. Only the named holders get it; all others are removed.

    `secret`: that of a present holder. The named holders can also read everything that was written before. Raises the errors of
    `open_with`, and Undecided.
    """

    def change(ring: Keyring) -> tuple[_Public, list[bytes]]:
        master = os.urandom(KEY_BYTES)
        entries = _wrapped(master, names, ring.public.store_id, cost)
        return _next(ring.public, entries), [*ring.masters, master]

    ring = _change(bucket, seen, secret, change)
    return ring._replace(holder_id=ring.holders[0].holder_id)


def destroy(bucket: Bucket) -> None:
    """Remove all holders for good, so that nobody can ever read the store again. This needs no secret.

    Does nothing if the keyring is missing or damaged. Raises FormatTooNew, and KeyUnavailable if others keep changing it.
    """
    for _ in range(_ATTEMPTS):
        try:
            stored = bucket.get(NAME, max_bytes=_MAX_KEYRING_BYTES)
            public, _ = _decoded(stored.data)
        except (FarObjectMissing, FarObjectInvalid):
            return
        nobody = _encoded(_next(public, []), [os.urandom(KEY_BYTES)])
        if not public.holders or bucket.swap(NAME, nobody, stored.version):
            return
    raise KeyUnavailable("Other machines keep changing the keyring.", hint="Try again later.")


def _change(
    bucket: Bucket,
    seen: Seen,
    secret: Secret,
    change: Callable[[Keyring], tuple[_Public, list[bytes]] | None],
) -> Keyring:
    """Apply `change` to the newest keyring; return the result.

    `change` returns None if the keyring contains the change already: it was written, and then another writer changed the keyring.
    """
    for _ in range(_ATTEMPTS):
        ring = open_with(bucket, seen, secret)
        changed = change(ring)
        if changed is None:
            return ring
        with undecided():
            if bucket.swap(NAME, _encoded(*changed), ring.version):
                return _read(bucket, seen).opened(changed[1][-1], ring.holder_id)
    raise KeyUnavailable("Other machines keep changing the keyring.", hint="Try again later.")


class _UnopenedKeyring(NamedTuple):
    """A keyring that was read but not opened. `newest`: the newest generation that this machine had seen before."""

    public: _Public
    body: _Body
    version: Version
    seen: Seen
    newest: int

    def opened(self, master: bytes, holder_id: str) -> Keyring:
        """Open the keyring with its newest master key. Raises FarObjectInvalid."""
        masters = [*_older(self.body, master), master]
        self.seen.check(NAME, self.public.generation, self.newest, self.public.store_id)
        return Keyring(self.public, masters, holder_id, self.version)


def _read(bucket: Bucket, seen: Seen) -> _UnopenedKeyring:
    newest = seen.newest(NAME)
    stored = bucket.get(NAME, max_bytes=_MAX_KEYRING_BYTES)
    return _UnopenedKeyring(*_decoded(stored.data), stored.version, seen, newest)


def _next(public: _Public, entries: Sequence[Holder]) -> _Public:
    return msgspec.structs.replace(public, generation=public.generation + 1, holders=list(entries))


def _wrapped(master: bytes, names: dict[str, Secret], store_id: bytes, cost: int) -> list[Holder]:
    return [
        holders.wrap(master, secret, store_id=store_id, name=name, cost=cost)
        for name, secret in names.items()
    ]


def _encoded(public: _Public, masters: Sequence[bytes]) -> bytes:
    said = msgspec.msgpack.encode(public)
    nonce = os.urandom(NONCE_BYTES)
    older = msgspec.msgpack.encode(list(masters[:-1]))
    sealed = cipher(masters[-1]).encrypt(nonce, older, said)
    header = _HEADER.pack(_MAGIC, FAR_VERSION, os.urandom(32))
    return header + msgspec.msgpack.encode(_Body(said, nonce + sealed))


def _decoded(data: bytes) -> tuple[_Public, _Body]:
    if len(data) < _HEADER.size:
        raise invalid(NAME, "it is truncated")
    magic, version, _ = _HEADER.unpack_from(data)
    if magic != _MAGIC or version < 1:
        raise invalid(NAME, "it does not begin as a keyring does")
    if version > FAR_VERSION:
        raise FormatTooNew(
            f"The keyring has format version {version}; this version of jupyter-gpuckpt reads up to {FAR_VERSION}.",
            hint="Upgrade jupyter-gpuckpt.",
        )
    try:
        body = decoding.from_msgpack(data[_HEADER.size :], _Body)
        return decoding.from_msgpack(body.public, _Public), body
    except msgspec.MsgspecError as error:
        raise invalid(NAME, f"it cannot be decoded ({error})") from error


def _older(body: _Body, master: bytes) -> list[bytes]:
    nonce, sealed = body.older[:NONCE_BYTES], body.older[NONCE_BYTES:]
    opened = decrypted(NAME, cipher(master), nonce, sealed, body.public)
    try:
        older = decoding.from_msgpack(opened, list[bytes])
    except msgspec.MsgspecError as error:
        raise invalid(NAME, f"it cannot be decoded ({error})") from error
    if any(len(one) != KEY_BYTES for one in older):
        raise invalid(NAME, "a key in it is none")
    return older
