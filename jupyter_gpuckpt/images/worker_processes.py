"""Processes that do what threads cannot: beyond a handful of threads one Python's lock is all that they do.

Covers: asking for a process, talking to it. Does not cover: its side (worker_process.py), what it does (pack_process.py,
unpack_process.py).
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import TypeVar, Union

import msgspec

from .. import decoding
from ..host import commands

logger = logging.getLogger(__name__)

#: Where fewer are asked for, or for fewer bytes, threads do it.
_LEAST_PROCESSES = 2
_LEAST_BYTES = 512 << 20
#: Linux takes 253 descriptors in a message (SCM_MAX_FD).
_DESCRIPTORS_AT_ONCE = 200
#: What forks should have no threads; numpy's library starts some otherwise.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_LENGTH = struct.Struct("<I")

_Message = TypeVar("_Message", bound=msgspec.Struct)


def worth_it(raw_bytes: int, threads: int) -> bool:
    """Whether so many bytes are read or written sooner by processes."""
    return threads >= _LEAST_PROCESSES and raw_bytes >= _LEAST_BYTES


class _Parent:
    """A process that has imported everything and makes others of itself: starting Python anew takes longer than filling a GB.

    It is started when it is first needed, started again when it was lost, and ends with us. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def fork(self) -> socket.socket:
        """A new process at the other end of this socket."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                try:
                    self._ask(theirs)
                except OSError:  # it was lost
                    self._drop()
                    self._ask(theirs)
        except BaseException:
            ours.close()
            raise
        return ours

    def _ask(self, theirs: socket.socket) -> None:
        socket.send_fds(self._started(), [b"f"], [theirs.fileno()])

    def warm_up(self) -> None:
        """Start it."""
        with self._lock:
            self._started()

    @property
    def pid(self) -> int | None:
        """Its process id while it is there."""
        return self._process.pid if self._process else None

    def _started(self) -> socket.socket:
        if self._socket is None:
            ours, theirs = socket.socketpair()
            command = [sys.executable, "-m", f"{__package__}.worker_process"]
            with theirs:
                environment = {**os.environ, **_ONE_THREAD}
                self._process = commands.spawn(command, stdin=theirs.fileno(), env=environment)
            self._socket = ours
            # Also when the interpreter ends.
            self._end = weakref.finalize(self, _stop, ours, self._process)
        return self._socket

    def _drop(self) -> None:
        if self._socket is not None:
            self._end()
        self._socket = self._process = None


def _stop(ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
    ours.close()
    commands.stop(process)


_parent = _Parent()


def fork() -> socket.socket:
    """A new process at the other end of this socket, which ends with it. Raises CommandFailed and OSError where there cannot be one."""
    return _parent.fork()


def warm_up(threads: int) -> None:
    """Get ready for working with so many threads; never raises."""
    if threads >= _LEAST_PROCESSES:
        try:
            _parent.warm_up()
        except (commands.CommandFailed, OSError) as error:
            logger.warning("snapshots are written and read by one process: %s", error)


def say(connection: socket.socket, message: msgspec.Struct) -> None:
    """Send a message."""
    body = msgspec.msgpack.encode(message)
    connection.sendall(_LENGTH.pack(len(body)) + body)


def hear(connection: socket.socket, *kinds: type[_Message]) -> _Message | None:
    """The next message, of one of these types (which have tags when they are several); None at the end."""
    head = connection.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(head) < _LENGTH.size:
        return None
    left = _LENGTH.unpack(head)[0]
    body = bytearray()
    while len(body) < left:
        part = connection.recv(left - len(body), socket.MSG_WAITALL)
        if not part:
            return None
        body += part
    message: _Message = decoding.from_msgpack(bytes(body), Union[kinds])  # type: ignore[arg-type] # noqa: UP007 - as many as there are
    return message


def descriptors_from(connection: socket.socket, count: int) -> list[int]:
    """So many descriptors, as `tell` sends them behind a message."""
    found: list[int] = []
    while len(found) < count:
        _, received, _, _ = socket.recv_fds(connection, 1, _DESCRIPTORS_AT_ONCE)
        if not received:
            raise EOFError("the descriptors were cut off")
        found += received
    return found


def tell(ours: socket.socket, message: msgspec.Struct, descriptors: Sequence[int]) -> None:
    """Send a message and descriptors behind it, for `descriptors_from`."""
    say(ours, message)
    for first in range(0, len(descriptors), _DESCRIPTORS_AT_ONCE):
        socket.send_fds(ours, [b"d"], descriptors[first : first + _DESCRIPTORS_AT_ONCE])
