"""The command `jupyter gpuckpt hub-report`: what the users of a JupyterHub hold in suspended sessions, by the hub's records.

The hub's spawner records the numbers every few minutes and at the stop of each server. No snapshot is read and no user's server is asked.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from ..errors import ConfigurationError, HostError
from ..wire import decoding
from ..wire.hub_records import SpawnerState
from . import printing
from .parser import Parser

SUMMARY = "list what the users of a JupyterHub hold in suspended sessions"
DESCRIPTION = (
    "For administrators: the number and size of each user's suspended sessions, and the disk use of the snapshots. The hub records the"
    " numbers every few minutes and when it stops a server. The environment variable JUPYTERHUB_API_TOKEN is a token with the scopes"
    " list:users, read:servers and admin:server_state."
)
_HUB_URL = "http://127.0.0.1:8081/hub/api"
_TIMEOUT_SECONDS, _PAGE = 30.0, 200
_NUMBERS = frozenset({"SESSIONS", "MEMORY", "GPU", "DISK"})


class _Server(msgspec.Struct, frozen=True):
    """A server in the hub's answer. `state`: None if the token does not give access to it."""

    name: str = ""
    stopped: bool = False
    state: dict[str, Any] | None = None


class _User(msgspec.Struct, frozen=True):
    """A user in the hub's answer."""

    name: str
    servers: dict[str, _Server] = {}


class _Next(msgspec.Struct, frozen=True):
    offset: int


class _Pagination(msgspec.Struct, frozen=True):
    next: _Next | None = None


class _Users(msgspec.Struct, frozen=True):
    """A page of the hub's users."""

    items: list[_User]
    pagination: _Pagination = msgspec.field(name="_pagination", default=_Pagination())


class Holding(NamedTuple):
    """What a user's server holds. `at`: when its numbers were recorded (seconds since the epoch); 0: they were not.

    `limit_bytes`: the administrator's limit of the disk use; 0: none.
    """

    user: str
    server: str
    running: bool
    sessions: int
    memory_bytes: int
    gpu_bytes: int
    disk_bytes: int
    at: float
    limit_bytes: int = 0


def add_arguments(to: Parser) -> None:
    """Add the arguments of the command."""
    to.add_argument(
        "--hub-url",
        metavar="URL",
        default=os.environ.get("JUPYTERHUB_API_URL", _HUB_URL),
        help=f"the hub's API (default: JUPYTERHUB_API_URL, else {_HUB_URL})",
    )


def run(args: argparse.Namespace) -> int:
    """Print a line for each server that holds something, the largest first, and their sums."""
    token = os.environ.get("JUPYTERHUB_API_TOKEN", "")
    if not token:
        raise ConfigurationError(
            "There is no token for the hub.",
            hint="Set JUPYTERHUB_API_TOKEN to a token with the scopes list:users, read:servers and admin:server_state.",
        )
    users = list(_users(args.hub_url, token))
    servers = [server for user in users for server in user.servers.values()]
    if servers and all(server.state is None for server in servers):
        printing.warn("The token has no scope admin:server_state, so nothing is known of sessions.")
    held = holdings(users)
    text = _table(held) if held else "No server holds suspended sessions or snapshots."
    printing.result({"servers": [one._asdict() for one in held]}, text, as_json=args.json)
    return 0


def holdings(users: list[_User]) -> list[Holding]:
    """Return what servers hold, the largest memory first."""
    held = []
    for user in users:
        for server in user.servers.values():
            state = SpawnerState.from_state(server.state or {})
            waiting = state.waiting + state.set_aside
            if not (waiting.count or state.usage.at):
                continue
            held.append(
                Holding(
                    user.name,
                    server.name,
                    not server.stopped,
                    waiting.count,
                    max(0, waiting.size_bytes - waiting.gpu_bytes),
                    waiting.gpu_bytes,
                    state.usage.disk_bytes,
                    state.usage.at,
                    state.usage.limit_bytes,
                )
            )
    return sorted(held, key=lambda one: (-one.memory_bytes - one.gpu_bytes, one.user, one.server))


def _users(hub_url: str, token: str) -> Iterator[_User]:
    """Yield the hub's users with their servers, page by page. Raises ConfigurationError, HostError."""
    from ..client.quick_httpx import httpx  # noqa: PLC0415 - an HTTP library, too slow for --help

    headers = {
        "Authorization": f"token {token}",
        "Accept": "application/jupyterhub-pagination+json",
    }
    offset = 0
    url = f"{hub_url.rstrip('/')}/users"
    # A proxy of the environment would see the token.
    with httpx.Client(timeout=_TIMEOUT_SECONDS, headers=headers, trust_env=False) as http:
        while True:
            try:
                response = http.get(
                    url, params={"include_stopped_servers": "1", "limit": _PAGE, "offset": offset}
                )
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise HostError(
                    f"The hub cannot be reached at {hub_url}: {error}",
                    hint="Give the address of its API with --hub-url.",
                ) from error
            if response.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
                raise ConfigurationError(
                    "The hub does not accept the token of JUPYTERHUB_API_TOKEN.",
                    hint="It needs the scopes list:users, read:servers and admin:server_state.",
                )
            try:
                page = decoding.from_json(response.content, _Users)
            except msgspec.DecodeError as error:
                raise HostError(
                    f"The answer of {url} (status {response.status_code}) is not a list of users.",
                    hint="Give the address of the hub's API with --hub-url; it ends in /hub/api.",
                ) from error
            yield from page.items
            following = page.pagination.next
            if following is None or following.offset <= offset:
                return
            offset = following.offset


def _table(held: list[Holding]) -> str:
    heads = ("USER", "SERVER", "STATE", "SESSIONS", "MEMORY", "GPU", "DISK", "AS OF")
    now = time.time()
    rows = [
        [
            *(one.user, one.server or "-", "running" if one.running else "stopped"),
            *_cells(one),
            printing.age(now - one.at) if one.at else "-",
        ]
        for one in held
    ]
    total = Holding(
        user="total",
        server="",
        running=False,
        sessions=sum(one.sessions for one in held),
        memory_bytes=sum(one.memory_bytes for one in held),
        gpu_bytes=sum(one.gpu_bytes for one in held),
        disk_bytes=sum(one.disk_bytes for one in held),
        at=0.0,
    )
    return printing.table(heads, [*rows, [total.user, "", "", *_cells(total), ""]], right=_NUMBERS)


def _cells(one: Holding) -> list[str]:
    memory, gpu, disk = map(printing.size, (one.memory_bytes, one.gpu_bytes, one.disk_bytes))
    if one.limit_bytes:
        disk += f" of {printing.size(one.limit_bytes)}"
    return [str(one.sessions), memory, gpu, disk]
