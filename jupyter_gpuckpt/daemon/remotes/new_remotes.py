"""New remotes: the test of a place, the making of a store there, and the joining of an existing store.

The command line does this in a process of its own, with its credentials (`without_daemon.py`); pages ask the daemon, which will upload.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from ...errors import AccessDenied, KeyUnavailable, StoreUnavailable
from ...remote import capabilities
from ...remote.buckets import open_bucket
from ...remote.remote_list import Remotes
from ...remote.retries import Retries
from ...wire import join_line
from ...wire.remote_records import (
    AddedRemote,
    GivenSecret,
    NewRemote,
    Remote,
    RemoteCall,
    RemoteVerb,
    RemoteView,
    TriedRemote,
    secrets_in,
)
from . import remote_keys

#: The number of places that are tested or added concurrently; more wait.
_AT_ONCE = 2

_Answer = TypeVar("_Answer")


def create(data_dir: Path, remote: Remote) -> tuple[Remote, str]:
    """Make a new store at a tested place and add the remote; return it, and the line by which others join.

    Raises ConfigurationError, and what `try_out` and `remote_keys.create` raise.
    """
    created, line = remote_keys.create(data_dir, _cleared(data_dir, remote))
    Remotes(data_dir).add(created)
    return created, line


def join(data_dir: Path, remote: Remote, secret: GivenSecret) -> Remote:
    """Join the store at a tested place and add the remote; return it. Raises what `create` and `remote_keys.join` raise."""
    line = join_line.parse(secret.line) if secret.line else None
    remote = _located(remote, secret)
    joined = remote_keys.join(data_dir, _cleared(data_dir, remote), line, secret.password)
    Remotes(data_dir).add(joined)
    return joined


def tried(remote: Remote) -> Remote:
    """Test the endpoint of a remote; return the remote with its present capabilities."""
    untried = msgspec.structs.replace(remote, capabilities=None)
    bucket = open_bucket(untried, retries=Retries.while_somebody_waits())
    found = capabilities.try_out(bucket)
    return msgspec.structs.replace(remote, capabilities=found)


def view(remote: Remote) -> RemoteView:
    """Return a remote for display, with the consequences of its capabilities."""
    if remote.capabilities is None:
        return RemoteView(remote)
    verdict = capabilities.verdict(remote.capabilities)
    return RemoteView(remote, verdict.refusals, verdict.warnings)


def new_view(remote: Remote) -> RemoteView:
    """Return a remote as `view` does, with a warning of secrets that kernels inherit from this process."""
    found = view(remote)
    if inherited := secrets_in(remote):
        found.warnings.append(
            f"Kernels inherit {', '.join(inherited)} from the environment: prefer a file or a role."
        )
    return found


def _located(remote: Remote, secret: GivenSecret) -> Remote:
    """Return a remote with the URL of the given line, if it has no other. Raises ConfigurationError."""
    if remote.url or not secret.line:
        return remote
    return msgspec.structs.replace(remote, url=join_line.parse(secret.line).url)


def _cleared(data_dir: Path, remote: Remote) -> Remote:
    """Test the endpoint of a remote to be added, and return the remote. Nothing is left of a former remote of its name."""
    Remotes(data_dir).require_new(remote)
    found = tried(remote)
    capabilities.require_usable(found)
    with remote_keys.alone_with(data_dir, remote.name):
        # A process that had read a removed remote of this name may have written its state again.
        remote_keys.forget(data_dir, remote.name)
    return found


@contextmanager
def daemon_credentials() -> Iterator[None]:
    """Add to an error's hint that the daemon may have other credentials than the shell in which a remote was tested."""
    try:
        yield
    except (AccessDenied, StoreUnavailable) as error:
        if not isinstance(error, KeyUnavailable):
            error.hint = f"{error.hint} The daemon uses the credentials of the environment in which it was started.".strip()
        raise


class NewRemotes:
    """The answers to requests that test and add remotes, with the credentials of this daemon's environment."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        # Of its own: a place that does not answer delays nothing else.
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="new remote")

    async def test(self, request: NewRemote) -> TriedRemote:
        """Test a place for a remote; nothing of it stays there, and nothing is added. Raises what `add` raises."""
        return await self._run(lambda: self._test(request))

    async def add(self, request: NewRemote) -> AddedRemote:
        """Add a remote: with a new store, or as `request` says with that which is there.

        Raises ConfigurationError, KeyUnavailable, RemoteObjectMissing, RemoteObjectInvalid, AccessDenied, StoreUnavailable.
        """
        return await self._run(lambda: self._add(request))

    async def line(self, name: str) -> AddedRemote:
        """Make a new line by which other machines join a remote. Raises RemoteNotFound, and what `remote_keys.answer` raises."""
        return await self._run(lambda: self._line(name))

    async def _run(self, work: Callable[[], _Answer]) -> _Answer:
        with daemon_credentials():
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _test(self, request: NewRemote) -> TriedRemote:
        remote = _located(_remote(request), request.secret)
        Remotes(self._data_dir).require_new(remote)
        found = new_view(tried(remote))
        has_store = not found.refusals and remote_keys.has_store(self._data_dir, remote)
        return TriedRemote(remote.url, found.refusals, found.warnings, has_store)

    def _add(self, request: NewRemote) -> AddedRemote:
        remote, line = _remote(request), ""
        if request.joins:
            remote = join(self._data_dir, remote, request.secret)
        else:
            remote, line = create(self._data_dir, remote)
        return AddedRemote(remote.name, new_view(remote).warnings, line)

    def _line(self, name: str) -> AddedRemote:
        remote = Remotes(self._data_dir).get(name)
        call = RemoteCall(RemoteVerb.ADD_CODE, str(self._data_dir), name)
        return AddedRemote(name, line=remote_keys.answer(call, remote).line)


def _remote(request: NewRemote) -> Remote:
    """Return the remote of a request."""
    return Remote(request.name, request.url, request.settings)
