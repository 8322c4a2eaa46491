"""Edits of the TCP and UDP sockets in CRIU's images, whose ports may be in use, or whose addresses this machine may not have.

CRIU restores listeners with SO_REUSEADDR and SO_REUSEPORT (criu/sk-inet.c). So a second copy of a snapshot, a branch for instance,
would be restored without an error and share ports with the first. Other sockets cannot be restored at all where their port is in
use, and no IPv4 socket where its address is that of another machine. This module finds such conflicts before the restore.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from ...errors import ThawFailed
from ...host import ended_connections
from ...linux.ports import HeldPorts
from . import images as criu_images
from .images import Field

#: file_entry (images/fdinfo.proto).
_INET = 4
#: inet_sk_entry (images/sk-inet.proto).
_INODE, _FAMILY, _TYPE, _PROTOCOL, _STATE, _SOURCE, _DESTINATION, _BACKLOG = 2, 3, 4, 5, 6, 7, 8, 10
_SOURCE_ADDRESS, _DESTINATION_ADDRESS, _V6_ONLY = 11, 12, 15
#: TCP_ESTABLISHED, TCP_CLOSE and TCP_LISTEN of include/net/tcp_states.h; UDP sockets use the same numbers.
_ESTABLISHED, _CLOSE, _LISTEN = 1, 7, 10
_VARINT = 0
_MAX_PORT = 65535
_PORT_TRIES = 10


class Moved(msgspec.Struct):
    """The changed ports and addresses of the tree's sockets, old to new, without the ports that the caller had named."""

    ports: dict[int, int] = {}
    #: By family and address.
    addresses: dict[tuple[int, str], str] = {}
    #: The destinations of connected UDP sockets, to which no route leads, by family, address and port.
    unreachable: set[tuple[int, str, int]] = set()
    #: The changed ports of listeners and unconnected UDP sockets, which clients of the tree's servers must know.
    server_ports: dict[int, int] = {}
    server_addresses: dict[str, str] = {}
    #: Sockets that reserve the new ports until the tree has them.
    held: list[HeldPorts] = []

    def address(self, family: int, address: str) -> str:
        """Return the address that replaces another one: the same, unless this machine does not have it."""
        return self.addresses.get((family, address), address)

    def release(self) -> None:
        """Release the new ports when the tree has them."""
        for ports in self.held:
            ports.release()


class _Bound(msgspec.Struct, frozen=True):
    """The address and port that a TCP or UDP socket of the tree is bound to. `remote`: the peer of a connected UDP socket, else None."""

    kind: int
    family: int
    address: str
    port: int
    listens: bool
    remote: tuple[str, int] | None
    v6_only: bool


def move(files: Path, ports: Mapping[int, int], *, to_new: bool = False) -> Moved:
    """Edit files.img so that its tree does not conflict with processes that use its ports now.

    `ports`: old to new, or to the same, for ports that clients outside know. Raises ThawFailed if one of them is in use. A socket on
    any other port that is in use gets a free one. A listener on an address that this machine does not have gets that of the loopback.
    `to_new`: every other port is replaced, because other daemons may restore the same tree at this moment.
    """
    entries, sockets = _read(files)
    moved = Moved()
    for bound in sockets:
        _move_address(bound, moved)
    moved.unreachable = {
        (bound.family, *bound.remote)
        for bound in sockets
        if bound.remote
        and (bound.family, bound.remote[0]) not in moved.addresses
        and not _is_reachable(bound.family, *bound.remote)
    }
    # Ended connections of the saved tree occupy ports for a minute. All are removed in one pass, because reading the table is slow.
    if not to_new:
        ended_connections.remove({ports.get(bound.port, bound.port) for bound in sockets})
    by_port: dict[int, list[_Bound]] = {}
    for bound in sockets:
        by_port.setdefault(bound.port, []).append(bound)
    for port, group in by_port.items():
        _move_port(port, group, ports, moved, to_new=to_new)
    changed = {**ports, **moved.ports}
    edited = [_edited(entry, changed, moved) for entry in entries]
    if edited != entries:
        criu_images.replace(files, edited)
    return moved


