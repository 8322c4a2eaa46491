"""Transfer of the options and buffer sizes of a TCP socket to another socket that replaces it.

The numbers are those of include/uapi/asm-generic/socket.h, linux/tcp.h, linux/in.h and linux/in6.h. Options that only report
events, or that Linux itself changes all the time, are left out.
"""

from __future__ import annotations

import fcntl
import logging
import select
import socket
import struct
import termios
from collections.abc import Callable, Iterable
from contextlib import suppress

from ...wire.manifest_records import SocketOption

logger = logging.getLogger(__name__)

#: Options of an IP socket (include/uapi/linux/in.h).
_BIND_NO_PORT, _LOCAL_PORT_RANGE = 24, 51

_SOL_SOCKET, _IPPROTO_IP, _IPPROTO_TCP, _IPPROTO_IPV6 = 1, 0, 6, 41
#: DONTROUTE, BROADCAST, KEEPALIVE, OOBINLINE, PRIORITY, LINGER, RCVLOWAT, RCVTIMEO, SNDTIMEO, BINDTODEVICE, TIMESTAMP,
#: TIMESTAMPNS, MARK, TIMESTAMPING, RXQ_OVFL, SELECT_ERR_QUEUE, BUSY_POLL, MAX_PACING_RATE, ZEROCOPY, PREFER_BUSY_POLL,
#: BUSY_POLL_BUDGET, TXREHASH, RCVMARK.
_OF_SOCKET = (
    5,
    6,
    9,
    10,
    12,
    13,
    18,
    20,
    21,
    25,
    29,
    35,
    36,
    37,
    40,
    45,
    46,
    47,
    60,
    69,
    70,
    74,
    75,
)
#: NODELAY, CORK, KEEPIDLE, KEEPINTVL, KEEPCNT, SYNCNT, LINGER2, CONGESTION, THIN_LINEAR_TIMEOUTS, USER_TIMEOUT,
#: NOTSENT_LOWAT, INQ, TX_DELAY.
_OF_TCP = (1, 3, 4, 5, 6, 7, 8, 13, 16, 18, 25, 36, 37)
#: TOS, TTL, PKTINFO, MTU_DISCOVER, RECVERR, RECVTTL, RECVTOS, MINTTL.
_OF_IP = (1, 2, 8, 10, 11, 12, 13, 21)
#: UNICAST_HOPS, MTU_DISCOVER, RECVERR, RECVPKTINFO, RECVHOPLIMIT, RECVTCLASS, TCLASS.
_OF_IPV6 = (16, 23, 25, 49, 51, 66, 67)
_VALUE_BYTES = 64

#: Options that decide which sockets may share a port; they are set apart, because making connections changes them.
_SHARING = ((_SOL_SOCKET, socket.SO_REUSEADDR), (_SOL_SOCKET, socket.SO_REUSEPORT))
_BUFFERS = ((_SOL_SOCKET, socket.SO_SNDBUF), (_SOL_SOCKET, socket.SO_RCVBUF))
#: SO_BUF_LOCK (Linux 5.14): bits for those of the two buffer sizes that the program has set; Linux adapts the others.
_CHOSEN = (_SOL_SOCKET, 72)
_SENDING, _RECEIVING = 1, 2
#: TCP_WINDOW_CLAMP: the largest window that is offered to the sender.
_OFFERED = (_IPPROTO_TCP, 10)
#: The largest buffer that is set: without a limit, that of a program that never reads would grow at every resume.
_MAX_BUFFER_BYTES = 64 << 20
_SO_RCVBUFFORCE = 33


def read(end: socket.socket) -> list[SocketOption]:
    """Return the options of a socket that this Linux supports."""
    # The order matters when they are set: setting the type of service also sets the priority.
    levels = [(_IPPROTO_IP, _OF_IP), (_IPPROTO_TCP, _OF_TCP), (_SOL_SOCKET, _OF_SOCKET)]
    if end.family == socket.AF_INET6:
        levels.insert(0, (_IPPROTO_IPV6, _OF_IPV6))
    wanted = [*_SHARING, *_BUFFERS, _CHOSEN]
    wanted += [(level, name) for level, names in levels for name in names]
    found = []
    for level, name in wanted:
        with suppress(OSError):
            value = end.getsockopt(level, name, _VALUE_BYTES)
            found.append(SocketOption(level, name, value))
    return found


def apply(options: Iterable[SocketOption], end: socket.socket) -> None:
    """Set these options on a socket, except those that `share` sets. An option that cannot be set is logged."""
    choose_sizes(options, end)
    for option in options:
        key = (option.level, option.name)
        if key not in _SHARING and key not in _BUFFERS and key != _CHOSEN:
            _set(end, *key, option.value)


