"""Established TCP connections of processes (man proc_net_tcp): what a suspend would cut."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from . import processes, tcp_table
from .tcp_table import Row, TcpState

_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Connection(NamedTuple):
    """One end of a connection, as the process `pid` holds it."""

    pid: int
    program: str
    local_port: int
    remote_address: str
    remote_port: int

    def __str__(self) -> str:
        host = f"[{self.remote_address}]" if ":" in self.remote_address else self.remote_address
        return f"{self.program} (process {self.pid}) with {host}:{self.remote_port}"


def established(pids: Collection[int], *, ignored_ports: Collection[int] = ()) -> list[Connection]:
    """The connections that these processes hold, except those from or to an ignored port; each socket once."""
    found: dict[str, Connection] = {}
    for pid in pids:
        inodes = {
            match[1]
            for link in processes.descriptors(pid).values()
            if (match := _SOCKET.fullmatch(link))
        }
        for row in tcp_table.rows(pid) if inodes else ():
            ports = {row.local.port, row.remote.port}
            established = row.state == TcpState.ESTABLISHED and row.inode in inodes
            if established and not ports & set(ignored_ports):
                found.setdefault(row.inode, _connection(pid, row))
    return list(found.values())


def _connection(pid: int, row: Row) -> Connection:
    address, port = row.remote
    mapped = getattr(address, "ipv4_mapped", None)
    name = processes.name(pid) or "?"
    return Connection(pid, name, row.local.port, str(mapped or address), port)