def listen(files: Path, listeners: Mapping[int, tuple[int, int]]) -> None:
    """Edit files.img so that sockets listen which did not when they were saved: by inode, their port and the length of their queue."""

    def change(inet: bytes) -> bytes:
        parts = list(criu_images.fields(inet))
        inodes = [
            value for number, _, value in parts if number == _INODE and isinstance(value, int)
        ]
        if not inodes or (found := listeners.get(inodes[0])) is None:
            return inet
        new = {_STATE: _LISTEN, _SOURCE: found[0], _BACKLOG: found[1]}
        return criu_images.encode([(n, wire, new.get(n, value)) for n, wire, value in parts])

    entries = list(criu_images.messages(files))
    criu_images.replace(files, [criu_images.with_inner(entry, _INET, change) for entry in entries])


def _move_address(bound: _Bound, moved: Moved) -> None:
    """Choose another address for a socket whose address is not one of this machine's."""
    key = bound.family, bound.address
    if key not in moved.addresses:
        new = loopback(*key)
        if new == bound.address or not _is_absent(*key):
            return
        moved.addresses[key] = new
    if bound.remote is None:
        moved.server_addresses[bound.address] = moved.addresses[key]


def _move_port(
    port: int, group: list[_Bound], ports: Mapping[int, int], moved: Moved, *, to_new: bool
) -> None:
    """Choose another port for the sockets of one port if it is in use, or in any case. Raises ThawFailed for one of `ports` in use."""

    def is_taken(candidate: int) -> bool:
        return any(
            _is_taken(bound, moved.address(bound.family, bound.address), candidate)
            for bound in group
        )

    if not (to_new and port not in ports) and not is_taken(ports.get(port, port)):
        return
    if port in ports:
        raise ThawFailed(
            f"The kernel's own port {ports[port]} is taken by another program.",
            hint="End that program, then try again. The snapshot is untouched.",
            details=f"bind to {group[0].address} port {ports[port]}: address already in use",
        )
    # A port that is free for TCP may be in use by a UDP socket, or on another address.
    for _ in range(_PORT_TRIES):
        free = HeldPorts.free(1)
        if not is_taken(free.ports[0]):
            break
        free.release()
    moved.held.append(free)
    [moved.ports[port]] = free.ports
    if any(bound.remote is None for bound in group):
        moved.server_ports[port] = moved.ports[port]


@criu_images.strict
def _read(files: Path) -> tuple[list[bytes], list[_Bound]]:
    """Return the messages of files.img, and its TCP and UDP sockets that are bound, apart from connections."""
    entries = list(criu_images.messages(files))
    for entry in entries:
        _edited(entry, {}, Moved())  # raises if the entry cannot be decoded completely
    sockets = list(_bound_sockets(entries))
    ports = [bound.port for bound in sockets]
    ports += [bound.remote[1] for bound in sockets if bound.remote]
    if any(not 0 <= port <= _MAX_PORT for port in ports):
        raise ValueError("a port number is out of range")
    return entries, sockets


def _bound_sockets(entries: list[bytes]) -> Iterator[_Bound]:
    for entry in entries:
        for inet in criu_images.inner(entry, _INET):
            parts = list(criu_images.fields(inet))
            values = {number: value for number, _, value in parts if isinstance(value, int)}
            kind, state, port = values[_TYPE], values[_STATE], values[_SOURCE]
            family, remote_port = values[_FAMILY], values[_DESTINATION]
            if kind == socket.SOCK_STREAM:
                # CRIU does not bind connections: it restores them closed.
                is_bound = state == _LISTEN or (state == _CLOSE and port != 0 == remote_port)
            else:
                is_udp = (kind, values[_PROTOCOL]) == (socket.SOCK_DGRAM, socket.IPPROTO_UDP)
                is_bound = is_udp and port != 0
            if is_bound:
                own, remote = (
                    _address(parts, family, number)
                    for number in (_SOURCE_ADDRESS, _DESTINATION_ADDRESS)
                )
                is_connected = kind == socket.SOCK_DGRAM and state == _ESTABLISHED
                yield _Bound(
                    kind,
                    family,
                    own,
                    port,
                    state == _LISTEN,
                    (remote, remote_port) if is_connected else None,
                    bool(values.get(_V6_ONLY)),
                )


