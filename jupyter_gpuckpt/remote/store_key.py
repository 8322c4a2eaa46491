"""The key of a remote, in its object `key`: entries that wrap the newest master key, and the older ones, sealed with the newest.

The newest master key authenticates the whole object: a writer to the bucket without a secret can neither add nor remove an entry
unnoticed. Every machine keeps the last object that it has opened. With it, the machine refuses another store and an older copy before
it uses a secret, and puts the object back if it was lost.

Removing an entry does not take back what its owner may have copied. A rotation creates a new master key for everything that is written
from then on; only the secrets given in that call open it.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
import time
import unicodedata
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from ..errors import (
    ConfigurationError,
    FormatTooNew,
    KeyUnavailable,
    RemoteObjectInvalid,
    RemoteObjectMissing,
)
from ..wire import decoding
from ..wire.join_line import JoinLine
from ..wire.remote_records import EntryKind
from .buckets import Bucket
from .objects import Version
from .sealing import (
    KEY_BYTES,
    NONCE_BYTES,
    REMOTE_VERSION,
    STORE_ID_BYTES,
    Seal,
    cipher,
    decrypted,
    invalid,
)
from .seen import Seen

NAME = "key"
_HEADER = struct.Struct("<8sI32s20x")
_MAGIC = b"GPUCKFK\n"
_MAX_KEY_OBJECT_BYTES = 1 << 20
_MAX_ENTRIES = 64
_ATTEMPTS = 20

_SALT_BYTES = 16
_CODE_BYTES = 20
#: scrypt's cost, as powers of two: 128 MB and half a second for passwords, which people choose. Other secrets are random, so nobody can
#: guess them. The cost that an object may demand is limited, too.
_COST, _COST_OF_RANDOM, _MIN_COST, _MAX_COST = 17, 10, 10, 18
_BLOCK, _PARALLEL = 8, 1
_MIN_PASSWORD_CHARACTERS = 8

_Hostile = Annotated[str, msgspec.Meta(max_length=200)]


class Secret(msgspec.Struct, frozen=True):
    """A secret that opens a key. It is never stored or shown, except for a new code, which is shown once."""

    kind: EntryKind
    value: bytes

    def __repr__(self) -> str:
        return f"Secret({self.kind})"


class Entry(msgspec.Struct, frozen=True):
    """The newest master key, encrypted with a key that is derived from one secret. `host` and `user`: where it was added."""

    entry_id: _Hostile
    kind: EntryKind
    host: _Hostile
    user: _Hostile
    added: float
    salt: Annotated[bytes, msgspec.Meta(max_length=64)]
    cost: Annotated[int, msgspec.Meta(ge=_MIN_COST, le=_MAX_COST)]
    wrapped: Annotated[bytes, msgspec.Meta(max_length=128)]


class _Public(msgspec.Struct, frozen=True):
    store_id: Annotated[bytes, msgspec.Meta(min_length=STORE_ID_BYTES, max_length=STORE_ID_BYTES)]
    generation: Annotated[int, msgspec.Meta(ge=1)]
    entries: Annotated[list[Entry], msgspec.Meta(max_length=_MAX_ENTRIES)]
    #: The id of the only machine that may write, if the endpoint has no compare-and-swap.
    only_machine: Annotated[str, msgspec.Meta(max_length=200)] = ""


class _Body(msgspec.Struct, frozen=True):
    """The object as it is stored. `public` is encoded msgpack, so that the same bytes serve as associated data."""

    public: Annotated[bytes, msgspec.Meta(max_length=_MAX_KEY_OBJECT_BYTES)]
    #: The older master keys, sealed with the newest.
    older: Annotated[bytes, msgspec.Meta(max_length=_MAX_KEY_OBJECT_BYTES)]


class StoreKey(NamedTuple):
    """An opened key. `entry_id`: the entry whose secret opened it."""

    public: _Public
    masters: list[bytes]
    entry_id: str
    version: Version

    @property
    def seal(self) -> Seal:
        """Return the encryption of the store's objects."""
        return Seal(self.masters, self.public.store_id)

    @property
    def entries(self) -> list[Entry]:
        """Return the entries, one for each secret that opens the key."""
        return self.public.entries

    def line(self, url: str, code: Secret | None = None) -> JoinLine:
        """Return the line by which another machine joins, with a code or, if a password opens the key, without one."""
        return JoinLine(
            url, self.public.store_id, self.public.generation, code.value if code else b""
        )


