"""TCP connections that no program holds any more, but that keep a port for a minute (TIME_WAIT, FIN_WAIT_2).

A listener without SO_REUSEADDR that had accepted connections cannot be restored on its port meanwhile, though they were the
frozen program's own. Ending them is what `ss --kill` does: SOCK_DESTROY of sock_diag(7), since Linux 4.5, for root. The layout
of its request is struct inet_diag_req_v2 in include/uapi/linux/inet_diag.h.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_NETLINK_SOCK_DIAG, _SOCK_DESTROY = 4, 21
_NLM_F_REQUEST, _NLM_F_ACK = 1, 4
_FIN_WAIT_1, _FIN_WAIT_2, _TIME_WAIT = "04", "05", "06"
_PATIENCE_SECONDS, _LOOK_SECONDS = 0.3, 0.01
#: Any socket, whatever its cookie (INET_DIAG_NOCOOKIE).
_NO_COOKIE = b"\xff" * 8
_ANSWER_BYTES = 4096


class _Connection(NamedTuple):
    family: int
    local: bytes
    local_port: int
    remote: bytes
    remote_port: int


def end(port: int) -> None:
    """End what lingers on this local port, in our network namespace.

    Waits a moment for connections whose other side has not heard yet that they are closed (a delayed acknowledgement takes up to
    40 ms). Never raises.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        closing = False
        for state, connection in _left(port):
            if state == _FIN_WAIT_1:
                closing = True
                continue
            with suppress(OSError):
                _destroy(connection)
        if not closing or time.monotonic() > deadline:
            return
        time.sleep(_LOOK_SECONDS)


def _left(port: int) -> Iterator[tuple[str, _Connection]]:
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        try:
            lines = Path("/proc/net", name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            # No inode: no program has it any more (man proc_net_tcp).
            if columns[3] in {_FIN_WAIT_1, _FIN_WAIT_2, _TIME_WAIT} and columns[9] == "0":
                local, local_port = _address(columns[1])
                remote, remote_port = _address(columns[2])
                if local_port == port:
                    yield columns[3], _Connection(family, local, port, remote, remote_port)


def _address(text: str) -> tuple[bytes, int]:
    """As /proc has it: words of 32 bits in the machine's order, then the port."""
    address, port = text.split(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    return struct.pack(f"={len(words)}I", *words), int(port, 16)


def _destroy(connection: _Connection) -> None:
    request = struct.pack(
        "=BBBxI", connection.family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF
    ) + struct.pack(
        "!HH16s16sI",
        connection.local_port,
        connection.remote_port,
        connection.local,
        connection.remote,
        0,
    )
    request += _NO_COOKIE
    header = struct.pack(
        "=IHHII", 16 + len(request), _SOCK_DESTROY, _NLM_F_REQUEST | _NLM_F_ACK, 1, 0
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diag:
        diag.sendall(header + request)
        # An error message (NLMSG_ERROR) whose number is 0 is the acknowledgement.
        (number,) = struct.unpack_from("=i", diag.recv(_ANSWER_BYTES), 16)
        if number:
            raise OSError(-number, "SOCK_DESTROY")