def choose_sizes(options: Iterable[SocketOption], end: socket.socket) -> None:
    """Set the sizes of those buffers for which the program had chosen one, and leave the others to Linux."""
    given = {(option.level, option.name): _number(option.value) for option in options}
    chosen = given.get(_CHOSEN, 0)
    for bit, key in zip((_SENDING, _RECEIVING), _BUFFERS, strict=True):
        size = given.get(key, 0)
        # Linux doubles the size that is set, and reports the doubled one.
        if chosen & bit and end.getsockopt(*key) != size:
            _set(end, *key, struct.pack("=i", size // 2))
    _set(end, *_CHOSEN, struct.pack("=i", chosen))


def share(options: Iterable[SocketOption], end: socket.socket) -> None:
    """Set the options of a socket that decide which sockets may share its port."""
    for option in options:
        if (option.level, option.name) in _SHARING:
            _set(end, option.level, option.name, option.value)


def widen(end: socket.socket, length: int, note: Callable[[int], None] = lambda mark: None) -> None:
    """Make room for `length` more incoming bytes, as far as the system's limits and our rights allow.

    The room is generous, because bytes that find none are sent again much later. If this process dies meanwhile, the buffer stays
    larger. Without the right to set the size, this raises SO_RCVLOWAT for a moment, which enlarges the buffer as well. Its former
    value is passed to `note` first, so that recovery can restore it.
    """
    try:
        chosen = end.getsockopt(*_CHOSEN)
    except OSError:  # without SO_BUF_LOCK, Linux could not take over the size again later
        return
    wanted = min(2 * (count(end, termios.FIONREAD) + length), _MAX_BUFFER_BYTES // 2)
    with suppress(PermissionError):
        # Linux doubles the size that is set.
        if 2 * wanted > end.getsockopt(*_BUFFERS[1]):
            end.setsockopt(_SOL_SOCKET, _SO_RCVBUFFORCE, wanted)
            end.setsockopt(*_CHOSEN, chosen)
        # The window clamp must allow all free room of the buffer to be offered to the sender.
        if end.getsockopt(*_OFFERED) < wanted:
            end.setsockopt(*_OFFERED, wanted)
        return
    # Linux enlarges a buffer that it sizes itself when SO_RCVLOWAT asks for that many bytes.
    mark = end.getsockopt(_SOL_SOCKET, socket.SO_RCVLOWAT)
    note(mark)
    end.setsockopt(*_CHOSEN, chosen & ~_RECEIVING)
    end.setsockopt(_SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
    end.setsockopt(_SOL_SOCKET, socket.SO_RCVLOWAT, mark)
    end.setsockopt(*_CHOSEN, chosen)


def count(end: socket.socket, request: int) -> int:
    """Return the bytes in a queue (man 7 tcp: FIONREAD, TIOCOUTQ)."""
    (number,) = struct.unpack("=i", fcntl.ioctl(end, request, bytes(4)))
    return int(number)


def unsent(end: socket.socket) -> int:
    """Return how many sent bytes have not been acknowledged yet."""
    return count(end, termios.TIOCOUTQ)


def is_readable(end: socket.socket) -> bool:
    """Return whether a read, or the acceptance of a connection, would not wait."""
    return bool(events(end, select.POLLIN))


def has_urgent_data(end: socket.socket) -> bool:
    """Return whether a byte of urgent data was not read (MSG_OOB)."""
    return bool(events(end, select.POLLPRI) & select.POLLPRI)


def events(end: socket.socket, wanted: int) -> int:
    """Return which events a socket has now (man poll): the wanted ones, an error, the end."""
    poll = select.poll()
    poll.register(end, wanted)
    return next((found for _, found in poll.poll(0)), 0)


def end_at_once(end: socket.socket) -> None:
    """Make the last `close` of a socket reset its connection, so that it does not keep a port busy."""
    with suppress(OSError):
        end.setsockopt(_SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))


def choose_port_later(end: socket.socket, port: int) -> None:
    """Let `connect` bind a socket to this local port (0: any) if no other connection has both addresses. Raises OSError.

    `bind` refuses a port that is in use, even by a connection that has ended (TIME_WAIT). Linux 6.3 and newer have the option.
    """
    end.setsockopt(_IPPROTO_IP, _LOCAL_PORT_RANGE, struct.pack("=I", port << 16 | port))
    end.setsockopt(_IPPROTO_IP, _BIND_NO_PORT, int(port != 0))


def _number(value: bytes) -> int:
    return int.from_bytes(value, "little", signed=True)


def _set(end: socket.socket, level: int, name: int, value: bytes) -> None:
    try:
        if end.getsockopt(level, name, _VALUE_BYTES) != value:
            end.setsockopt(level, name, value)
    except OSError as error:
        logger.warning("a socket has lost its option %d of level %d: %s", name, level, error)