def password(text: str) -> Secret:
    """Return the secret of a password that a user chose. Raises ConfigurationError if it is too short."""
    if len(text) < _MIN_PASSWORD_CHARACTERS:
        raise ConfigurationError(
            f"The password is too short: it needs at least {_MIN_PASSWORD_CHARACTERS} characters.",
            hint="Several unrelated words are easy to remember and hard to guess.",
        )
    # Keyboards and systems may encode the same letters as different bytes.
    return Secret(EntryKind.PASSWORD, unicodedata.normalize("NFC", text).encode())


def new_code() -> Secret:
    """Return a new random code."""
    return Secret(EntryKind.CODE, os.urandom(_CODE_BYTES))


def create(
    bucket: Bucket, seen: Seen, secrets: Sequence[Secret], *, only_machine: str = ""
) -> StoreKey | None:
    """Create the key of a new store that these secrets open; return None if the remote has a key already."""
    master, store_id = os.urandom(KEY_BYTES), os.urandom(STORE_ID_BYTES)
    entries = [_wrap(master, one, store_id) for one in secrets]
    public = _Public(store_id, 1, entries, only_machine)
    if not bucket.create(NAME, _encoded(public, [master])):
        return None
    return open_with(bucket, seen, secrets[0])


def open_with(bucket: Bucket, seen: Seen, secret: Secret, line: JoinLine | None = None) -> StoreKey:
    """Open the key with a secret, and keep the object. `line`: that by which this machine joins.

    Raises KeyUnavailable, RemoteObjectInvalid if the object was altered, is of another store, or is older than the one that this machine
    keeps or than `line`, RemoteObjectMissing, FormatTooNew.
    """
    kept = _kept(seen)
    try:
        stored = bucket.get(NAME, max_bytes=_MAX_KEY_OBJECT_BYTES)
    except RemoteObjectMissing as error:
        if kept is None:
            raise
        raise RemoteObjectMissing(
            f"The key of remote {bucket.name} is gone: its object `{NAME}` was deleted there.",
            hint=f"This machine keeps a copy: `jupyter gpuckpt remote key restore {bucket.name}` puts it back. If everything was"
            f" erased, `jupyter gpuckpt remote rm {bucket.name}` forgets the remote.",
        ) from error
    public, body = _decoded(stored.data)
    if kept:
        _require_known(public, kept, bucket.name)
    if line:
        _require_of_line(public, line, bucket.name)
    opened = _opened(public, body, secret, stored.version, bucket.name)
    if kept != public or not seen.key_path.exists():
        _keep(seen, stored.data, public)
    return opened


def add_entry(bucket: Bucket, seen: Seen, secret: Secret, new: Secret) -> StoreKey:
    """Add an entry for a new secret. `secret`: one that opens the key.

    Raises the errors of `open_with`, and ConfigurationError if there are too many entries.
    """
    entry_id = os.urandom(8).hex()

    def add(key: StoreKey) -> tuple[_Public, list[bytes]] | None:
        if any(one.entry_id == entry_id for one in key.entries):
            return None
        if len(key.entries) >= _MAX_ENTRIES:
            raise ConfigurationError(
                f"The key of a remote has at most {_MAX_ENTRIES} entries.",
                hint="Remove one first.",
            )
        entry = _wrap(key.masters[-1], new, key.public.store_id, entry_id)
        return _next(key.public, [*key.entries, entry]), key.masters

    return _change(bucket, seen, secret, add)


def remove_entry(bucket: Bucket, seen: Seen, secret: Secret, entry_id: str) -> StoreKey:
    """Remove an entry. Raises the errors of `open_with`, and ConfigurationError if it does not exist or is that of `secret`."""
    key = open_with(bucket, seen, secret)
    if all(one.entry_id != entry_id for one in key.entries):
        raise ConfigurationError(
            f"The key has no entry {entry_id[:100]!r}.",
            hint=f"`jupyter gpuckpt remote key list {bucket.name}` lists the entries.",
        )
    if entry_id == key.entry_id:
        raise ConfigurationError(
            "A machine cannot remove its own entry.", hint="Remove it on another machine."
        )

    def remove(key: StoreKey) -> tuple[_Public, list[bytes]] | None:
        left = [one for one in key.entries if one.entry_id != entry_id]
        return None if len(left) == len(key.entries) else (_next(key.public, left), key.masters)

    return _change(bucket, seen, secret, remove)


