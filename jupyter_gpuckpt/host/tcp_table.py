"""The TCP sockets of a network namespace, as Linux lists them (man proc_net_tcp)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

from . import processes

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TcpState(StrEnum):
    """States as the table writes them (include/net/tcp_states.h); those that are asked for."""

    ESTABLISHED = "01"
    FIN_WAIT_1 = "04"
    FIN_WAIT_2 = "05"
    TIME_WAIT = "06"


class Endpoint(NamedTuple):
    """One side of a connection."""

    address: Address
    port: int


class Row(NamedTuple):
    """A socket. `inode`: "0" when no program has it any more."""

    local: Endpoint
    remote: Endpoint
    state: str
    inode: str


def rows(pid: int | str = "self") -> Iterator[Row]:
    """Every TCP socket of the network namespace of a process; none where it cannot be read."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (processes.PROC / str(pid) / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                yield Row(_endpoint(fields[1]), _endpoint(fields[2]), fields[3], fields[9])


def _endpoint(text: str) -> Endpoint:
    """An address is written as 32-bit words in the machine's byte order, which is little-endian here."""
    words, _, port = text.partition(":")
    packed = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    return Endpoint(ipaddress.ip_address(packed), int(port, 16))