def _address(parts: list[Field], family: int, field_number: int) -> str:
    words = [value for number, _, value in parts if number == field_number]
    length = 1 if family == socket.AF_INET else 4
    return socket.inet_ntop(family, struct.pack(f"={length}I", *words[:length]))


def _is_taken(bound: _Bound, address: str, port: int) -> bool:
    """Return whether the port is in use, or forbidden to this user.

    The test of TCP binds without SO_REUSEPORT, which would allow it beside a restored listener; UDP sockets are restored with it.
    """
    with socket.socket(bound.family, bound.kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if bound.family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, bound.v6_only)
        if bound.kind == socket.SOCK_DGRAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind((address, port))
            if bound.listens:
                probe.listen()
        except OSError as error:
            # After any other error another port would not help.
            return error.errno in {errno.EADDRINUSE, errno.EACCES}
    return False


def _is_absent(family: int, address: str) -> bool:
    """Return whether no socket can be bound to the address, because this machine does not have it."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            return error.errno == errno.EADDRNOTAVAIL
    return False


def _is_reachable(family: int, address: str, port: int) -> bool:
    """Return whether a UDP socket can be connected to the address; nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port))
        except OSError:
            return False
    return True


def loopback(family: int, address: str) -> str:
    """Return the address of the loopback in the form of another address of the family."""
    if family == socket.AF_INET:
        return "127.0.0.1"
    return "::ffff:127.0.0.1" if address.startswith("::ffff:") else "::1"


def _edited(entry: bytes, ports: Mapping[int, int], moved: Moved) -> bytes:
    def change(inet: bytes) -> bytes:
        parts = _with_addresses(list(criu_images.fields(inet)), moved)
        return criu_images.encode([_with_ports(part, ports) for part in parts])

    return criu_images.with_inner(entry, _INET, change)


@criu_images.strict
def _with_addresses(parts: list[Field], moved: Moved) -> list[Field]:
    """Return the fields of a socket without addresses that this machine does not have."""
    if not moved.addresses and not moved.unreachable:
        return parts
    values = {number: value for number, _, value in parts if isinstance(value, int)}
    family, port = values[_FAMILY], values[_DESTINATION]
    own, remote = (
        _address(parts, family, number) for number in (_SOURCE_ADDRESS, _DESTINATION_ADDRESS)
    )
    new = {
        _SOURCE_ADDRESS: moved.address(family, own),
        _DESTINATION_ADDRESS: moved.address(family, remote),
    }
    is_connected = values[_TYPE] == socket.SOCK_DGRAM and values[_STATE] == _ESTABLISHED
    others: dict[int, int] = {}
    if is_connected and (family, remote, port) in moved.unreachable:
        # It was connected to something that this machine cannot reach: the program's next use of it fails.
        others = {_STATE: _CLOSE, _DESTINATION: 0}
        new[_DESTINATION_ADDRESS] = _any(family)
    elif is_connected and new[_DESTINATION_ADDRESS] == remote and new[_SOURCE_ADDRESS] != own:
        new[_SOURCE_ADDRESS] = _any(family)  # Linux chooses it as the socket is connected
    changed = [part for part in parts if part[0] not in new]
    for number, address in new.items():
        packed = socket.inet_pton(family, address)
        words = struct.unpack(f"={len(packed) // 4}I", packed)
        changed += [(number, _VARINT, word) for word in words]
    return [(number, wire, others.get(number, value)) for number, wire, value in changed]


def _any(family: int) -> str:
    return "0.0.0.0" if family == socket.AF_INET else "::"  # noqa: S104 - of a socket that is not a listener


def _with_ports(part: Field, ports: Mapping[int, int]) -> Field:
    number, wire, value = part
    # This applies to closed connections, too: CRIU binds their sockets to the former port.
    if number in {_SOURCE, _DESTINATION} and isinstance(value, int):
        return number, wire, ports.get(value, value)
    return part