def rotate(bucket: Bucket, seen: Seen, secrets: Sequence[Secret]) -> StoreKey:
    """Create a new master key for everything that is written from now on. Only these secrets open it; all other entries are removed.

    The first of `secrets` opens the present key. The older master keys remain, so older content can be read with the new key. Raises
    the errors of `open_with`.
    """
    master = os.urandom(KEY_BYTES)

    def change(key: StoreKey) -> tuple[_Public, list[bytes]] | None:
        if master in key.masters:
            return None
        entries = [_wrap(master, one, key.public.store_id) for one in secrets]
        return _next(key.public, entries), [*key.masters, master]

    return _change(bucket, seen, secrets[0], change)


def restore(bucket: Bucket, seen: Seen, secret: Secret) -> StoreKey:
    """Put the object that this machine keeps back, if the remote has none. Raises KeyUnavailable, ConfigurationError."""
    data = seen.kept_key()
    if not data:
        raise KeyUnavailable(
            f"This machine keeps no copy of the key of remote {bucket.name}.",
            hint="Try it on another machine that has used the remote.",
        )
    # A damaged copy must not take the place of another machine's sound one.
    _opened(*_decoded(data), secret, {}, bucket.name)
    if not bucket.create(NAME, data):
        raise ConfigurationError(
            f"Remote {bucket.name} has a key already; nothing was changed.",
            hint=f"If it is an older copy or another store's, move its object `{NAME}` away with the provider's own tools first.",
        )
    return open_with(bucket, seen, secret)


def destroy(bucket: Bucket) -> None:
    """Remove all entries, so that no machine uploads any more. This needs no secret.

    Does nothing if the object is missing or damaged. Raises FormatTooNew, and KeyUnavailable if others keep changing it.
    """
    for _ in range(_ATTEMPTS):
        try:
            stored = bucket.get(NAME, max_bytes=_MAX_KEY_OBJECT_BYTES)
            public, _ = _decoded(stored.data)
        except (RemoteObjectMissing, RemoteObjectInvalid):
            return
        nobody = _encoded(_next(public, []), [os.urandom(KEY_BYTES)])
        if not public.entries or bucket.swap(NAME, nobody, stored.version):
            return
    raise _busy()


def _change(
    bucket: Bucket,
    seen: Seen,
    secret: Secret,
    change: Callable[[StoreKey], tuple[_Public, list[bytes]] | None],
) -> StoreKey:
    """Apply `change` to the newest key; return the result.

    `change` returns None if the key contains the change already: it was written, and then another writer changed the key.
    """
    for _ in range(_ATTEMPTS):
        key = open_with(bucket, seen, secret)
        changed = change(key)
        if changed is None:
            return key
        if bucket.swap(NAME, _encoded(*changed), key.version):
            return open_with(bucket, seen, secret)
    raise _busy()


def _busy() -> KeyUnavailable:
    return KeyUnavailable(
        "Other machines keep changing the key of the remote.", hint="Try again later."
    )


def _require_known(public: _Public, kept: _Public, remote: str) -> None:
    """Refuse the key of another store than the kept one, and an older one."""
    if public.store_id != kept.store_id:
        raise RemoteObjectInvalid(
            f"Remote {remote} contains another store than the one that was added: it was replaced.",
            hint=f"If that was on purpose, remove the remote and add it again. If not, move its object `{NAME}` away with the"
            f" provider's own tools; then `jupyter gpuckpt remote key restore {remote}` puts this machine's copy back.",
        )
    if public.generation < kept.generation:
        raise RemoteObjectInvalid(
            f"Remote {remote} contains an older copy of its key: generation {public.generation}, but this machine has seen"
            f" {kept.generation}.",
            hint=f"Its object `{NAME}` was put back. Move it away with the provider's own tools; then"
            f" `jupyter gpuckpt remote key restore {remote}` puts this machine's copy back.",
        )


def _require_of_line(public: _Public, line: JoinLine, remote: str) -> None:
    """Refuse the key of another store than that of a line, and an older one."""
    if public.store_id != line.store_id:
        raise RemoteObjectInvalid(
            f"Remote {remote} contains another store than the line names: the prefix is wrong, or the store was replaced.",
            hint="Compare the URL with the one on a machine that uses the remote.",
            command="`jupyter gpuckpt remote list` shows it.",
        )
    if public.generation < line.generation:
        raise RemoteObjectInvalid(
            f"Remote {remote} contains an older copy of its store: its key has generation {public.generation}, the line names"
            f" {line.generation}.",
            hint="The place may be an old backup. Compare the URL with the one on a machine that uses the remote, which also keeps"
            " the newest key.",
            command="`jupyter gpuckpt remote key restore` puts it back there.",
        )


