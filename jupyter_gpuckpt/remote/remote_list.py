"""The list of remotes, with the URL and settings of each, in a file of the data directory.

The file never contains credentials: obstore finds them at every use, in the same places as the provider's own tools (`buckets.py`).
The file is small and is read at every access, so running processes see changes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ..errors import ConfigurationError, FormatTooNew, RemoteNotFound
from ..linux.file_locks import alone
from ..store.faults import store_errors
from ..store.manifests import replace_file
from ..wire import decoding
from ..wire.remote_records import Remote

_FILE = "remotes.json"
_LOCK = "remotes.lock"
_VERSION = 1
_MAX_FILE_BYTES = 1 << 20


class _File(msgspec.Struct, frozen=True):
    version: int = _VERSION
    remotes: list[Remote] = []


class Remotes:
    """The remotes of the data directory `data_dir`."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        #: The file. Each change replaces it.
        self.path = data_dir / _FILE

    def all(self) -> list[Remote]:
        """Return all remotes in the order in which they were added. Raises ConfigurationError, FormatTooNew, StoreUnavailable."""
        with store_errors(self._data_dir):
            try:
                with self.path.open("rb") as file:
                    data = file.read(_MAX_FILE_BYTES + 1)
            except FileNotFoundError:
                return []
        try:
            if len(data) > _MAX_FILE_BYTES:
                raise msgspec.DecodeError("it is too long")
            version = decoding.from_json(data, _Version).version
            if version > _VERSION:
                raise FormatTooNew(
                    f"{self.path} has format version {version}; this version of jupyter-gpuckpt reads up to {_VERSION}.",
                    hint="Upgrade jupyter-gpuckpt.",
                )
            found = decoding.from_json(data, _File).remotes
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f"{self.path} is damaged: {error}.",
                hint="Remove the file and add the remotes again. Their content stays as it is.",
            ) from error
        for remote in found:
            remote.check()
        return found

    def get(self, name: str) -> Remote:
        """Return the remote of this name. Raises RemoteNotFound, and the errors of `all`."""
        found = self.all()
        for remote in found:
            if remote.name == name:
                return remote
        raise RemoteNotFound(
            f"There is no remote {name[:200]!r}.",
            hint=_known(found),
            command="`jupyter gpuckpt remote add` adds one.",
        )

    def require_new(self, remote: Remote) -> None:
        """Raise ConfigurationError if a remote cannot be added, and the errors of `all`."""
        remote.check()
        if any(one.name == remote.name for one in self.all()):
            raise ConfigurationError(
                f"There is a remote {remote.name} already.", hint="Choose another name."
            )

    def add(self, remote: Remote) -> None:
        """Add a remote. Raises the errors of `require_new`."""

        def add(known: list[Remote]) -> list[Remote]:
            self.require_new(remote)
            return [*known, remote]

        self._change(add)

    def change(self, name: str, change: Callable[[Remote], Remote]) -> Remote:
        """Apply a change to the newest settings of a remote; return the result. Raises RemoteNotFound, and the errors of `all`.

        `change` must not ask the remote: others wait for it.
        """

        def replace(known: list[Remote]) -> list[Remote]:
            changed = change(self.get(name))
            changed.check()
            return [changed if one.name == name else one for one in known]

        return next(one for one in self._change(replace) if one.name == name)

    def remove(self, name: str) -> None:
        """Remove a remote from the list; its content stays. Raises RemoteNotFound, and the errors of `all`."""
        self.get(name)
        self._change(lambda known: [one for one in known if one.name != name])

    def _change(self, change: Callable[[list[Remote]], list[Remote]]) -> list[Remote]:
        with store_errors(self._data_dir), alone(self._data_dir / _LOCK):
            content = _File(remotes=change(self.all()))
            replace_file(self.path, msgspec.json.format(msgspec.json.encode(content), indent=2))
        return content.remotes


class _Version(msgspec.Struct, frozen=True):
    version: int


def _known(found: list[Remote]) -> str:
    names = ", ".join(remote.name for remote in found)
    return f"Known remotes: {names}." if names else "No remote is configured."


def state_folder(data_dir: Path, name: str) -> Path:
    """Return the directory of this machine's state about a remote."""
    return data_dir / "remotes" / name
