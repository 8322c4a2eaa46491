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
    CLOSE = "07"
    CLOSE_WAIT = "08"
    LISTEN = "0A"


class Endpoint(NamedTuple):
    """One side of a connection."""

    address: Address
    port: int

    @property
    def plain(self) -> Endpoint:
        """The same, with an IPv4 address where it is one that an IPv6 socket sees."""
        mapped = getattr(self.address, "ipv4_mapped", None)
        return Endpoint(mapped, self.port) if mapped else self

    def __str__(self) -> str:
        address = self.plain.address
        return f"[{address}]:{self.port}" if address.version == 6 else f"{address}:{self.port}"


class Row(NamedTuple):
    """A socket. `inode`: "0" when no program has it any more, or not yet.

    `unsent` and `unread` are bytes: those whose arrival is not acknowledged, and those that arrived and nobody has read.
    """

    local: Endpoint
    remote: Endpoint
    state: str
    inode: str
    unsent: int
    unread: int


def rows(pid: int | str = "self") -> Iterator[Row]:
    """Every TCP socket of the network namespace of a process; none where it cannot be read."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (processes.PROC / str(pid) / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                unsent, _, unread = fields[4].partition(":")
                yield Row(
                    _endpoint(fields[1]),
                    _endpoint(fields[2]),
                    fields[3],
                    fields[9],
                    int(unsent, 16),
                    int(unread, 16),
                )


def _endpoint(text: str) -> Endpoint:
    """An address is written as 32-bit words in the machine's byte order, which is little-endian here."""
    words, _, port = text.partition(":")
    packed = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    return Endpoint(ipaddress.ip_address(packed), int(port, 16))
