"""The Jupyter servers of this user, found by the files that they keep in Jupyter's runtime directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
from jupyter_core.paths import jupyter_runtime_dir

from ..wire import decoding

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class FoundServer(NamedTuple):
    """A Jupyter server: its address, which ends with a slash, and the token by which this user may call it."""

    url: str
    token: str

    @property
    def is_on_loopback(self) -> bool:
        """Return whether its address is one of this machine, for which a certificate proves nothing."""
        return (urlsplit(self.url).hostname or "") in _LOOPBACK


class _Info(msgspec.Struct, frozen=True):
    """The content of a server's file."""

    url: str
    pid: int
    token: str = ""
    sock: str = ""


def running_servers() -> Iterator[FoundServer]:
    """Yield this user's Jupyter servers. Those that listen on a unix socket only are left out."""
    for path in sorted(Path(jupyter_runtime_dir()).glob("jpserver-[0-9]*.json")):
        with suppress(OSError, msgspec.DecodeError):
            if path.stat().st_uid != os.getuid():
                continue
            info = decoding.from_json(path.read_bytes(), _Info)
            os.kill(info.pid, 0)
            if not info.sock:
                yield FoundServer(info.url, info.token)
