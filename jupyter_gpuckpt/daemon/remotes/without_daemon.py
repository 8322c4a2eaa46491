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
from ...remote import drill
from ...remote.remote_list import Remotes
from ...wire import decoding
from ...wire.remote_records import (
    GivenSecret,
    Remote,
    RemoteAnswer,
    RemoteCall,
    RemoteVerb,
)
from . import erasing, new_remotes, pruning, remote_keys


def answer(call: RemoteCall) -> RemoteAnswer:
    """Run a command; return its result, or its error."""
    try:
        remotes = Remotes(Path(call.data_dir))
        if work := _OF_LIST.get(call.verb):
            return work(call, remotes)
        return _OF_REMOTE.get(call.verb, remote_keys.answer)(call, remotes.get(call.name))
    except GpuCkptError as error:
        return RemoteAnswer(error=record_of(error))


def _create(call: RemoteCall, remotes: Remotes) -> RemoteAnswer:
    created, line = new_remotes.create(Path(call.data_dir), _given(call))
    return RemoteAnswer([new_remotes.new_view(created)], line=line)


def _add(call: RemoteCall, remotes: Remotes) -> RemoteAnswer:
    secret = call.secret or GivenSecret()
    added = new_remotes.join(Path(call.data_dir), _given(call), secret)
    return RemoteAnswer([new_remotes.new_view(added)])


def _given(call: RemoteCall) -> Remote:
    if call.remote is None:
        raise ConfigurationError("The remote to add is missing.")
    return call.remote


def _test(call: RemoteCall, remotes: Remotes) -> RemoteAnswer:
    tried = new_remotes.tried(remotes.get(call.name))

    def updated(remote: Remote) -> Remote:
        """Return the current record with the tested capabilities; other processes may have changed the rest."""
        if remote.place != tried.place:
            raise RemoteNotFound(f"Remote {remote.name} was replaced meanwhile.", hint="Try again.")
        return msgspec.structs.replace(remote, capabilities=tried.capabilities)

    view = new_remotes.view(remotes.change(call.name, updated))
    if not view.refusals:
        # Raises if the key is gone, older, or another store's.
        remote_keys.opened(Path(call.data_dir), view.remote)
    return RemoteAnswer([view])


def _list(call: RemoteCall, remotes: Remotes) -> RemoteAnswer:
    return RemoteAnswer([new_remotes.view(remote) for remote in remotes.all()])


def _remove(call: RemoteCall, remotes: Remotes) -> RemoteAnswer:
    gone = remotes.get(call.name)
    remotes.remove(call.name)
    data_dir = Path(call.data_dir)
    # The daemon ends an upload to a remote that is gone.
    with remote_keys.alone_with(data_dir, call.name):
        remote_keys.forget(data_dir, call.name)
    return RemoteAnswer([new_remotes.view(gone)])


def _verify(call: RemoteCall, remote: Remote) -> RemoteAnswer:
    opened = remote_keys.opened(Path(call.data_dir), remote)
    bucket, seal, chance = opened.bucket, opened.key.seal, random.SystemRandom()
    return RemoteAnswer(drill=drill.drill(bucket, seal, opened.seen, call.sample, chance))


def _set_paused(call: RemoteCall, remotes: Remotes) -> RemoteAnswer:
    paused = call.verb is RemoteVerb.PAUSE
    changed = remotes.change(call.name, lambda one: msgspec.structs.replace(one, paused=paused))
    return RemoteAnswer([new_remotes.view(changed)])


_OF_LIST: dict[RemoteVerb, Callable[[RemoteCall, Remotes], RemoteAnswer]] = {
    RemoteVerb.CREATE: _create,
    RemoteVerb.ADD: _add,
    RemoteVerb.TEST: _test,
    RemoteVerb.LIST: _list,
    RemoteVerb.REMOVE: _remove,
    RemoteVerb.PAUSE: _set_paused,
    RemoteVerb.RESUME: _set_paused,
    RemoteVerb.ERASE: erasing.erase,
}
#: The commands about one remote in the list; those about its key are in `remote_keys`.
_OF_REMOTE: dict[RemoteVerb, Callable[[RemoteCall, Remote], RemoteAnswer]] = {
    RemoteVerb.PLAN_ERASE: erasing.plan,
    RemoteVerb.VERIFY: _verify,
    RemoteVerb.PRUNE: pruning.prune,
}


if __name__ == "__main__":
    found = answer(decoding.from_json(sys.stdin.buffer.read(), RemoteCall))
    sys.stdout.buffer.write(msgspec.json.encode(found))
    sys.stdout.flush()
    # As the daemon (`__main__.py`): what the remote's library still does in its threads must not change the end of a complete answer.
    os._exit(0)
