"""This machine's keys for remotes, and the work of `jupyter gpuckpt remote key`."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...errors import ConfigurationError, KeyUnavailable, RemoteNotFound, RemoteObjectMissing
from ...linux.file_locks import alone
from ...remote import pack_refs, remote_manifests, remote_sessions, store_key
from ...remote.buckets import Bucket, open_bucket
from ...remote.remote_list import Remotes, state_folder
from ...remote.remote_sessions import Sessions
from ...remote.retries import Retries
from ...remote.seen import Seen
from ...remote.store_key import Secret, StoreKey
from ...store.faults import store_errors
from ...wire.join_line import JoinLine
from ...wire.remote_records import (
    EntryKind,
    EntryView,
    Remote,
    RemoteAnswer,
    RemoteCall,
    RemoteVerb,
)

#: The folders whose objects only a store has.
STORE_FOLDERS = (
    remote_sessions.FOLDER,
    remote_manifests.FOLDER,
    pack_refs.INDEX_FOLDER,
    pack_refs.FOLDER,
)
_NEW_SECRET_BYTES = 32
_MIN_SECRET_BYTES, _MAX_SECRET_BYTES = 32, 4096


def seen(data_dir: Path, name: str) -> Seen:
    """Return the record of the generations that this machine has seen in a remote."""
    return Seen(state_folder(data_dir, name) / "seen.json")


def forget(data_dir: Path, name: str) -> None:
    """Delete this machine's state about a remote, and the journals of its uploads.

    Otherwise a remote that is added under this name later would be taken for an older state of this one.
    """
    shutil.rmtree(state_folder(data_dir, name), ignore_errors=True)


@contextmanager
def alone_with(data_dir: Path, name: str) -> Iterator[None]:
    """Hold the lock of a remote inside the block: no upload to it and no removal of it runs meanwhile. Raises StoreUnavailable."""
    with store_errors(data_dir), alone(data_dir / "remotes" / f"{name}.uploading"):
        yield


@contextmanager
def uploading(data_dir: Path, remote: Remote) -> Iterator[None]:
    """Hold the lock of `alone_with` inside the block. Raises RemoteNotFound for a removed remote, whose state must not be written."""
    with alone_with(data_dir, remote.name):
        now = Remotes(data_dir).get(remote.name)
        # Erased snapshots must not be uploaded again.
        if (now.place, now.erased) != (remote.place, remote.erased):
            raise RemoteNotFound(f"Remote {remote.name} was replaced by another one.")
        yield


def machine_id(data_dir: Path) -> str:
    """Return a random id of this installation, for remotes that only one installation may write to."""
    path = data_dir / "machine-id"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        _write_new(path, secrets.token_hex(16))
    return path.read_text().strip()


def create(data_dir: Path, remote: Remote) -> tuple[Remote, str]:
    """Create the key of a new store; return the remote with this machine's key file, and the line by which others join.

    Raises ConfigurationError if objects of a store lie there already. After another error the new store may exist all the same; this
    machine's key file stays, so that it opens the store then.
    """
    bucket, known = _bucket(data_dir, remote), seen(data_dir, remote.name)
    there = ConfigurationError(
        f"There is a store at {remote.url} already; nothing was changed.",
        hint="Join it, with the line of a machine that uses it, or choose another place.",
        command=f"`jupyter gpuckpt remote add {remote.name} {remote.url}` joins it if this machine has created it,"
        f" `jupyter gpuckpt remote add {remote.name}` with a line.",
    )
    if _has_store(bucket):
        raise there
    path = _key_path(data_dir, remote)
    own, code = _read_secret(path) if path.exists() else _new_secret(path), store_key.new_code()
    swaps = remote.capabilities is not None and remote.capabilities.compare_and_swap
    only = "" if swaps else machine_id(data_dir)
    key = store_key.create(bucket, known, [own, code], only_machine=only)
    if key is None:
        raise there
    return with_key(data_dir, remote), key.line(remote.url, code).text()


def join(data_dir: Path, remote: Remote, line: JoinLine | None, password: str) -> Remote:
    """Add this machine to the key of an existing store; return the remote with this machine's key file.

    A key file that opens the store needs neither `line` nor `password`. Raises KeyUnavailable, RemoteObjectMissing, RemoteObjectInvalid.
    """
    bucket, known = _bucket(data_dir, remote), seen(data_dir, remote.name)
    path = _key_path(data_dir, remote)
    own = _read_secret(path) if path.exists() else None
    try:
        if own is None or not _opens(bucket, known, own, line):
            secret = _given(line, password, remote)
            store_key.open_with(bucket, known, secret, line)
            store_key.add_entry(bucket, known, secret, own or _new_secret(path))
    except RemoteObjectMissing as error:
        if _has_objects(bucket):
            raise RemoteObjectMissing(
                f"The key of remote {remote.name} is gone: there are objects of a store at {remote.url}, but not its key.",
                hint="A machine that has used the remote keeps a copy, and can put it back.",
                command=f"`jupyter gpuckpt remote key restore {remote.name}` does that there.",
            ) from error
        raise RemoteObjectMissing(
            f"There is no store at {remote.url}: the prefix is wrong, or everything was erased.",
            hint="Compare the URL with the one on a machine that uses the remote, or create a new store.",
            command=f"`jupyter gpuckpt remote create {remote.name} {remote.url}` makes a new one there.",
        ) from error
    return with_key(data_dir, remote)


def has_store(data_dir: Path, remote: Remote) -> bool:
    """Return whether objects of a store lie at the place of a remote."""
    return _has_store(_bucket(data_dir, remote))


def with_key(data_dir: Path, remote: Remote) -> Remote:
    """Return the remote with the path of this machine's key file."""
    return msgspec.structs.replace(remote, key_file=str(_key_path(data_dir, remote)))


