"""Established TCP connections of processes (man proc_net_tcp): what a suspend would cut."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

from . import processes

_ESTABLISHED = "01"
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
        for inode, local_port, address, remote_port in _table(pid) if inodes else ():
            if inode in inodes and not {local_port, remote_port} & set(ignored_ports):
                found.setdefault(
                    inode,
                    Connection(pid, processes.name(pid) or "?", local_port, address, remote_port),
                )
    return list(found.values())


def _table(pid: int) -> Iterator[tuple[str, int, str, int]]:
    """(inode, local port, remote address, remote port) of every established connection of its network namespace."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (processes.PROC / str(pid) / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _ESTABLISHED:
                    local, remote = fields[1], fields[2]
                    address, port = _endpoint(remote)
                    yield fields[9], _endpoint(local)[1], address, port


def _endpoint(text: str) -> tuple[str, int]:
    """An address is written as 32-bit words in the machine's byte order, which is little-endian here."""
    words, _, port = text.partition(":")
    packed = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    address = ipaddress.ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), int(port, 16)
