"""Facts of sockets, read from duplicated descriptors: every option that Linux knows, memberships, waiting data.

The numbers are those of include/uapi/asm-generic/socket.h and linux/in.h, in6.h, tcp.h, udp.h, netlink.h, if_packet.h.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from .fact_records import Values

_SOCKET, _IP, _TCP, _UDP, _IPV6, _RAW, _PACKET, _NETLINK, _CAN = 1, 0, 6, 17, 41, 255, 263, 270, 101
_VALUE_BYTES = 64
#: Options that are not read, because reading changes something (an error, a saved SYN, a new descriptor, a socket under repair),
#: because they are secret, or because they tell about the machine, the peer or the traffic.
_NOT_READ = {
    # ERROR, PEERCRED, filters, PEERNAME, PEERSEC, INCOMING_CPU, MEMINFO, INCOMING_NAPI_ID, COOKIE, PEERGROUPS, NETNS_COOKIE,
    # PEERPIDFD, devmem.
    _SOCKET: {4, 17, 26, 27, 28, 50, 51, 52, 31, 49, 55, 56, 57, 59, 71, 77, 78, 79, 80},
    # MTU, the path's; IP_OPTIONS of iptables begin at 64.
    _IP: {9, 14, 41, 48},
    # MTU, PKTOPTIONS, group filters.
    _IPV6: {2, 3, 4, 5, 6, 8, 24, 48, 54, 61},
    # WINDOW_CLAMP, INFO, QUICKACK, MD5SIG, everything of TCP_REPAIR, TIMESTAMP, CC_INFO, SAVED_SYN, FASTOPEN_KEY,
    # ZEROCOPY_RECEIVE, MD5SIG_EXT, authentication.
    _TCP: {10, 11, 12, 14, 19, 20, 21, 22, 24, 26, 28, 29, 32, 33, 35, *range(38, 44)},
    # STATISTICS, which reading sets to zero, ROLLOVER_STATS.
    _PACKET: {6, 21},
}
#: Multicast options of an accepted connection are what its peer had sent, and have no effect.
_OF_PEER = {(_IP, 32), (_IP, 33), (_IP, 34), (_IP, 49), *((_IPV6, n) for n in (17, 18, 19, 29))}
_LAST = {_SOCKET: 85, _IP: 51, _IPV6: 80, _TCP: 46, _RAW: 1, _PACKET: 25, _NETLINK: 12, _CAN: 7}
_UDP_OPTIONS = (1, 100, 101, 102, 103, 104)
#: SO_SNDBUF and SO_RCVBUF, and the bits of SO_BUF_LOCK that say whether the program has chosen them; Linux adapts the others.
_BUFFERS = {7: 1, 8: 2}
_BUF_LOCK = 72
_LINGER_OFF = bytes(4)
#: MCAST_JOIN_GROUP, MCAST_MSFILTER; `struct group_filter` up to its first source, `struct group_req`.
_JOIN_GROUP, _GROUP_FILTER = 42, 48
_FILTER = struct.Struct("=I4x128sII")
_REQUEST = struct.Struct("=I4x128s")
_SOURCE_BYTES, _MOST_SOURCES = 128, 64
_EVERY_HOST = {"224.0.0.1", "ff02::1", "ff01::1"}


def of_socket(end: socket.socket) -> Values:
    """Return the facts of a socket."""
    found = {"socket": f"{end.family:d} {end.type:d} {end.proto:d}"}
    for fact, address in (("local", end.getsockname), ("remote", end.getpeername)):
        with suppress(OSError):
            found[fact] = _name(address())
    if end.proto == socket.IPPROTO_TCP and end.family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            found["state"] = str(end.getsockopt(_TCP, socket.TCP_INFO, 1)[0])
    locked = 0
    with suppress(OSError):
        locked = end.getsockopt(_SOCKET, _BUF_LOCK)
    for (level, option), default in known_options(end.family, end.type, end.proto).items():
        if level == _SOCKET and option in _BUFFERS and not locked & _BUFFERS[option]:
            continue
        # There are eighty of them a socket, and `suppress` takes as long as the call.
        try:
            value = end.getsockopt(level, option, _VALUE_BYTES)
        except OSError:
            continue
        if value != default:
            found[f"option {level} {option}"] = value.hex()
    if end.type in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        found.update(_memberships(end))
    return found


@cache
def known_options(family: int, kind: int, protocol: int) -> dict[tuple[int, int], bytes]:
    """Return the options that this Linux has for such sockets, by level and number, with the values of a new socket.

    They depend on Linux's version and on the machine's settings, so only other values are facts.
    """
    by_family: dict[int, list[int]] = {
        socket.AF_INET: [_IP],
        socket.AF_INET6: [_IPV6, _IP],
        socket.AF_NETLINK: [_NETLINK],
        socket.AF_PACKET: [_PACKET],
        socket.AF_CAN: [_CAN],
    }
    levels = list(by_family.get(family, []))
    if family in (socket.AF_INET, socket.AF_INET6):
        by_kind: dict[int, int] = {
            socket.SOCK_STREAM: _TCP,
            socket.SOCK_DGRAM: _UDP,
            socket.SOCK_RAW: _RAW,
        }
        levels += [by_kind[kind]] if kind in by_kind else []
    wanted = []
    # The order matters when they are set: setting the type of service also sets the priority.
    for level in [*levels, _SOCKET]:
        numbers = _UDP_OPTIONS if level == _UDP else range(1, _LAST[level] + 1)
        wanted += [(level, n) for n in numbers if n not in _NOT_READ.get(level, ())]
    if kind == socket.SOCK_STREAM:
        wanted = [option for option in wanted if option not in _OF_PEER]
    try:
        fresh = socket.socket(family, kind, protocol)
    except OSError:  # it takes a right that we lack
        return dict.fromkeys(wanted, b"")
    known = {}
    with fresh:
        for level, number in wanted:
            try:
                known[level, number] = fresh.getsockopt(level, number, _VALUE_BYTES)
            except OSError as error:
                if error.errno not in (errno.ENOPROTOOPT, errno.EOPNOTSUPP):
                    known[level, number] = b""
    return known


def set_of_socket(end: socket.socket, fact: str, value: str) -> bool:
    """Set a fact of a socket again; return whether it can be set. Raises OSError, ValueError."""
    kind, _, rest = fact.partition(" ")
    if kind == "option":
        level, option = map(int, rest.split())
        known = known_options(end.family, end.type, end.proto)
        if (
            level,
            option,
        ) not in known:  # a snapshot of a stranger must not reach those of iptables
            return False
        wanted = bytes.fromhex(value) if value else known[level, option]
        if level == _SOCKET and option in _BUFFERS:
            # Linux doubles the size that is set.
            wanted = struct.pack("=i", int.from_bytes(wanted[:4], "little") // 2)
        end.setsockopt(level, option, wanted)
    elif kind == "membership":
        interface, group = rest.split()
        _join(end, interface, group, value)
    else:
        return False
    return True


def groups() -> list[tuple[int, str]]:
    """Return the multicast groups of this network namespace, with the numbers of the interfaces (man netdevice)."""
    return sorted({group for group in _groups() if group[1] not in _EVERY_HOST})


def _groups() -> Iterator[tuple[int, str]]:
    interface = 0
    with suppress(OSError):
        for line in Path("/proc/self/net/igmp").read_text().splitlines()[1:]:
            words = line.split()
            if not line.startswith("\t"):
                interface = int(words[0])
            else:
                packed = int(words[0], 16).to_bytes(4, "little")
                yield interface, socket.inet_ntop(socket.AF_INET, packed)
    with suppress(OSError):
        for line in Path("/proc/self/net/igmp6").read_text().splitlines():
            words = line.split()
            yield int(words[0]), socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[2]))


def _name(address: object) -> str:
    """Return an address as text: host and port, or a name."""
    if isinstance(address, tuple):
        return " ".join(map(str, address[:2]))
    return address.hex() if isinstance(address, bytes) else str(address)


def _memberships(end: socket.socket) -> Values:
    found = {}
    for interface, group in groups():
        if (":" in group) != (end.family == socket.AF_INET6):
            continue
        buffer = ctypes.create_string_buffer(_FILTER.size + _SOURCE_BYTES * _MOST_SOURCES)
        _FILTER.pack_into(buffer, 0, interface, _address(group), 0, _MOST_SOURCES)
        length = ctypes.c_uint(len(buffer))
        level = _IPV6 if end.family == socket.AF_INET6 else _IP
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.getsockopt(end.fileno(), level, _GROUP_FILTER, buffer, ctypes.byref(length)) < 0:
            continue  # it is no member
        _, _, mode, sources = _FILTER.unpack_from(buffer)
        used = _FILTER.size + _SOURCE_BYTES * min(sources, _MOST_SOURCES)
        with suppress(OSError):
            name = socket.if_indextoname(interface)
            found[f"membership {name} {group}"] = f"{mode} " + buffer.raw[_FILTER.size : used].hex()
    return found


def _join(end: socket.socket, interface: str, group: str, value: str) -> None:
    index, level = socket.if_nametoindex(interface), _IPV6 if ":" in group else _IP
    end.setsockopt(level, _JOIN_GROUP, _REQUEST.pack(index, _address(group)))
    mode, _, text = value.partition(" ")
    sources = bytes.fromhex(text)
    if sources:
        count = len(sources) // _SOURCE_BYTES
        filter_ = _FILTER.pack(index, _address(group), int(mode), count) + sources
        end.setsockopt(level, _GROUP_FILTER, filter_)


def _address(group: str) -> bytes:
    """Return a group as `struct sockaddr_storage`."""
    if ":" in group:
        packed = struct.pack("=HHI", socket.AF_INET6, 0, 0) + socket.inet_pton(
            socket.AF_INET6, group
        )
    else:
        packed = struct.pack("=HH", socket.AF_INET, 0) + socket.inet_pton(socket.AF_INET, group)
    return packed.ljust(_SOURCE_BYTES, b"\0")
