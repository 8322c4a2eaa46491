"""The recording of TCP connections with both ends in a tree, while the tree stands still.

CRIU closes every connection. Those with both ends in the tree are recreated before it restores the tree (`remake.py`), with the
bytes that had not been read yet. This module reads these bytes through duplicated descriptors of the sockets (man 2 pidfd_getfd)
and leaves them in the queues, so the connections go on as before. Bytes that a sender still keeps, because the receiver has no
room, cannot be read; so for a suspend the receiver gets more room, and they arrive.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import select
import socket
import termios
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...errors import is_descriptor_limit
from ...host import connections, processes
from ...host.connections import End, Inner
from ...host.tcp_table import TcpState
from ...wire import decoding
from ...wire.manifest_records import SCRATCH, TcpConnection, TcpEnd
from ..criu import command_lines as criu_options
from ..tree.duplicates import duplicate_socket
from ..tree.launch import pids
from ..tree.tree import Tree
from . import socket_options
from .unaccepted import Unaccepted

#: The stream of a snapshot that holds the bytes of the queues.
STREAM = "tcp"
#: The file, for recovery, with the socket whose option is changed temporarily and the option's former value.
_JOURNAL = f"{SCRATCH}/low-water-mark"
_SIOCOUTQ = termios.TIOCOUTQ
_SO_PEEK_OFF, _TCP_ULP = 42, 31
#: How long to wait until all bytes have arrived, and the interval of checks. A sender that found no room retries after 0.2 s, 0.4 s, ...
_PATIENCE_SECONDS, _LOOK_SECONDS = 3.0, 0.001
#: The same if buffers are not enlarged: then only acknowledgements can be missing.
_PATIENCE_FOR_ACKNOWLEDGEMENTS = 0.05
_MORE = 1 << 16


class _UnkeepableError(Exception):
    """The reason why a connection cannot be kept, as part of a sentence."""


class LostConnection(NamedTuple):
    """A connection that cannot be kept: the ports of one of its ends, and a text for users."""

    ports: tuple[int, int]
    text: str


class _Mark(msgspec.Struct):
    """The low-water mark of the socket `inode`, which a process has open as `descriptor`."""

    pid: int
    descriptor: int
    inode: int
    value: int


class _HeldEnd:
    """One end of a connection, held by a duplicated descriptor. The file flags are shared with the program, so they are never changed."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.socket = duplicate_socket(end.pid, end.descriptor)
        self._options = socket_options.read(self.socket)
        self._state = 0
        self.unread = b""

    def check(self) -> None:
        """Raise _UnkeepableError if a new socket could not replace this one."""
        with suppress(OSError):
            if self.socket.getsockopt(socket.IPPROTO_TCP, _TCP_ULP, 16).strip(b"\0"):
                raise _UnkeepableError("the operating system encrypts it")
        with suppress(OSError):
            if self.socket.getsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF) != -1:
                raise _UnkeepableError("it is read by looking ahead (SO_PEEK_OFF)")
        if self._flags() & os.O_ASYNC:
            raise _UnkeepableError("it sends signals (O_ASYNC)")
        if socket_options.has_urgent_data(self.socket):
            raise _UnkeepableError("it has urgent data")

    @property
    def is_closed(self) -> bool:
        """Whether both sides have ended the connection; bytes in its queue can still be read."""
        if (
            self.socket.family not in {socket.AF_INET, socket.AF_INET6}
            or self.socket.type != socket.SOCK_STREAM
        ):
            return False
        state = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        return f"{state:02X}" == TcpState.CLOSE

    def waiting(self) -> int:
        """Return how many bytes can be read from it."""
        return socket_options.count(self.socket, termios.FIONREAD)

    def unsent(self) -> int:
        """Return how many sent bytes have not been acknowledged yet."""
        return socket_options.unsent(self.socket)

    def take_more(self, length: int, journal: Path) -> None:
        """Make room for `length` more bytes, and offer it to the sender."""
        if length > 0:

            def note(mark: int) -> None:
                entry = _Mark(self.end.pid, self.end.descriptor, int(self.end.row.inode), mark)
                journal.write_bytes(msgspec.json.encode(entry))

            socket_options.widen(self.socket, length, note)
            journal.unlink(missing_ok=True)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        with suppress(BlockingIOError):
            self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)

    def look(self) -> None:
        """Read its state and peek at its queue."""
        self._state = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        waiting = self.waiting()
        with suppress(BlockingIOError):
            flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
            self.unread = self.socket.recv(waiting + _MORE, flags)
        if len(self.unread) != waiting:
            raise _UnkeepableError("its undelivered bytes cannot be read")

    def narrow(self) -> None:
        """Set the buffer's size back to the one that the program had chosen, if it had."""
        with suppress(OSError):
            socket_options.choose_sizes(self._options, self.socket)

    def record(self) -> TcpEnd:
        """Return its record for the manifest."""
        state = f"{self._state:02X}"
        read_shut = bool(socket_options.events(self.socket, select.POLLRDHUP) & select.POLLRDHUP)
        return TcpEnd(
            inode=int(self.end.row.inode),
            family=self.socket.family,
            local=list(self.socket.getsockname()),
            remote=self._remote(),
            flags=self._flags(),
            options=self._options,
            unread=len(self.unread),
            sent_all=state in {TcpState.FIN_WAIT_1, TcpState.FIN_WAIT_2, TcpState.CLOSE},
            # In these states the reading side looks shut because the other end was closed.
            reads_no_more=read_shut and state not in {TcpState.CLOSE_WAIT, TcpState.CLOSE},
        )

    def _remote(self) -> list[str | int]:
        try:
            return list(self.socket.getpeername())
        except OSError:  # it is closed
            return ["127.0.0.1" if self.socket.family == socket.AF_INET else "::1", 0]

    def _flags(self) -> int:
        return fcntl.fcntl(self.socket, fcntl.F_GETFL)


