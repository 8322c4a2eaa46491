"""Runs shared out to several processes: beyond a handful of threads one Python's lock is all that they do.

Covers: starting the processes, handing them runs and the sinks' descriptors, hearing of progress and errors. Does not cover:
the other side (unpack_process.py), what a run is (runs.py).

On 16 cores one process writes 7.7 GB/s with 8 threads and 4.6 with 16, waiting for each other at every chunk. A process that is
lost, or has no word for us in time, fails the operation like a thread's error. They end when our end of their socket is closed.
"""

from __future__ import annotations

import array
import logging
import os
import selectors
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import msgspec

from ..errors import CheckpointError, ErrorRecord, error_from
from ..host import commands
from ..progress import Progress
from .runs import Record, Run

logger = logging.getLogger(__name__)

#: Threads of each process, and how many bytes are worth starting one.
_THREADS_EACH = 4
_LEAST_BYTES = 512 << 20
#: Linux takes 253 descriptors in a message (SCM_MAX_FD).
_DESCRIPTORS_AT_ONCE = 200
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

    def share(self) -> tuple[str, int, bytes]:
        """A `Share`; asked for when everything is prepared."""


class Job(msgspec.Struct, frozen=True):
    """What a process is told."""

    threads: int
    runs: list[Run]
    #: Builder and data of each sink, whose descriptors follow in this order.
    sinks: list[tuple[str, bytes]]


class Word(msgspec.Struct, frozen=True):
    """What a process says: how many bytes it has written since its last word, and what went wrong."""

    count: int = 0
    damaged: Record | None = None
    error: ErrorRecord | None = None
    errno: int = 0
    #: Its last.
    end: bool = False


class UnpackProcesses:
    """Processes that wait for their runs. `worth_it` says whether there are enough bytes and threads for more than one."""

    def __init__(self, runs: Sequence[Run], threads: int) -> None:
        count = -(-threads // _THREADS_EACH)
        self._runs = [list(runs[number::count]) for number in range(count)]
        self._threads = [len(range(number, threads, count)) for number in range(count)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        command = [sys.executable, "-m", f"{__package__}.unpack_process"]
        try:
            for _ in range(count):
                ours, theirs = socket.socketpair()
                self._sockets.append(ours)
                with theirs:
                    number = theirs.fileno()
                    process = commands.spawn(command, stdin=number, env=os.environ)
                self._processes.append(process)
        finally:
            # Also those that were never told to begin.
            self._close = weakref.finalize(self, _end, self._sockets, self._processes)

    def work(
        self, sinks: Sequence[SharedSink], progress: Progress, damaged: Callable[[Record], None]
    ) -> None:
        """Let them write all runs to the sinks; on return the processes are gone, and with them their descriptors.

        `damaged` is called here for each record that is not what it should be. The first error of any stops all.
        """
        try:
            shares = [Share(*sink.share()) for sink in sinks]
            told = [(share.builder, share.data) for share in shares]
            descriptors = [share.descriptor for share in shares]
            for ours, threads, runs in zip(self._sockets, self._threads, self._runs, strict=True):
                _tell(ours, Job(threads, runs, told), descriptors)
            self._listen(progress, damaged)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _lost() from error
        finally:
            self._close()

    def _listen(self, progress: Progress, damaged: Callable[[Record], None]) -> None:
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
                        selector.unregister(ours)


def worth_it(raw_bytes: int, threads: int) -> bool:
    """Whether so many bytes are written sooner by several processes."""
    return threads > _THREADS_EACH and raw_bytes >= _LEAST_BYTES


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
    """So many descriptors, as `UnpackProcesses` sends them behind a job."""
    found: list[int] = []
    while len(found) < count:
        _, received, _, _ = socket.recv_fds(connection, 1, _DESCRIPTORS_AT_ONCE)
        if not received:
            raise EOFError("the descriptors were cut off")
        found += received
    return found


def _tell(ours: socket.socket, job: Job, descriptors: Sequence[int]) -> None:
    say(ours, job)
    for first in range(0, len(descriptors), _DESCRIPTORS_AT_ONCE):
        part = array.array("i", descriptors[first : first + _DESCRIPTORS_AT_ONCE])
        ours.sendmsg([b"d"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, part)])


def _end(sockets: list[socket.socket], processes: list[subprocess.Popen[bytes]]) -> None:
    for ours in sockets:
        ours.close()
    for process in processes:
        commands.stop(process)


def _lost() -> CheckpointError:
    return CheckpointError(
        "A process that reads the snapshot has ended.",
        hint="Look whether memory is short, then try again. The snapshot is untouched.",
    )