def _opened(
    public: _Public, body: _Body, secret: Secret, version: Version, remote: str
) -> StoreKey:
    """Open a key object with a secret. Raises KeyUnavailable, RemoteObjectInvalid."""
    for entry in public.entries:
        if entry.kind is secret.kind and (master := _unwrap(entry, secret, public.store_id)):
            return StoreKey(public, [*_older(body, master), master], entry.entry_id, version)
    raise KeyUnavailable(
        f"This {secret.kind} does not open remote {remote}: it is wrong, or its entry was removed from the key.",
        hint="A machine that can open it can make a new line. If there is none, nobody can read anything in the remote.",
        command="`jupyter gpuckpt remote key code` prints one.",
    )


def _kept(seen: Seen) -> _Public | None:
    """Return the public part of the key that this machine keeps. Call this before reading the object."""
    data = seen.kept_key()
    try:
        return _decoded(data)[0] if data else None
    except RemoteObjectInvalid as error:
        raise RemoteObjectInvalid(
            f"{seen.key_path} is damaged, so an older key in the remote would not be noticed.",
            hint="Remove the file to trust the remote as it is now.",
        ) from error


def _keep(seen: Seen, data: bytes, public: _Public) -> None:
    with seen.locked():
        kept = _kept(seen)
        if kept is None or kept.generation <= public.generation:
            seen.keep_key(data)


def _next(public: _Public, entries: Sequence[Entry]) -> _Public:
    return msgspec.structs.replace(public, generation=public.generation + 1, entries=list(entries))


def _wrap(master: bytes, secret: Secret, store_id: bytes, entry_id: str = "") -> Entry:
    """Return an entry for a secret, with a random id unless one is given."""
    entry_id = entry_id or os.urandom(8).hex()
    cost = _COST if secret.kind is EntryKind.PASSWORD else _COST_OF_RANDOM
    salt, nonce = os.urandom(_SALT_BYTES), os.urandom(NONCE_BYTES)
    sealed = cipher(_stretched(secret, salt, cost)).encrypt(
        nonce, master, _beside(store_id, entry_id, secret.kind)
    )
    host, user = socket.gethostname()[:200], _user()
    return Entry(entry_id, secret.kind, host, user, time.time(), salt, cost, nonce + sealed)


def _unwrap(entry: Entry, secret: Secret, store_id: bytes) -> bytes | None:
    """Return the master key; None if the secret is not the entry's."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - optional

    key = cipher(_stretched(secret, entry.salt, entry.cost))
    nonce, sealed = entry.wrapped[:NONCE_BYTES], entry.wrapped[NONCE_BYTES:]
    try:
        master = key.decrypt(nonce, sealed, _beside(store_id, entry.entry_id, entry.kind))
    except (InvalidTag, ValueError):
        return None
    return master if len(master) == KEY_BYTES else None


def _stretched(secret: Secret, salt: bytes, cost: int) -> bytes:
    """Derive a key from a secret by scrypt, which is slow on purpose, so that guessing passwords is slow."""
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt  # noqa: PLC0415 - optional

    kdf = Scrypt(salt=salt, length=KEY_BYTES, n=1 << cost, r=_BLOCK, p=_PARALLEL)
    return kdf.derive(secret.value)


def _beside(store_id: bytes, entry_id: str, kind: EntryKind) -> bytes:
    return b"entry" + store_id + f"{kind} {entry_id}".encode()


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name[:200]
    except KeyError:
        return str(os.getuid())


def _encoded(public: _Public, masters: Sequence[bytes]) -> bytes:
    said = msgspec.msgpack.encode(public)
    nonce = os.urandom(NONCE_BYTES)
    older = msgspec.msgpack.encode(list(masters[:-1]))
    sealed = cipher(masters[-1]).encrypt(nonce, older, said)
    header = _HEADER.pack(_MAGIC, REMOTE_VERSION, os.urandom(32))
    return header + msgspec.msgpack.encode(_Body(said, nonce + sealed))


def _decoded(data: bytes) -> tuple[_Public, _Body]:
    if len(data) < _HEADER.size:
        raise invalid(NAME, "it is truncated")
    magic, version, _ = _HEADER.unpack_from(data)
    if magic != _MAGIC or version < 1:
        raise invalid(NAME, "it does not begin as a key does")
    if version > REMOTE_VERSION:
        raise FormatTooNew(
            f"The key has format version {version}; this version of jupyter-gpuckpt reads up to {REMOTE_VERSION}.",
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