def _opens(bucket: Bucket, known: Seen, own: Secret, line: JoinLine | None) -> bool:
    try:
        store_key.open_with(bucket, known, own, line)
    except KeyUnavailable:
        return False
    return True


def _given(line: JoinLine | None, password: str, remote: Remote) -> Secret:
    if line and line.code:
        return Secret(EntryKind.CODE, line.code)
    if password:
        return store_key.password(password)
    raise KeyUnavailable(
        f"This machine has no key that opens remote {remote.name}.",
        hint="Join it with the line of a machine that uses it.",
        command=f"`jupyter gpuckpt remote key code` prints a line there; `jupyter gpuckpt remote add {remote.name}` without a URL"
        " asks for it.",
    )


def _has_store(bucket: Bucket) -> bool:
    return bucket.head(store_key.NAME) is not None or _has_objects(bucket)


def _has_objects(bucket: Bucket) -> bool:
    return any(bucket.list(folder) for folder in STORE_FOLDERS)


class Opened(NamedTuple):
    """A remote that was opened with this machine's key."""

    remote: Remote
    bucket: Bucket
    seen: Seen
    key: StoreKey
    machine_id: str

    @property
    def sessions(self) -> Sessions:
        """Return the remote's sessions."""
        return Sessions(self.bucket, self.key.seal, self.seen)

    @property
    def may_write(self) -> bool:
        """Return whether this machine may write: to an endpoint that cannot compare and swap only the machine that made the remote may."""
        return self.key.public.only_machine in {"", self.machine_id}

    def require_writable(self) -> None:
        """Raise ConfigurationError if only another machine may write to the remote."""
        if not self.may_write:
            raise ConfigurationError(
                f"Only the machine that made remote {self.remote.name} may write to it: its endpoint cannot compare and swap.",
                hint="Do this on that machine.",
            )


def opened(data_dir: Path, remote: Remote, retries: Retries | None = None) -> Opened:
    """Open a remote with this machine's key; without `retries` a user waits, so it gives up early.

    Raises ConfigurationError, KeyUnavailable, and what `Bucket` raises.
    """
    bucket, known, own = _own(data_dir, remote, retries)
    key = store_key.open_with(bucket, known, own)
    return Opened(remote, bucket, known, key, machine_id(data_dir))


def answer(call: RemoteCall, remote: Remote) -> RemoteAnswer:
    """Change or list the entries of a remote's key; return them, and the line by which machines join with a new secret."""
    at = bucket, known, own = _own(Path(call.data_dir), remote)
    new = code = None
    if call.verb in {RemoteVerb.ADD_CODE, RemoteVerb.ROTATE_KEY}:
        new = code = store_key.new_code()
    elif call.verb is RemoteVerb.ADD_PASSWORD:
        new = store_key.password(call.secret.password if call.secret else "")
    if call.verb is RemoteVerb.REMOVE_ENTRY:
        key = store_key.remove_entry(*at, call.entry)
    elif call.verb is RemoteVerb.RESTORE_KEY:
        key = store_key.restore(*at)
    elif new is None:
        key = store_key.open_with(*at)
    elif call.verb is RemoteVerb.ROTATE_KEY:
        key = store_key.rotate(bucket, known, [own, new])
    else:
        key = store_key.add_entry(*at, new)
    views = [
        EntryView(
            one.entry_id, one.kind, one.host, one.user, one.added, one.entry_id == key.entry_id
        )
        for one in key.entries
    ]
    return RemoteAnswer(entries=views, line=key.line(remote.url, code).text() if new else "")


def _own(
    data_dir: Path, remote: Remote, retries: Retries | None = None
) -> tuple[Bucket, Seen, Secret]:
    bucket = _bucket(data_dir, remote, retries)
    return bucket, seen(data_dir, remote.name), _read_secret(_key_path(data_dir, remote))


def _key_path(data_dir: Path, remote: Remote) -> Path:
    return Path(remote.key_file or data_dir / "keys" / f"{remote.name}.key")


def _bucket(data_dir: Path, remote: Remote, retries: Retries | None = None) -> Bucket:
    retries = retries or Retries.while_somebody_waits()
    return open_bucket(remote, retries=retries, lock_dir=data_dir / "remotes")


def _new_secret(path: Path) -> Secret:
    """Create a key file, unless another process has created it meanwhile; return its secret."""
    _write_new(path, secrets.token_hex(_NEW_SECRET_BYTES))
    return _read_secret(path)


def _read_secret(path: Path) -> Secret:
    """Return the secret in a key file. Raises KeyUnavailable, ConfigurationError if other users can read the file."""
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigurationError(
                f"Others can read the key file {path}.",
                hint=f"Make it yours alone: chmod 600 {path}",
            )
        with path.open("rb") as file:
            value = file.read(_MAX_SECRET_BYTES + 1).rstrip(b"\r\n")
    except OSError as error:
        raise KeyUnavailable(
            f"The key file {path} cannot be read: {error.strerror}.",
            hint="Put it back, or remove the remote and add it again with a line of another machine.",
        ) from error
    if not _MIN_SECRET_BYTES <= len(value) <= _MAX_SECRET_BYTES:
        raise ConfigurationError(
            f"The key file {path} is not usable: it must have {_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES} bytes.",
            hint="`openssl rand -hex 32` makes one.",
        )
    return Secret(EntryKind.FILE, value)


def _write_new(path: Path, text: str) -> None:
    """Create a file with mode 0600; leave a file that another process has created meanwhile."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600), "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
