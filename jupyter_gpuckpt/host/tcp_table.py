"""The TCP sockets of a process's network namespace, as Linux lists them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from ..linux.tcp_sockets import in_files, of_this_namespace
from . import processes

#: The first 96 bits, in the table's form, of an IPv4 address that an IPv6 socket uses.
_MAPPED = "0000000000000000FFFF0000"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TcpState(StrEnum):
    """The TCP states used here, as the table writes them (include/net/tcp_states.h)."""

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
        """Return the same endpoint, with a plain IPv4 address if an IPv6 socket uses one."""
        mapped = getattr(self.address, "ipv4_mapped", None)
        return Endpoint(mapped, self.port) if mapped else self

    def __str__(self) -> str:
        address = self.plain.address
        return f"[{address}]:{self.port}" if address.version == 6 else f"{address}:{self.port}"


class Row(NamedTuple):
    """A row of the table: a socket. `inode`: "0" if no program has the socket open.

    The fields are kept as text and parsed on demand: few of very many rows are examined.
    """

    local_text: str
    remote_text: str
    state: str
    inode: str
    queues: str = "0:0"
    uid: str = ""

    @property
    def local(self) -> Endpoint:
        """The socket's own address."""
        return _endpoint(self.local_text)

    @property
    def remote(self) -> Endpoint:
        """The address of the other side."""
        return _endpoint(self.remote_text)

    @property
    def ends(self) -> tuple[str, str]:
        """Both addresses, as equal texts for IPv4 and IPv6 sockets; the other side's socket has them in reverse order."""
        return _plain(self.local_text), _plain(self.remote_text)

    @property
    def unsent(self) -> int:
        """The number of sent bytes that are not acknowledged."""
        return int(self.queues.partition(":")[0], 16)

    @property
    def unread(self) -> int:
        """The number of received bytes that are not read."""
        return int(self.queues.partition(":")[2], 16)


def rows(pid: int | str = "self") -> Iterator[Row]:
    """Yield every TCP socket of the network namespace of a process; none if it cannot be read."""
    folder = processes.PROC / str(pid)
    listed = of_this_namespace() if _is_in_ours(folder) else in_files(folder / "net")
    return (Row(*one) for one in listed)


def _is_in_ours(folder: Path) -> bool:
    with suppress(OSError):
        return Path("/proc/self/ns/net").samefile(folder / "ns/net")
    return False


def _plain(text: str) -> str:
    return text.removeprefix(_MAPPED)


def _endpoint(text: str) -> Endpoint:
    """Parse an address: 32-bit words in the machine's byte order, which is little-endian here."""
    words, _, port = text.partition(":")
    packed = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    return Endpoint(ipaddress.ip_address(packed), int(port, 16))
