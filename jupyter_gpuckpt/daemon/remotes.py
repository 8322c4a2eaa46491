"""What `jupyter gpuckpt remote` does, without a daemon: the credentials that count are those of whoever asks.

python -m jupyter_gpuckpt.daemon.remotes      reads a RemoteCall as JSON, prints a RemoteAnswer
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from .. import decoding
from ..errors import ConfigurationError, GpuCkptError, record_of
from ..remote_records import Remote, RemoteAnswer, RemoteCall, RemoteVerb, RemoteView
from ..store.far import capabilities
from ..store.far.buckets import open_bucket
from ..store.far.remotes import Remotes


def answer(call: RemoteCall) -> RemoteAnswer:
    """Do what is asked. An error of ours is part of the answer."""
    try:
        return RemoteAnswer([_view(remote) for remote in _VERBS[call.verb](call)])
    except GpuCkptError as error:
        return RemoteAnswer(error=record_of(error))


def _add(call: RemoteCall) -> list[Remote]:
    if call.remote is None:
        raise ConfigurationError("No remote is given that could be added.")
    remotes = _remotes(call)
    remotes.require_new(call.remote)
    tried = _tried(call.remote)
    capabilities.require_usable(tried)
    remotes.add(tried)
    return [tried]


def _test(call: RemoteCall) -> list[Remote]:
    remotes = _remotes(call)
    tried = _tried(remotes.get(call.name))
    remotes.replace(tried)
    return [tried]


def _list(call: RemoteCall) -> list[Remote]:
    return _remotes(call).all()


def _remove(call: RemoteCall) -> list[Remote]:
    remotes = _remotes(call)
    gone = remotes.get(call.name)
    remotes.remove(call.name)
    return [gone]


_VERBS: dict[RemoteVerb, Callable[[RemoteCall], list[Remote]]] = {
    RemoteVerb.ADD: _add,
    RemoteVerb.TEST: _test,
    RemoteVerb.LIST: _list,
    RemoteVerb.REMOVE: _remove,
}


def _remotes(call: RemoteCall) -> Remotes:
    return Remotes(Path(call.data_dir))


def _tried(remote: Remote) -> Remote:
    """Return the remote with what its endpoint can do now."""
    untried = msgspec.structs.replace(remote, capabilities=None)
    found = capabilities.try_out(open_bucket(untried))
    return msgspec.structs.replace(remote, capabilities=found)


def _view(remote: Remote) -> RemoteView:
    if remote.capabilities is None:
        return RemoteView(remote)
    verdict = capabilities.verdict(remote.capabilities)
    return RemoteView(remote, verdict.refusals, verdict.warnings)


if __name__ == "__main__":
    found = answer(decoding.from_json(sys.stdin.buffer.read(), RemoteCall))
    sys.stdout.buffer.write(msgspec.json.encode(found))
