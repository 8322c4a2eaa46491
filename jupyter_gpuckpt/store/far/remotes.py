"""Which remotes there are: a URL and settings each, in a file of the data directory.

Credentials are never among them: obstore finds them as the provider's own tools do (`buckets.py`), at every use. The file is small
and read at every question, so a process that runs sees a change at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ... import decoding
from ...errors import ConfigurationError, FormatTooNew, RemoteNotFound
from ...remote_records import Remote
from ..faults import store_errors
from ..manifests import replace_file
from .file_locks import alone

_FILE = "remotes.json"
_LOCK = "remotes.lock"
_VERSION = 1
_MOST_BYTES = 1 << 20


class _File(msgspec.Struct, frozen=True):
    version: int = _VERSION
    remotes: list[Remote] = []


class Remotes:
    """The remotes of the data directory `data_dir`."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        #: The file; every change of it is another file.
        self.path = data_dir / _FILE

    def all(self) -> list[Remote]:
        """Return them in the order in which they were added. Raises ConfigurationError, FormatTooNew, StoreUnavailable."""
        with store_errors(self._data_dir):
            try:
                with self.path.open("rb") as file:
                    data = file.read(_MOST_BYTES + 1)
            except FileNotFoundError:
                return []
        try:
            if len(data) > _MOST_BYTES:
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
                hint="Remove the file and add the remotes again; what they hold is not touched.",
            ) from error
        for remote in found:
            remote.check()
        return found

    def get(self, name: str) -> Remote:
        """Return the remote of this name. Raises RemoteNotFound, and what `all` raises."""
        found = self.all()
        for remote in found:
            if remote.name == name:
                return remote
        names = ", ".join(remote.name for remote in found) or "none"
        raise RemoteNotFound(
            f"There is no remote {name[:200]!r}.",
            hint=f"There are: {names}. `jupyter gpuckpt remote add` adds one.",
        )

    def require_new(self, remote: Remote) -> None:
        """Raise ConfigurationError if a remote cannot be added, and what `all` raises."""
        remote.check()
        if any(one.name == remote.name for one in self.all()):
            raise ConfigurationError(
                f"There is a remote {remote.name} already.", hint="Choose another name."
            )

    def add(self, remote: Remote) -> None:
        """Enter a remote. Raises what `require_new` raises."""

        def add(known: list[Remote]) -> list[Remote]:
            self.require_new(remote)
            return [*known, remote]

        self._change(add)

    def replace(self, remote: Remote) -> None:
        """Replace the remote of this name, if it is still there. Raises what `all` raises."""
        remote.check()
        self._change(lambda known: [remote if one.name == remote.name else one for one in known])

    def remove(self, name: str) -> None:
        """Forget a remote; what it holds stays. Raises RemoteNotFound, and what `all` raises."""
        self.get(name)
        self._change(lambda known: [one for one in known if one.name != name])

    def _change(self, change: Callable[[list[Remote]], list[Remote]]) -> None:
        with store_errors(self._data_dir), alone(self._data_dir / _LOCK):
            content = _File(remotes=change(self.all()))
            replace_file(self.path, msgspec.json.format(msgspec.json.encode(content), indent=2))


class _Version(msgspec.Struct, frozen=True):
    version: int
