"""The recreation of TCP connections within a tree for a resume: CRIU gives them to the processes instead of closed ones.

Each pair of sockets is made before CRIU starts, between its former addresses and ports. If one of these is in use, others are taken;
only a program that asks for its addresses notices. Unread bytes are sent again. CRIU passes on inherited descriptors
(`criu restore --inherit-fd`) only for files, not for sockets, so the sockets are entered into its images as files.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Self

from ...errors import is_descriptor_limit
from ...host import ended_connections
from ...wire.manifest_records import TcpConnection, TcpEnd
from ..criu import command_lines as criu_options
from ..criu import images as criu_images
from ..criu.images import Field
from ..criu.inet_images import loopback
from . import socket_options

logger = logging.getLogger(__name__)

#: The path that stands for a socket in the images.
_NAME = "gpuckpt-tcp-%d"
#: fd_types, file_entry, reg_file_entry and inet_sk_entry (images/fdinfo.proto, regfile.proto, sk-inet.proto).
_TYPE_REG = 1
_FILE_INET, _FILE_REG = 4, 3
_INET_INODE, _INET_FLAGS, _INET_OWNER = 2, 9, 13
_FDINFO_ID, _FDINFO_TYPE = 1, 3
_VARINT, _BYTES = 0, 2
#: The file position of an entry that has none.
_NOWHERE = (1 << 64) - 1

_TAKEN = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, errno.EINVAL})
_CONNECT_SECONDS, _SEND_SECONDS = 5.0, 2.0

Address = tuple[Any, ...]


class RemadeConnections:
    """The recreated sockets, from before CRIU starts until the tree has them. Leaving the block closes our descriptors.

    In a `rehearsal`, while the tree still has its connections, they are made between other ports.
    """

    def __init__(
        self,
        connections: Sequence[TcpConnection],
        read: Callable[[int, int], bytes],
        read_sent: Callable[[int, int], bytes] = lambda offset, length: b"",
        *,
        rehearsal: bool = False,
    ) -> None:
        #: The connections that could not be recreated, with the reason; the tree finds them closed.
        self.lost: list[str] = []
        self._rehearsal = rehearsal
        self._sockets: dict[int, tuple[TcpEnd, socket.socket]] = {}
        self._waiting: list[tuple[TcpConnection, socket.socket, bytes]] = []
        self._max_descriptors = criu_options.max_inherited_descriptors()
        if not rehearsal:
            ended_connections.remove({end.local[1] for kept in connections for end in kept.ends})  # type: ignore[misc]
        offset = offset_sent = 0
        try:
            for connection in connections:
                sent = read_sent(offset_sent, connection.sent) if connection.sent else b""
                offset_sent += connection.sent
                queues = []
                for end in connection.ends:
                    queues.append(read(offset, end.unread) if end.unread else b"")
                    offset += end.unread
                self._make(connection, queues, sent)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if self._rehearsal or kind is not None:
            # No process has the sockets (any more): reset the connections, so that they do not keep ports busy.
            for _, made in self._sockets.values():
                socket_options.end_at_once(made)
        self.close()

    def close(self) -> None:
        """Close this process's descriptors, which ends connections that no other process has."""
        for _, made in self._sockets.values():
            made.close()
        self._sockets.clear()
        self._waiting.clear()

    @property
    def descriptors(self) -> list[int]:
        """Return the descriptors that CRIU must inherit."""
        return [made.fileno() for _, made in self._sockets.values()]

    @property
    def criu_options(self) -> list[str]:
        """Return the options of `criu restore` that name these descriptors."""
        return [
            option
            for inode, (_, made) in self._sockets.items()
            for option in ("--inherit-fd", f"fd[{made.fileno()}]:{_NAME % inode}")
        ]

    @criu_images.strict
    def enter(self, images: Path) -> None:
        """Edit the images so that these sockets replace the saved ones."""
        ids, edited = set(), []
        for entry in criu_images.messages(images / "files.img"):
            socket_fields = _inet(entry)
            if socket_fields is not None and socket_fields[_INET_INODE] in self._sockets:
                [file_id] = [value for number, _, value in criu_images.fields(entry) if number == 2]
                ids.add(file_id)
                edited.append(_as_file(file_id, socket_fields))
            else:
                edited.append(entry)
        criu_images.replace(images / "files.img", edited)
        for path in images.glob("fdinfo-*.img"):
            entries = list(criu_images.messages(path))
            criu_images.replace(path, [_with_type(entry, ids) for entry in entries])

    def finish(self, ports: Mapping[int, int]) -> None:
        """Connect the unaccepted connections to the restored listeners, send what was sent, then `close`; no task of the tree runs yet.

        `ports`: old to new ports of listeners.
        """
        for connection, made, sent in self._waiting:
            address, port, *more = connection.ends[0].remote
            target = (address, ports.get(int(port), port), *more)
            try:
                _require_here(made.family, target)
                _connect(made, target)
                made.settimeout(_SEND_SECONDS)
                made.sendall(sent)
            except OSError as error:
                self._lose(connection, error)
        for end, made in self._sockets.values():
            fcntl.fcntl(made, fcntl.F_SETFL, end.flags)
            socket_options.share(end.options, made)
            if end.sent_all and any(made is waiting for _, waiting, _ in self._waiting):
                with suppress(OSError):
                    made.shutdown(socket.SHUT_WR)
        # The program's own close must be the last one of its socket.
        self.close()

    def _lose(self, connection: TcpConnection, error: OSError) -> None:
        logger.warning("connection %s cannot be recreated: %s", connection.name, error)
        self.lost.append(f"{connection.name} ({error.strerror or error})")

    def _make(self, connection: TcpConnection, queues: Sequence[bytes], sent: bytes) -> None:
        first = connection.ends[0]
        if len(self._sockets) + len(connection.ends) > self._max_descriptors:
            self._lose(connection, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
            return
        try:
            if connection.waiting:
                made = [_bound(first)]
                self._waiting.append((connection, made[0], sent))
                socket_options.apply(first.options, made[0])
            else:
                made = _filled(connection, queues)
        except OSError as error:
            if is_descriptor_limit(error):  # it can be recreated another time
                raise
            self._lose(connection, error)
            return
        for end, one in zip(connection.ends, made, strict=True):
            self._sockets[end.inode] = (end, one)


def _filled(connection: TcpConnection, queues: Sequence[bytes]) -> list[socket.socket]:
    """Return connected sockets for the ends, with the unread bytes in their queues."""
    with ExitStack() as rollback:
        both = [rollback.enter_context(closing(made)) for made in _pair(connection.ends)]
        first, second = both
        for end, made in zip(connection.ends, both, strict=False):
            socket_options.choose_sizes(end.options, made)
        _send(second, first, queues[0])
        if len(queues) == 1:
            # Its program has closed the other end.
            second.close()
            both = [first]
        else:
            _send(first, second, queues[1])
        for end, made in zip(connection.ends, both, strict=True):
            socket_options.apply(end.options, made)
            if end.sent_all:
                made.shutdown(socket.SHUT_WR)
        for end, made in zip(connection.ends, both, strict=True):
            if end.reads_no_more:
                made.shutdown(socket.SHUT_RD)
        rollback.pop_all()
    return both


def _pair(ends: Sequence[TcpEnd]) -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets for the ends; if there is only one end, the second stands for the missing side."""
    first = ends[0]
    second = ends[1] if len(ends) > 1 else _opposite(first)
    # On a port where an ended connection lingers, a socket cannot listen, but it can connect.
    if _is_taken(second) and not _is_taken(first):
        other, made = _connected(second, first)
        return made, other
    return _connected(first, second)


def _connected(client: TcpEnd, server: TcpEnd) -> tuple[socket.socket, socket.socket]:
    with _bound(server, listening=True) as listener:
        for own in _addresses(client):
            made = _socket(client.family)
            try:
                _bind(made, own)
                _connect(made, _target(client, listener))
                return made, _accepted(listener, made)
            except OSError as error:
                made.close()
                if error.errno not in _TAKEN:
                    raise
                failed = error
        raise failed


def _opposite(end: TcpEnd) -> TcpEnd:
    return TcpEnd(0, end.family, end.remote, end.local, 0, [])


def _is_taken(end: TcpEnd) -> bool:
    """Return whether the address of an end is in use, so that no socket could listen there."""
    with _socket(end.family) as probe:
        try:
            probe.bind(tuple(end.local))
        except OSError:
            return True
    return False


def _socket(family: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    # A listener of the tree, or the socket that reserves its port, may be on the same port.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return made


def _bound(end: TcpEnd, *, listening: bool = False) -> socket.socket:
    """Return a socket bound to the end's address, or to the first of `_addresses` that is available."""
    for own in _addresses(end):
        made = _socket(end.family)
        try:
            if listening:
                made.bind(own)
                made.listen()
            else:
                _bind(made, own)
        except OSError as error:
            made.close()
            if error.errno not in _TAKEN:
                raise
            failed = error
        else:
            return made
    raise failed


def _addresses(end: TcpEnd) -> Iterator[Address]:
    """Yield addresses for an end: its own, with another port, and the loopback's if this machine lacks the address."""
    address, port, *more = end.local
    yield (address, port, *more)
    yield (address, 0, *more)
    yield (loopback(end.family, str(address)), 0)


def _target(end: TcpEnd, listener: socket.socket) -> Address:
    """Return the listener's address in the form that a socket like `end` needs."""
    address, port, *more = listener.getsockname()
    if listener.family == end.family:
        return (address, port, *more)
    if end.family == socket.AF_INET:
        return (address.removeprefix("::ffff:"), port)
    return ("::ffff:" + address, port)


def _require_here(family: int, target: Address) -> None:
    """Raise OSError for an address that is not this machine's: connecting to another machine is forbidden."""
    with _socket(family) as probe:
        probe.bind((target[0], 0, *target[2:]))


def _bind(made: socket.socket, own: Address) -> None:
    """Bind a socket before it is connected, even if ended connections linger on its port. Raises OSError."""
    try:
        made.bind(own)
    except OSError as error:
        address, port, *more = own
        if error.errno != errno.EADDRINUSE or not port:
            raise
        try:
            socket_options.choose_port_later(made, port)
        except OSError:  # an older Linux
            raise error from None
        made.bind((address, 0, *more))


def _connect(made: socket.socket, target: Address) -> None:
    """Connect a socket; if its port is chosen only now and is in use, take another port. Raises OSError."""
    made.settimeout(_CONNECT_SECONDS)
    try:
        made.connect(target)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        with suppress(OSError):
            socket_options.choose_port_later(made, 0)
        made.connect(target)


def _accepted(listener: socket.socket, made: socket.socket) -> socket.socket:
    """Return the other end of `made`; close connections of other clients that came meanwhile."""
    listener.settimeout(_CONNECT_SECONDS)
    wanted = made.getsockname()[1]
    while True:
        other, (_, port, *_) = listener.accept()
        if port == wanted:
            return other
        other.close()


def _send(sender: socket.socket, receiver: socket.socket, data: bytes) -> None:
    """Send unread bytes again. Raises OSError if there is no room for them."""
    if not data:
        return
    sender.setblocking(False)
    left = memoryview(data)
    deadline, tries = time.monotonic() + _SEND_SECONDS, 0
    while left:
        try:
            left = left[sender.send(left) :]
            tries = 0
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS)) from None
            with suppress(BlockingIOError):
                receiver.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            if tries:  # at the first attempt the bytes may still be in transit
                socket_options.widen(receiver, len(left))
            tries += 1
            time.sleep(0.001)


