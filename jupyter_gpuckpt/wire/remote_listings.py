"""The records of the protocol about snapshots in remotes (`protocol.py` has the others).

No record here contains a key, a credential or its source.
"""

from __future__ import annotations

from typing import Annotated

import msgspec


class RemoteState(msgspec.Struct, frozen=True):
    """GET /remotes: a remote in its last known state. With `refusals` it cannot be used; `warnings`: limitations."""

    name: str
    url: str
    #: Seconds since the epoch; 0: never.
    tried_at: float = 0.0
    refusals: list[str] = []
    warnings: list[str] = []


class ListedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot that a remote lists. `here`: the local store lists it, too, or could undo its deletion; a `stub`: without its content."""

    snapshot_id: str
    kernel_id: str
    #: Seconds since the epoch.
    created: float
    title: str = ""
    raw_bytes: int = 0
    stored_bytes: int = 0
    here: bool = False
    stub: bool = False


class ListedSession(msgspec.Struct, frozen=True):
    """A remote session: whose notebook it is, and its snapshots, newest first. `path`: relative to the root of its server.

    `leased_to`: the machine with its lease, which may have ended without releasing it; `leased_since`: in seconds since the epoch.
    `runs_here`: that machine is this one.
    `moved_at`: when its user moved it there for another machine, which has not taken it yet; 0: it was not moved.
    """

    session_id: str
    host_name: str = ""
    hub_user: str = ""
    server_name: str = ""
    path: str = ""
    title: str = ""
    snapshots: list[ListedSnapshot] = []
    leased_to: str = ""
    leased_since: float = 0.0
    runs_here: bool = False
    moved_at: float = 0.0


class RemoteListing(msgspec.Struct, frozen=True):
    """GET /remotes/{name}/sessions. `unreadable`: the reasons why existing sessions are not listed, a sentence each."""

    remote: str
    sessions: list[ListedSession] = []
    unreadable: list[str] = []


class FetchEstimate(msgspec.Struct, frozen=True):
    """GET /remotes/{name}/snapshots/{id}: the size of a fetch, and whether the kernel could be resumed here.

    `obstacles`: the reasons why not, a sentence each, and `hint`: a remedy. `warnings`: possible problems. Its `session` has the lease of
    another machine only if that machine runs it now.
    """

    session: ListedSession
    snapshot: ListedSnapshot
    #: The compressed bytes in the remote; about as many as will be moved.
    move_bytes: int
    #: The compressed bytes of the snapshot that the local store already has.
    here_bytes: int
    obstacles: list[str] = []
    warnings: list[str] = []
    hint: str = ""


class MoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /kernels/{id}/move. `remote`: its name; empty means the only remote."""

    remote: Annotated[str, msgspec.Meta(max_length=128)] = ""


class FetchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /remotes/{name}/snapshots/{id}/fetch. `force`: fetch it even if it could not be resumed here.

    `session_id`: the remote session that lists it; empty: all are searched. `take_over`: fetch it even if another machine runs the session,
    which that machine then loses. `as_copy`: fetch it without the session, to inspect it or branch from it.
    """

    session_id: Annotated[str, msgspec.Meta(max_length=128)] = ""
    force: bool = False
    take_over: bool = False
    as_copy: bool = False
