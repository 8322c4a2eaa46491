"""This machine's keys for remotes, and the work of `jupyter gpuckpt remote key`."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...errors import ConfigurationError, GpuCkptError, KeyUnavailable, RemoteNotFound
from ...host import commands
from ...linux.file_locks import alone
from ...remote import holders, keyring
from ...remote.buckets import Bucket, open_bucket
from ...remote.holders import MAX_SECRET_BYTES, MIN_SECRET_BYTES, Secret
from ...remote.keyring import Keyring, Undecided
from ...remote.remote_list import Remotes, state_folder
from ...remote.retries import Retries
from ...remote.seen import Seen
from ...store.faults import store_errors
from ...wire.remote_records import (
    GivenSecret,
    HolderKind,
    HolderView,
    KeySource,
    Remote,
    RemoteCall,
)

_COMMAND_SECONDS = 60.0
_NEW_SECRET_BYTES = 32
_RECOVERY = "recovery phrase"


class Keyed(NamedTuple):
    """A remote with its key, and a new recovery phrase if one was made."""

    remote: Remote
    recovery_phrase: str = ""


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


def set_up(call: RemoteCall, remote: Remote) -> Keyed:
    """Create the key of a new store, or add this machine to an existing one; return the remote with this machine's key.

    Raises KeyUnavailable if the given secrets do not open an existing store, and Undecided, after which this machine's key stays.
    """
    data_dir, source = Path(call.data_dir), remote.key or KeySource()
    if source.kind is HolderKind.FILE and not source.path:
        source = msgspec.structs.replace(source, path=str(data_dir / "keys" / f"{remote.name}.key"))
    made = source.kind is HolderKind.FILE and not Path(source.path).exists()
    if made:
        _write_new(Path(source.path), secrets.token_hex(_NEW_SECRET_BYTES))
    try:
        ring, phrase = _into_store(call, remote, secret_of(source))
    except GpuCkptError:
        if made:
            Path(source.path).unlink(missing_ok=True)
        raise
    source = msgspec.structs.replace(source, holder_id=ring.holder_id)
    return Keyed(msgspec.structs.replace(remote, key=source), phrase)


def _into_store(call: RemoteCall, remote: Remote, own: Secret) -> tuple[Keyring, str]:
    data_dir = Path(call.data_dir)
    bucket, known = _bucket(data_dir, remote), seen(data_dir, remote.name)
    if bucket.head(keyring.NAME) is None:
        swaps = remote.capabilities is not None and remote.capabilities.compare_and_swap
        phrase, recovery = holders.new_recovery_phrase()
        names = {socket.gethostname(): own, _RECOVERY: recovery}
        only = "" if swaps else machine_id(data_dir)
        with _naming(phrase):
            ring = keyring.create(bucket, known, names, only_machine=only)
        if ring:
            return ring, phrase
    if call.secret is not None:
        name = socket.gethostname()
        return keyring.add_holder(bucket, known, given(call.secret), name, own), ""
    try:
        return keyring.open_with(bucket, known, own), ""
    except KeyUnavailable as error:
        raise KeyUnavailable(
            f"There are snapshots in remote {remote.name} already, and this machine has no key to them.",
            hint="Repeat the command with --passphrase or --recovery-phrase, or choose another prefix.",
        ) from error


@contextmanager
def _naming(recovery_phrase: str) -> Iterator[None]:
    """Add the new recovery phrase to an `Undecided` error."""
    try:
        yield
    except Undecided as error:
        raise Undecided(error.error, recovery_phrase) from error.error


class Opened(NamedTuple):
    """A remote that was opened with this machine's key."""

    remote: Remote
    bucket: Bucket
    seen: Seen
    keyring: Keyring


def opened(data_dir: Path, remote: Remote, retries: Retries | None = None) -> Opened:
    """Open a remote with this machine's key; without `retries` a user waits, so it gives up early.

    Raises ConfigurationError, KeyUnavailable, and what `Bucket` raises.
    """
    bucket, known, own = _own(data_dir, remote, retries)
    return Opened(remote, bucket, known, keyring.open_with(bucket, known, own, _holder_id(remote)))


def listed(data_dir: Path, remote: Remote) -> list[HolderView]:
    """Return the holders of a remote's key."""
    return _views(opened(data_dir, remote).keyring, remote)


def add_holder(call: RemoteCall, remote: Remote) -> tuple[list[HolderView], str]:
    """Add a holder; return all holders, and the new recovery phrase if the holder is one."""
    if call.new is None:
        raise ConfigurationError("No secret is given for the new holder.")
    bucket, known, own = _own(Path(call.data_dir), remote)
    phrase = ""
    if call.new.kind is HolderKind.RECOVERY:
        phrase, new = holders.new_recovery_phrase()
    else:
        new = given(call.new)
    name = call.holder or (_RECOVERY if phrase else call.new.kind)
    with _naming(phrase):
        ring = keyring.add_holder(bucket, known, own, name, new)
    return _views(ring, remote), phrase


