"""What the daemon and its clients say to each other about snapshots in remotes: part of the protocol (`protocol.py` has the rest).

Nothing here holds a key, a credential or where one comes from.
"""

from __future__ import annotations

from typing import Annotated

import msgspec


class RemoteState(msgspec.Struct, frozen=True):
    """GET /remotes: a remote as it was when it was last tried. With `refusals` it cannot be used; `warnings`: what is given up."""

    name: str
    url: str
    #: Seconds since the epoch; 0: never.
    tried_at: float = 0.0
    refusals: list[str] = []
    warnings: list[str] = []


class ListedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot that a remote lists. `here`: the local store has it, too, maybe deleted for as long as that can be undone."""

    snapshot_id: str
    kernel_id: str
    #: Seconds since the epoch.
    created: float
    title: str = ""
    raw_bytes: int = 0
    stored_bytes: int = 0
    here: bool = False


class ListedSession(msgspec.Struct, frozen=True):
    """A far session: whose notebook it is, and its snapshots, newest first. `path`: relative to the root of its server."""

    session_id: str
    host_name: str = ""
    hub_user: str = ""
    server_name: str = ""
    path: str = ""
    title: str = ""
    snapshots: list[ListedSnapshot] = []


class FarListing(msgspec.Struct, frozen=True):
    """GET /remotes/{name}/sessions. `unreadable`: why sessions that are there are not listed, a sentence each."""

    remote: str
    sessions: list[ListedSession] = []
    unreadable: list[str] = []


class FetchEstimate(msgspec.Struct, frozen=True):
    """GET /remotes/{name}/snapshots/{id}: what a fetch would move, and whether the kernel could be resumed here.

    `obstacles`: what keeps it from that, a sentence each, and `hint`: what would help. `warnings`: what may.
    """

    session: ListedSession
    snapshot: ListedSnapshot
    #: Compressed, as they lie in the remote; about as many as will be moved.
    move_bytes: int
    #: Compressed bytes of the snapshot that the local store has already.
    here_bytes: int
    obstacles: list[str] = []
    warnings: list[str] = []
    hint: str = ""


class FetchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /remotes/{name}/snapshots/{id}/fetch. `force`: although it could not be resumed here.

    `session_id`: of the far session that lists it; empty: it is looked for in all of them.
    """

    session_id: Annotated[str, msgspec.Meta(max_length=128)] = ""
    force: bool = False
