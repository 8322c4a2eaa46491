"""TCP connections that no program has open any more, but that keep a port for a minute (TIME_WAIT, FIN_WAIT_2).

A listener without SO_REUSEADDR that had accepted such connections cannot be restored on its port in that minute. The connections are
ended as `ss --kill` does it: by SOCK_DESTROY of sock_diag(7), since Linux 4.5, for root. The layout of its request is
struct inet_diag_req_v2 in include/uapi/linux/inet_diag.h.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import suppress

from . import tcp_table
from .tcp_table import Row, TcpState

_NETLINK_SOCK_DIAG, _SOCK_DESTROY = 4, 21
_NLM_F_REQUEST, _NLM_F_ACK = 1, 4
_ENDING = frozenset({TcpState.FIN_WAIT_1, TcpState.FIN_WAIT_2, TcpState.TIME_WAIT})
_PATIENCE_SECONDS, _LOOK_SECONDS = 0.3, 0.01
#: Matches any socket, whatever its cookie (INET_DIAG_NOCOOKIE).
_NO_COOKIE = b"\xff" * 8
_ANSWER_BYTES = 4096


def remove(ports: Collection[int]) -> None:
    """Remove ended connections from these local ports, in this process's network namespace; never raises.

    This waits a moment for connections whose other side has not acknowledged the close yet (a delayed acknowledgement takes up to
    40 ms).
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while ports:
        closing = False
        for row in _left(ports):
            if row.state == TcpState.FIN_WAIT_1:
                closing = True
                continue
            with suppress(OSError):
                _destroy(row)
        if not closing or time.monotonic() > deadline:
            return
        time.sleep(_LOOK_SECONDS)


def _left(ports: Collection[int]) -> Iterator[Row]:
    for row in tcp_table.rows():
        # Inode 0: no program has the socket open.
        if row.state in _ENDING and row.inode == "0" and row.local.port in ports:
            yield row


def _destroy(row: Row) -> None:
    family = socket.AF_INET if row.local.address.version == 4 else socket.AF_INET6
    request = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + struct.pack(
        "!HH16s16sI",
        row.local.port,
        row.remote.port,
        row.local.address.packed,
        row.remote.address.packed,
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