def remove_holder(call: RemoteCall, remote: Remote) -> list[HolderView]:
    """Remove a holder; return the others."""
    bucket, known, own = _own(Path(call.data_dir), remote)
    return _views(keyring.remove_holder(bucket, known, own, call.holder), remote)


def rekey(call: RemoteCall, remote: Remote) -> tuple[list[HolderView], Keyed]:
    """Use a new key for later writes, held by this machine and a new recovery phrase; return the holders and the remote with it."""
    bucket, known, own = _own(Path(call.data_dir), remote)
    phrase, recovery = holders.new_recovery_phrase()
    names = {socket.gethostname(): own, _RECOVERY: recovery}
    with _naming(phrase):
        ring = keyring.rekey(bucket, known, own, names)
    source = msgspec.structs.replace(remote.key or KeySource(), holder_id=ring.holder_id)
    keyed = Keyed(msgspec.structs.replace(remote, key=source), phrase)
    return _views(ring, keyed.remote), keyed


def secret_of(source: KeySource) -> Secret:
    """Return this machine's secret. Raises KeyUnavailable if file or command fail, ConfigurationError if others can read the file."""
    if source.kind is HolderKind.FILE:
        return Secret(HolderKind.FILE, _read_secret(Path(source.path)))
    if source.kind is HolderKind.COMMAND and source.command:
        return Secret(HolderKind.COMMAND, _printed(source.command))
    raise ConfigurationError("This machine's key comes from a file or a command.")


def given(secret: GivenSecret) -> Secret:
    """Return the secret that a user typed or named. Raises ConfigurationError, KeyUnavailable."""
    if secret.kind is HolderKind.PASSPHRASE:
        return holders.passphrase(secret.text)
    if secret.kind is HolderKind.RECOVERY:
        return holders.recovery_phrase(secret.text)
    return secret_of(KeySource(secret.kind, secret.path, secret.command))


def _own(
    data_dir: Path, remote: Remote, retries: Retries | None = None
) -> tuple[Bucket, Seen, Secret]:
    if remote.key is None:
        raise ConfigurationError(
            f"Remote {remote.name} has no key on this machine.", hint="Remove it and add it again."
        )
    bucket = _bucket(data_dir, remote, retries)
    return bucket, seen(data_dir, remote.name), secret_of(remote.key)


def _bucket(data_dir: Path, remote: Remote, retries: Retries | None = None) -> Bucket:
    retries = retries or Retries.while_somebody_waits()
    return open_bucket(remote, retries=retries, lock_dir=data_dir / "remotes")


def _holder_id(remote: Remote) -> str:
    return remote.key.holder_id if remote.key else ""


def _views(ring: Keyring, remote: Remote) -> list[HolderView]:
    own_id = _holder_id(remote)
    return [
        HolderView(one.holder_id, one.kind, one.name, one.added, one.holder_id == own_id)
        for one in ring.holders
    ]


def _read_secret(path: Path) -> bytes:
    try:
        status = path.stat()
        if status.st_mode & 0o077:
            raise ConfigurationError(
                f"Others can read the key file {path}.",
                hint=f"Make it yours alone: chmod 600 {path}",
            )
        with path.open("rb") as file:
            value = file.read(MAX_SECRET_BYTES + 1).rstrip(b"\r\n")
    except OSError as error:
        raise KeyUnavailable(
            f"The key file {path} cannot be read: {error.strerror}.",
            hint="Put it back, or add the remote again with a passphrase or the recovery phrase.",
        ) from error
    return _checked(value, f"The key file {path}")


def _printed(command: list[str]) -> bytes:
    try:
        done = commands.run(command, timeout=_COMMAND_SECONDS, env=os.environ)
    except commands.CommandFailed as error:
        # Its output is not shown: it may contain a part of the secret.
        raise KeyUnavailable(
            f"The command that gives the key failed: {command[0]}, status {error.returncode}.",
            hint="Run it directly to see the error.",
        ) from error
    return _checked(done.stdout.rstrip("\r\n").encode(), f"What {command[0]} printed")


def _checked(value: bytes, what: str) -> bytes:
    if not MIN_SECRET_BYTES <= len(value) <= MAX_SECRET_BYTES:
        raise ConfigurationError(
            f"{what} is not a usable key: it must have {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes.",
            hint="`openssl rand -hex 32` makes one.",
        )
    return value


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
