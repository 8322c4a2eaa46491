"""The TCP sockets of a network namespace, as Linux lists them (man proc_net_tcp)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

from . import processes

#: How the table writes the first 96 bits of an IPv4 address that an IPv6 socket sees.
_MAPPED = "0000000000000000FFFF0000"

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

    Kept as the table has it: there may be very many, of which few are looked at.
    """

    local_text: str
    remote_text: str
    state: str
    inode: str
    queues: str = "0:0"

    @property
    def local(self) -> Endpoint:
        """Its own side."""
        return _endpoint(self.local_text)

    @property
    def remote(self) -> Endpoint:
        """The other side."""
        return _endpoint(self.remote_text)

    @property
    def ends(self) -> tuple[str, str]:
        """Both sides, the same text for the same address whatever kind of socket sees it; the other socket has them reversed."""
        return _plain(self.local_text), _plain(self.remote_text)

    @property
    def unsent(self) -> int:
        """The bytes whose arrival is not acknowledged."""
        return int(self.queues.partition(":")[0], 16)

    @property
    def unread(self) -> int:
        """The bytes that arrived and that nobody has read."""
        return int(self.queues.partition(":")[2], 16)


def rows(pid: int | str = "self") -> Iterator[Row]:
    """Every TCP socket of the network namespace of a process; none where it cannot be read."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (processes.PROC / str(pid) / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                yield Row(fields[1], fields[2], fields[3], fields[9], fields[4])


def _plain(text: str) -> str:
    return text.removeprefix(_MAPPED)


def _endpoint(text: str) -> Endpoint:
    """An address is written as 32-bit words in the machine's byte order, which is little-endian here."""
    words, _, port = text.partition(":")
    packed = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    return Endpoint(ipaddress.ip_address(packed), int(port, 16))