class Recorded:
    """The recorded connections within a tree, whose tasks must be stopped from the constructor to `close` or `reset`."""

    def __init__(self, tree: Tree, *, widening: bool) -> None:
        """Record the connections. `widening`: full buffers may be enlarged, because the connections will not go on."""
        self.connections: list[TcpConnection] = []
        #: The unread bytes of all ends, one after the other.
        self.queues = b""
        self.lost: list[LostConnection] = []
        #: Connections over which bytes were sent before they were accepted, of a suspend.
        self.unaccepted = Unaccepted()
        self._held: list[_HeldEnd] = []
        self._max_descriptors = criu_options.max_inherited_descriptors()
        queues = list[bytes]()
        self._journal = tree.inside(_JOURNAL)
        members = pids(tree)
        self._widening = widening
        patience = _PATIENCE_SECONDS if widening else _PATIENCE_FOR_ACKNOWLEDGEMENTS
        deadline = time.monotonic() + patience
        try:
            found = connections.survey(members)
            for inner in found.inner:
                try:
                    queues += self._add(inner, members, deadline)
                except (OSError, _UnkeepableError) as error:
                    if isinstance(error, OSError) and is_descriptor_limit(
                        error
                    ):  # they would be kept another time
                        raise
                    ports = inner.ends[0].row.local.port, inner.ends[0].row.remote.port
                    self.lost.append(LostConnection(ports, f"{inner} ({error})"))
            for end in found.unlisted:
                queues += self._add_closed(end)
        except BaseException:
            self.close()
            raise
        self.queues = b"".join(queues)

    def _add(self, inner: Inner, members: list[int], deadline: float) -> Iterable[bytes]:
        if self._ends_kept() + len(inner.ends) > self._max_descriptors:
            raise _UnkeepableError("there are too many")
        ends = []
        for end in inner.ends:
            ends.append(_HeldEnd(end))
            self._held.append(ends[-1])
            ends[-1].check()
        try:
            if not (self._widening and self._is_unaccepted(inner, ends[0], members)):
                self._await_all(inner, ends, members, deadline)
            for held in ends:
                held.look()
        finally:
            for held in ends:
                held.narrow()
        first = inner.ends[0]
        name = f"{first.program} (process {processes.nspid(first.pid)}) with {first.row.remote}"
        records = [held.record() for held in ends]
        self.connections.append(TcpConnection(name, records, inner.waiting))
        return [held.unread for held in ends]

    def _is_unaccepted(self, inner: Inner, client: _HeldEnd, members: list[int]) -> bool:
        """Return whether bytes were sent over a connection that is not accepted yet; then note the listeners that may have it."""
        if not (inner.waiting and _is_stuck(client, members)):
            return False
        for listener in inner.listeners:
            inode = listener.row.inode
            known = self.unaccepted.has(inode)
            theirs = None if known else duplicate_socket(listener.pid, listener.descriptor)
            self.unaccepted.add(inode, theirs, client.socket)
        return True

    def _ends_kept(self) -> int:
        return sum(len(connection.ends) for connection in self.connections)

    def _add_closed(self, end: End) -> Iterable[bytes]:
        """Record a connection that both sides have ended, if bytes are left to read."""
        with suppress(OSError, _UnkeepableError):
            held = _HeldEnd(end)
            self._held.append(held)
            if held.is_closed and held.waiting() and self._ends_kept() < self._max_descriptors:
                held.check()
                held.look()
                name = f"{end.program} (process {processes.nspid(end.pid)}), which is closed"
                self.connections.append(TcpConnection(name, [held.record()]))
                return [held.unread]
            self._held.remove(held)
            held.socket.close()
        return []

    def _await_all(
        self, inner: Inner, ends: list[_HeldEnd], members: list[int], deadline: float
    ) -> None:
        """Wait until all bytes that were sent are in the receivers' queues. Raises _UnkeepableError."""
        one = len(ends) == 1
        for tries in itertools.count():
            waiting = (
                [_left_over(inner, ends[0], members)] if one else [e.unsent() for e in ends[::-1]]
            )
            if not any(waiting):
                return
            if time.monotonic() > deadline:
                raise _UnkeepableError("more was sent than can be received")
            for end, length in zip(ends, waiting, strict=True):
                if length:
                    # At the first look most bytes are only on their way, so no room is made yet.
                    end.take_more(length if tries and self._widening else 0, self._journal)
            time.sleep(_LOOK_SECONDS)

    def take_unaccepted(self) -> bytes:
        """Return what was sent over `unaccepted` ones. It is the last step before the end of the processes: it cannot be undone."""
        self.connections, sent = self.unaccepted.take(self.connections)
        return sent

    def close(self) -> None:
        """Close the duplicated descriptors before any task runs on: the program's own close must be the last one of its socket."""
        self.unaccepted.close()
        for held in self._held:
            held.socket.close()
        self._held.clear()

    def reset(self) -> None:
        """Reset the connections of a tree that was killed, so that they do not keep their ports busy."""
        for held in self._held:
            socket_options.end_at_once(held.socket)
        self.close()


def recover(tree: Tree) -> None:
    """Restore the socket option that a killed daemon had changed."""
    journal = tree.inside(_JOURNAL)
    with suppress(OSError, msgspec.DecodeError):
        mark = decoding.from_json(journal.read_bytes(), _Mark)
        with duplicate_socket(mark.pid, mark.descriptor) as end:
            if os.fstat(end.fileno()).st_ino == mark.inode:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark.value)
    with suppress(OSError):
        journal.unlink(missing_ok=True)


def _is_stuck(client: _HeldEnd, pids: Collection[int]) -> bool:
    """Return whether a program has sent bytes to a listener that has not accepted the connection."""
    _, other = connections.both_ends(client.end, pids)
    return other is not None and connections.is_stuck(other)


def _left_over(inner: Inner, end: _HeldEnd, pids: Collection[int]) -> int:
    """Return how many bytes are on their way between an end in the tree and one that no program has open."""
    row, other = connections.both_ends(end.end, pids)
    if inner.waiting and other is not None:
        if connections.is_stuck(other):
            raise _UnkeepableError("bytes were sent over it before it was accepted")
        return row.unsent + other.unsent if row is not None else 0
    return other.unsent if other is not None else 0
