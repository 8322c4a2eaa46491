"""Runs shared out to several processes: beyond a handful of threads one Python's lock is all that they do.

Covers: asking for the processes, handing them the table of runs and the sinks' descriptors, hearing of progress and errors. Does
not cover: the other side (unpack_process.py), what a run is (runs.py).

On 16 cores one process with 16 threads fills memory at 4 GB/s, as its threads wait for each other at every chunk; sixteen
processes do it at 15 GB/s. Each takes a run when it is done with the last: runs take so differently long that shares dealt out
beforehand cost a fifth. A process that is lost fails the operation like a thread's error. They end when our end of their socket
is closed.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import msgspec

from ..errors import CheckpointError, ErrorRecord, error_from
from ..host import commands
from ..progress import Progress
from .runs import Damaged, RunTable

logger = logging.getLogger(__name__)

#: Where fewer are asked for, or for fewer bytes, threads do it. (Two processes are a fifth faster than two threads where chunks are
#: compressed and a tenth slower where they are not, and the smallest machines are spared a process that waits.)
_LEAST_PROCESSES = 3
_LEAST_BYTES = 512 << 20
#: Linux takes 253 descriptors in a message (SCM_MAX_FD).
_DESCRIPTORS_AT_ONCE = 200
#: What forks should have no threads; numpy's library starts some otherwise.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_LENGTH = struct.Struct("<I")

_Message = TypeVar("_Message")


class Share(NamedTuple):
    """How another process makes a sink of the same kind: `builder` is module:attribute there, called with both others."""

    builder: str
    descriptor: int
    data: bytes


@runtime_checkable
class SharedSink(Protocol):
    """A sink that other processes can write to."""

    #: Where its builder is, to be imported in time.
    module: str

    def share(self) -> tuple[str, int, bytes]:
        """A `Share`; asked for when everything is prepared."""


class Task(msgspec.Struct, frozen=True):
    """What a process is told first. The descriptors of `RunTable.share` follow."""

    packs: list[str]
    records: int
    #: To be imported in time.
    modules: list[str]


class Sinks(msgspec.Struct, frozen=True):
    """What a process is told when it may begin: builder and data of each sink, whose descriptors follow in this order."""

    shares: list[tuple[str, bytes]]


class Word(msgspec.Struct, frozen=True):
    """What a process says: how many bytes it has written since its last word, and what went wrong."""

    count: int = 0
    damaged: Damaged | None = None
    error: ErrorRecord | None = None
    errno: int = 0
    #: Its last.
    end: bool = False


class UnpackProcesses:
    """Processes that get ready at once and wait for their sinks. Making it raises CommandFailed and OSError where there cannot be
    any."""

    def __init__(self, table: RunTable, sinks: Sequence[SharedSink], count: int) -> None:
        self._sockets: list[socket.socket] = []
        # Also those that were never told to begin.
        self._close = weakref.finalize(self, _close_all, self._sockets)
        modules = sorted({sink.module for sink in sinks})
        shared = table.share()
        try:
            for _ in range(count):
                ours = _parent.fork()
                self._sockets.append(ours)
                _tell(ours, Task(table.packs, len(table.records), modules), shared)
        except BaseException:
            self._close()
            raise
        finally:
            for descriptor in shared:
                os.close(descriptor)

    def work(
        self,
        sinks: Sequence[SharedSink],
        progress: Progress,
        damaged: Callable[[Damaged], None],
    ) -> None:
        """Let them write all runs to the sinks; on return they have closed them again.

        `damaged` is called here for each chunk that is not what it should be. The first error of any stops all.
        """
        try:
            shares = [Share(*sink.share()) for sink in sinks]
            told = Sinks([(share.builder, share.data) for share in shares])
            descriptors = [share.descriptor for share in shares]
            for ours in self._sockets:
                _tell(ours, told, descriptors)
            self._listen(progress, damaged)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _lost() from error
        finally:
            self._close()

    def _listen(self, progress: Progress, damaged: Callable[[Damaged], None]) -> None:
        with selectors.DefaultSelector() as selector:
            for connection in self._sockets:
                selector.register(connection, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    ours = cast("socket.socket", key.fileobj)
                    word = hear(ours, Word)
                    if word is None:
                        raise _lost()
                    if word.error is not None:
                        raise error_from(word.error)
                    if word.errno:
                        raise OSError(word.errno, os.strerror(word.errno))
                    if word.damaged is not None:
                        damaged(word.damaged)
                    progress.advance(word.count)
                    if word.end:
                        # It ends, and what it had open is closed then.
                        ours.recv(1)
                        selector.unregister(ours)


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
            command = [sys.executable, "-m", f"{__package__}.unpack_process"]
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


def warm_up(threads: int) -> None:
    """Get ready for unpacking with so many threads; never raises."""
    if threads >= _LEAST_PROCESSES:
        try:
            _parent.warm_up()
        except (commands.CommandFailed, OSError) as error:
            logger.warning("snapshots are read by one process: %s", error)


def worth_it(raw_bytes: int, threads: int) -> bool:
    """Whether so many bytes are written sooner by several processes."""
    return threads >= _LEAST_PROCESSES and raw_bytes >= _LEAST_BYTES


def say(connection: socket.socket, message: msgspec.Struct) -> None:
    """Send a message."""
    body = msgspec.msgpack.encode(message)
    connection.sendall(_LENGTH.pack(len(body)) + body)


def hear(connection: socket.socket, kind: type[_Message]) -> _Message | None:
    """The next message; None at the end."""
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
    return msgspec.msgpack.decode(body, type=kind)


def descriptors_from(connection: socket.socket, count: int) -> list[int]:
    """So many descriptors, as `UnpackProcesses` sends them behind a message."""
    found: list[int] = []
    while len(found) < count:
        _, received, _, _ = socket.recv_fds(connection, 1, _DESCRIPTORS_AT_ONCE)
        if not received:
            raise EOFError("the descriptors were cut off")
        found += received
    return found


def _tell(ours: socket.socket, message: msgspec.Struct, descriptors: Sequence[int]) -> None:
    say(ours, message)
    for first in range(0, len(descriptors), _DESCRIPTORS_AT_ONCE):
        socket.send_fds(ours, [b"d"], descriptors[first : first + _DESCRIPTORS_AT_ONCE])


def _close_all(sockets: list[socket.socket]) -> None:
    for ours in sockets:
        ours.close()


def _lost() -> CheckpointError:
    return CheckpointError(
        "A process that reads the snapshot has ended.",
        hint="Look whether memory is short, then try again. The snapshot is untouched.",
    )