def _inet(entry: bytes) -> dict[int, int | bytes] | None:
    for number, _, value in criu_images.fields(entry):
        if number == _FILE_INET and isinstance(value, bytes):
            return {number: value for number, _, value in criu_images.fields(value)}
    return None


def _as_file(file_id: int | bytes, values: Mapping[int, int | bytes]) -> bytes:
    inode = values[_INET_INODE]
    inner: list[Field] = [
        (1, _VARINT, file_id),
        (2, _VARINT, values[_INET_FLAGS]),
        (3, _VARINT, _NOWHERE),
        (5, _BYTES, values[_INET_OWNER]),
        (6, _BYTES, b"/" + (_NAME % inode).encode()),
    ]
    return criu_images.encode(
        [
            (1, _VARINT, _TYPE_REG),
            (2, _VARINT, file_id),
            (_FILE_REG, _BYTES, criu_images.encode(inner)),
        ]
    )


def _with_type(entry: bytes, ids: set[int | bytes]) -> bytes:
    parts = list(criu_images.fields(entry))
    if not any(number == _FDINFO_ID and value in ids for number, _, value in parts):
        return entry
    return criu_images.encode(
        [
            (number, wire, _TYPE_REG if number == _FDINFO_TYPE else value)
            for number, wire, value in parts
        ]
    )
