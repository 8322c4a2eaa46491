"""The changes of this machine's snapshots that a remote has to be told: which there are, and how far sessions are changed by them."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from ..errors import FarObjectInvalid, FarObjectMissing, FormatTooNew
from ..model import SnapshotInfo
from ..store.far.about import Amendment, Told, about, told
from ..store.far.sessions import Sessions
from . import remote_keys
from .remote_keys import Opened

_log = logging.getLogger(__name__)


class Amended(msgspec.Struct, frozen=True):
    """The result of amendments: the far session of each snapshot that was found, and the snapshots that no far session lists."""

    sessions: dict[str, str] = {}
    gone: list[str] = []


def changes_to_tell(
    there: Iterable[SnapshotInfo],
    only_there: Collection[str],
    known: Mapping[str, Told],
    sessions_of: Callable[[SnapshotInfo], list[str]],
) -> list[Amendment]:
    """Return the changes since a remote was told.

    `there`: the snapshots of this machine that the remote has; `only_there`: those that have their content only there. `known`: what
    was told. `sessions_of`: the far sessions that may list a snapshot.
    """
    found = {info.snapshot_id: info for info in there}
    changes = []
    for name, info in found.items():
        before = known.get(name)
        relied_on_in = before.relied_on_in if before else ""
        now = told(info, relied_on_in or info.kernel_id) if name in only_there else told(info)
        if now != before:
            sessions = list(dict.fromkeys([*filter(None, [relied_on_in]), *sessions_of(info)]))
            changes.append(Amendment(name, sessions, before, now, about(info), info.title))
    for name, before in known.items():
        # It was deleted here, so this machine needs it there no longer.
        if before.relied_on_in and name not in found and name not in only_there:
            now = msgspec.structs.replace(before, relied_on_in="")
            changes.append(Amendment(name, [before.relied_on_in], before, now))
    return changes


def amend(data_dir: Path, opened: Opened, changes: Sequence[Amendment]) -> Amended:
    """Tell a remote what has changed. Raises what `Bucket` raises.

    A far session that cannot be read is logged and left as it is. Nothing is told to a remote that only another machine may write to.
    """
    if opened.keyring.public.only_machine not in {"", remote_keys.machine_id(data_dir)}:
        return Amended({one.snapshot_id: one.sessions[0] for one in changes})
    sessions = Sessions(opened.bucket, opened.keyring.seal, opened.seen)
    left, unclear, found = {one.snapshot_id: one for one in changes}, set[str](), dict[str, str]()
    for place in range(max((len(one.sessions) for one in changes), default=0)):
        by_session: dict[str, dict[str, Amendment]] = {}
        for name, one in left.items():
            if place < len(one.sessions):
                by_session.setdefault(one.sessions[place], {})[name] = one
        for session_id, some in by_session.items():
            try:
                listed = sessions.amend(session_id, some, this_machine(data_dir))
            except FarObjectMissing:
                continue
            except (FarObjectInvalid, FormatTooNew) as error:
                _log.warning("session %s is not told of changes: %s", session_id, error)
                unclear.update(some)
                continue
            found |= dict.fromkeys(listed, session_id)
            for name in listed:
                del left[name]
    return Amended(found, sorted(left.keys() - unclear))


def this_machine(data_dir: Path) -> tuple[str, str]:
    """Return the id and the host name by which far sessions know this machine."""
    return remote_keys.machine_id(data_dir), socket.gethostname()
