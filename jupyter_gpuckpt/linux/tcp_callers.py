"""The user of the program at the other end of a TCP connection of this machine."""

from __future__ import annotations

import ipaddress

from . import tcp_sockets

_ESTABLISHED = "01"
_Address = tuple[str, int]


def uid_of_caller(caller: _Address, own: _Address) -> int | None:
    """Return the user id of the program that called from the address `caller` to our address `own`; None if it cannot be known.

    It cannot be known of a caller on another machine or in another network namespace, and of one that has closed its socket: Linux then
    tells root's id.
    """
    try:
        local, remote = _hexadecimal(caller), _hexadecimal(own)
    except ValueError:
        return None
    for one in tcp_sockets.of_this_namespace():
        if (one.local, one.remote, one.state) == (local, remote, _ESTABLISHED):
            return int(one.uid) if one.inode != "0" else None
    return None


def _hexadecimal(address: _Address) -> str:
    """Return an address as the table has it: each word of four bytes in the machine's order, which is little-endian."""
    packed = ipaddress.ip_address(address[0]).packed
    words = (packed[start : start + 4][::-1] for start in range(0, len(packed), 4))
    return f"{b''.join(words).hex().upper()}:{address[1]:04X}"
