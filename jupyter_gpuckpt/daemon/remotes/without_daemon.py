"""The work of `jupyter gpuckpt remote`, done without a daemon, with the credentials of the calling process.

python -m jupyter_gpuckpt.daemon.remotes.without_daemon      reads a RemoteCall as JSON, prints a RemoteAnswer
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...errors import ConfigurationError, GpuCkptError, RemoteNotFound, record_of
from ...remote import capabilities, drill
from ...remote.buckets import open_bucket
from ...remote.keyring import Undecided, undecided
from ...remote.remote_list import Remotes
from ...remote.retries import Retries
from ...wire import decoding
from ...wire.remote_records import (
    Damage,
    Drill,
    Remote,
    RemoteAnswer,
    RemoteCall,
    RemoteVerb,
    RemoteView,
)
from . import erasing, pruning, remote_keys


def answer(call: RemoteCall) -> RemoteAnswer:
    """Run a command; return its result, or its error. An error may come with a new recovery phrase that may be valid nevertheless."""
    try:
        return _VERBS[call.verb](call)
    except Undecided as undecided:
        error, phrase = undecided.error, undecided.recovery_phrase
        error.hint = (
            f"The remote may have been changed all the same: repeat the command. {error.hint}"
        )
        return RemoteAnswer(error=record_of(error), recovery_phrase=phrase)
    except GpuCkptError as error:
        return RemoteAnswer(error=record_of(error))


def _add(call: RemoteCall) -> RemoteAnswer:
    if call.remote is None:
        raise ConfigurationError("The remote to add is missing.")
    remotes = _remotes(call)
    remotes.require_new(call.remote)
    tried = _tried(call.remote)
    capabilities.require_usable(tried)
    data_dir = Path(call.data_dir)
    with remote_keys.alone_with(data_dir, call.remote.name):
        # A process that had read a removed remote of this name may have written its state again.
        remote_keys.forget(data_dir, call.remote.name)
    keyed = remote_keys.set_up(call, tried)
    with undecided(keyed.recovery_phrase):
        remotes.add(keyed.remote)
    return RemoteAnswer([_view(keyed.remote)], recovery_phrase=keyed.recovery_phrase)


def _test(call: RemoteCall) -> RemoteAnswer:
    remotes = _remotes(call)
    tried = _tried(remotes.get(call.name))

    def updated(remote: Remote) -> Remote:
        """Return the current record with the tested capabilities; other processes may have changed the rest."""
        if remote.place != tried.place:
            raise RemoteNotFound(f"Remote {remote.name} was replaced meanwhile.", hint="Try again.")
        return msgspec.structs.replace(remote, capabilities=tried.capabilities)

    return RemoteAnswer([_view(remotes.change(call.name, updated))])


def _list(call: RemoteCall) -> RemoteAnswer:
    return RemoteAnswer([_view(remote) for remote in _remotes(call).all()])


def _remove(call: RemoteCall) -> RemoteAnswer:
    remotes = _remotes(call)
    gone = remotes.get(call.name)
    remotes.remove(call.name)
    data_dir = Path(call.data_dir)
    # The daemon ends an upload to a remote that is gone.
    with remote_keys.alone_with(data_dir, call.name):
        remote_keys.forget(data_dir, call.name)
    return RemoteAnswer([_view(gone)])


def _plan_erase(call: RemoteCall) -> RemoteAnswer:
    return RemoteAnswer(plan=erasing.plan(call, _remotes(call).get(call.name)))


def _erase(call: RemoteCall) -> RemoteAnswer:
    return RemoteAnswer(erasure=erasing.erase(call, _remotes(call)))


def _verify(call: RemoteCall) -> RemoteAnswer:
    remote = _remotes(call).get(call.name)
    opened = remote_keys.opened(Path(call.data_dir), remote, Retries.while_somebody_waits())
    chance = random.SystemRandom()
    bucket, seal = opened.bucket, opened.keyring.seal
    found = drill.drill(bucket, seal, opened.seen, call.sample, chance)
    result = Drill(
        found.listed,
        found.snapshots,
        found.chunks,
        found.chunk_bytes,
        [Damage(*one) for one in found.damaged],
    )
    return RemoteAnswer(drill=result)


def _prune(call: RemoteCall) -> RemoteAnswer:
    return RemoteAnswer(pruning=pruning.prune(call, _remotes(call).get(call.name)))


def _pause(call: RemoteCall) -> RemoteAnswer:
    return _set_paused(call, paused=True)


def _resume(call: RemoteCall) -> RemoteAnswer:
    return _set_paused(call, paused=False)


def _set_paused(call: RemoteCall, *, paused: bool) -> RemoteAnswer:
    changed = _remotes(call).change(
        call.name, lambda remote: msgspec.structs.replace(remote, paused=paused)
    )
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
    with undecided(keyed.recovery_phrase):
        remotes.change(
            call.name, lambda remote: msgspec.structs.replace(remote, key=keyed.remote.key)
        )
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
    RemoteVerb.PLAN_ERASE: _plan_erase,
    RemoteVerb.ERASE: _erase,
    RemoteVerb.VERIFY: _verify,
    RemoteVerb.PRUNE: _prune,
}


def _remotes(call: RemoteCall) -> Remotes:
    return Remotes(Path(call.data_dir))


def _tried(remote: Remote) -> Remote:
    """Test the endpoint; return the remote with its present capabilities."""
    untried = msgspec.structs.replace(remote, capabilities=None)
    bucket = open_bucket(untried, retries=Retries.while_somebody_waits())
    found = capabilities.try_out(bucket)
    return msgspec.structs.replace(remote, capabilities=found)


def _view(remote: Remote) -> RemoteView:
    if remote.capabilities is None:
        return RemoteView(remote)
    verdict = capabilities.verdict(remote.capabilities)
    return RemoteView(remote, verdict.refusals, verdict.warnings)


if __name__ == "__main__":
    found = answer(decoding.from_json(sys.stdin.buffer.read(), RemoteCall))
    sys.stdout.buffer.write(msgspec.json.encode(found))
    sys.stdout.flush()
    # As the daemon (`__main__.py`): what the remote's library still does in its threads must not change the end of a complete answer.
    os._exit(0)
