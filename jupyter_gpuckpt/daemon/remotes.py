"""What `jupyter gpuckpt remote` does, without a daemon: the credentials that count are those of whoever asks.

python -m jupyter_gpuckpt.daemon.remotes      reads a RemoteCall as JSON, prints a RemoteAnswer
"""

from __future__ import annotations

import shutil
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
from . import remote_keys


def answer(call: RemoteCall) -> RemoteAnswer:
    """Do what is asked. An error of ours is part of the answer."""
    try:
        return _VERBS[call.verb](call)
    except GpuCkptError as error:
        return RemoteAnswer(error=record_of(error))


def _add(call: RemoteCall) -> RemoteAnswer:
    if call.remote is None:
        raise ConfigurationError("No remote is given that could be added.")
    remotes = _remotes(call)
    remotes.require_new(call.remote)
    tried = _tried(call.remote)
    capabilities.require_usable(tried)
    keyed = remote_keys.set_up(call, tried)
    remotes.add(keyed.remote)
    return RemoteAnswer([_view(keyed.remote)], recovery_phrase=keyed.recovery_phrase)


def _test(call: RemoteCall) -> RemoteAnswer:
    remotes = _remotes(call)
    tried = _tried(remotes.get(call.name))
    remotes.replace(tried)
    return RemoteAnswer([_view(tried)])


def _list(call: RemoteCall) -> RemoteAnswer:
    return RemoteAnswer([_view(remote) for remote in _remotes(call).all()])


def _remove(call: RemoteCall) -> RemoteAnswer:
    remotes = _remotes(call)
    gone = remotes.get(call.name)
    remotes.remove(call.name)
    data_dir = Path(call.data_dir)
    # The daemon ends an upload to a remote that is gone.
    with remote_keys.alone_with(data_dir, call.name):
        # Or one that is added under this name later would be taken for this one, set back.
        shutil.rmtree(remote_keys.state_dir(data_dir, call.name), ignore_errors=True)
    return RemoteAnswer([_view(gone)])


def _pause(call: RemoteCall) -> RemoteAnswer:
    return _set_paused(call, paused=True)


def _resume(call: RemoteCall) -> RemoteAnswer:
    return _set_paused(call, paused=False)


def _set_paused(call: RemoteCall, *, paused: bool) -> RemoteAnswer:
    remotes = _remotes(call)
    changed = msgspec.structs.replace(remotes.get(call.name), paused=paused)
    remotes.replace(changed)
    return RemoteAnswer([_view(changed)])


def _holders(call: RemoteCall) -> RemoteAnswer:
    remote = _remotes(call).get(call.name)
    return RemoteAnswer(holders=remote_keys.listed(Path(call.data_dir), remote))


def _add_holder(call: RemoteCall) -> RemoteAnswer:
    holders, phrase = remote_keys.add_holder(call, _remotes(call).get(call.name))
    return RemoteAnswer(holders=holders, recovery_phrase=phrase)


def _remove_holder(call: RemoteCall) -> RemoteAnswer:
    return RemoteAnswer(holders=remote_keys.remove_holder(call, _remotes(call).get(call.name)))


def _rekey(call: RemoteCall) -> RemoteAnswer:
    remotes = _remotes(call)
    holders, keyed = remote_keys.rekey(call, remotes.get(call.name))
    remotes.replace(keyed.remote)
    return RemoteAnswer(holders=holders, recovery_phrase=keyed.recovery_phrase)


_VERBS: dict[RemoteVerb, Callable[[RemoteCall], RemoteAnswer]] = {
    RemoteVerb.ADD: _add,
    RemoteVerb.TEST: _test,
    RemoteVerb.LIST: _list,
    RemoteVerb.REMOVE: _remove,
    RemoteVerb.PAUSE: _pause,
    RemoteVerb.RESUME: _resume,
    RemoteVerb.HOLDERS: _holders,
    RemoteVerb.ADD_HOLDER: _add_holder,
    RemoteVerb.REMOVE_HOLDER: _remove_holder,
    RemoteVerb.REKEY: _rekey,
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
