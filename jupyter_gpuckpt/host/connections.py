"""The TCP connections of a process tree (man proc_net_tcp): those within it, and those with other programs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from . import processes, tcp_table
from .tcp_table import Row, TcpState

_SOCKET = re.compile(r"socket:\[(\d+)\]")
#: States of open connections; in other states a connection is being opened, or both sides have ended it.
_OPEN = frozenset(
    {TcpState.ESTABLISHED, TcpState.FIN_WAIT_1, TcpState.FIN_WAIT_2, TcpState.CLOSE_WAIT}
)
_CLOSED_BY_ITSELF = frozenset({TcpState.FIN_WAIT_1, TcpState.FIN_WAIT_2, TcpState.TIME_WAIT})
_WITHOUT_PROGRAM = "0"
_NOWHERE = "00000000:0000"


class End(NamedTuple):
    """One end of a connection; the process `pid` has it open."""

    pid: int
    program: str
    descriptor: int
    row: Row

    def __str__(self) -> str:
        return f"{self.program} (process {self.pid}) with {self.row.remote}"


class Inner(NamedTuple):
    """A connection of which no program outside the tree has an end.

    It has one end only in two cases: the other end was closed by its program, or a listener of the tree has not accepted the
    connection yet (one of `listeners`, which share its port by SO_REUSEPORT).
    """

    ends: tuple[End, ...]
    listeners: tuple[End, ...] = ()

    @property
    def waiting(self) -> bool:
        """Whether the connection has not been accepted yet."""
        return bool(self.listeners)

    def __str__(self) -> str:
        return str(self.ends[0])


class Survey(NamedTuple):
    """The open connections of a tree. `outer`: those with other programs, also those that the tree has not accepted yet.

    `unlisted`: sockets that are in none of Linux's lists; some belong to connections that both sides have ended.
    """

    inner: list[Inner]
    outer: list[End]
    unlisted: list[End]


def survey(pids: Collection[int]) -> Survey:
    """Look up the connections of these processes, each once; all processes must be in one network namespace."""
    held = _held(pids)
    if not held:
        return Survey([], [], [])
    rows = _rows(pids)
    by_ends = {row.ends: row for row in rows}
    listeners = _listening(held, rows)
    inner, outer, seen = list[Inner](), list[End](), set[str]()
    for row in rows:
        if row.state not in _OPEN or row.inode in seen:
            continue
        other = by_ends.get(row.ends[::-1])
        if row.inode not in held:
            client_is_outside = other is None or other.inode not in held
            if client_is_outside and (theirs := _listeners_of(row, listeners)):
                outer.append(theirs[0]._replace(row=row))
            continue
        end = End(*held[row.inode], row)
        if other is not None and other.inode in held and other.inode != row.inode:
            seen.add(other.inode)
            inner.append(Inner((end, End(*held[other.inode], other))))
        elif other is not None and (theirs := _listeners_of(other, listeners)):
            inner.append(Inner((end,), theirs))
        elif _is_left(row, other):
            inner.append(Inner((end,)))
        elif row.state == TcpState.ESTABLISHED:
            outer.append(end)
    listed = {row.inode for row in rows} | _listed_elsewhere(pids)
    unlisted = [
        End(*where, Row(_NOWHERE, _NOWHERE, TcpState.CLOSE, inode))
        for inode, where in held.items()
        if inode not in listed
    ]
    return Survey(inner, outer, unlisted)


def listeners(pids: Collection[int]) -> list[End]:
    """Return the listening sockets of these processes, each once; all processes must be in one network namespace."""
    held = _held(pids)
    return _listening(held, _rows(pids)) if held else []


def _listening(held: Mapping[str, tuple[int, str, int]], rows: Iterable[Row]) -> list[End]:
    return [
        End(*held[row.inode], row)
        for row in rows
        if row.state == TcpState.LISTEN and row.inode in held
    ]


def both_ends(end: End, pids: Iterable[int]) -> tuple[Row | None, Row | None]:
    """Return the current rows of a connection's two ends; None for an end that is gone."""
    found = {row.ends: row for row in _rows(pids)}
    return found.get(end.row.ends), found.get(end.row.ends[::-1])


def _rows(pids: Iterable[int]) -> list[Row]:
    return next((found for pid in pids if (found := list(tcp_table.rows(pid)))), [])


def _held(pids: Iterable[int]) -> dict[str, tuple[int, str, int]]:
    """Return for every socket, by inode: the pid, the process's name and the descriptor."""
    found: dict[str, tuple[int, str, int]] = {}
    for pid in pids:
        name = processes.name(pid) or "?"
        for descriptor, link in processes.descriptors(pid).items():
            if match := _SOCKET.fullmatch(link):
                found.setdefault(match[1], (pid, name, descriptor))
    return found


def _listed_elsewhere(pids: Iterable[int]) -> set[str]:
    """Return the inodes of sockets that are listed elsewhere: unix sockets (man 7 unix)."""
    for pid in pids:
        with suppress(OSError):
            lines = (processes.PROC / str(pid) / "net" / "unix").read_text(errors="replace")
            return {line.split()[6] for line in lines.splitlines()[1:]}
    return set()


def is_stuck(waiting: Row) -> bool:
    """Return whether bytes wait at an end that was not accepted yet, so that no program can read them."""
    return waiting.unread > (waiting.state == TcpState.CLOSE_WAIT)


def _listeners_of(row: Row, listeners: Iterable[End]) -> tuple[End, ...]:
    """Return the listeners of which one has a connection in its queue that no program has accepted; none if it is in no queue."""
    if row.inode != _WITHOUT_PROGRAM:
        return ()
    if row.state not in {TcpState.ESTABLISHED, TcpState.CLOSE_WAIT}:
        return ()
    own = row.local.plain
    places = [(listener, listener.row.local.plain) for listener in listeners]
    return tuple(
        listener
        for listener, place in places
        if place.port == own.port and (place.address.is_unspecified or place.address == own.address)
    )


def _is_left(row: Row, other: Row | None) -> bool:
    """Return whether the other end was closed by a program of this machine."""
    if other is not None:
        return other.inode == _WITHOUT_PROGRAM and other.state in _CLOSED_BY_ITSELF
    local, remote = row.local.plain.address, row.remote.plain.address
    return row.state == TcpState.CLOSE_WAIT and (remote.is_loopback or remote == local)
