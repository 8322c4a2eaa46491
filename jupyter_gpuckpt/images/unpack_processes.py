"""Runs shared out to several processes: beyond a handful of threads one Python's lock is all that they do.

Covers: asking for the processes, handing them the table of runs and the sinks' descriptors, hearing of progress and errors. Does
not cover: the other side (unpack_process.py), processes as such (worker_processes.py), what a run is (runs.py).

On 16 cores one process with 16 threads fills memory at 4 GB/s, as its threads wait for each other at every chunk; sixteen
processes do it at 15 GB/s. Each takes a run when it is done with the last: runs take so differently long that shares dealt out
beforehand cost a fifth. A process that is lost fails the operation like a thread's error. They end when our end of their socket
is closed.
"""

from __future__ import annotations

import os
import selectors
import socket
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast, runtime_checkable

import msgspec

from ..errors import CheckpointError, ErrorRecord, error_from
from ..progress import Progress
from .runs import Damaged, RunTable
from .worker_processes import fork, hear, tell


class Share(NamedTuple):
    """How another process makes a sink of the same kind: `builder` is module:attribute there, called with both others."""

    builder: str
    descriptor: int | None
    data: bytes


@runtime_checkable
class SharedSink(Protocol):
    """A sink that other processes can write to."""

    #: Where its builder is, to be imported in time.
    module: str

    def share(self) -> tuple[str, int | None, bytes]:
        """A `Share`; asked for when everything is prepared."""


class UnpackTask(msgspec.Struct, frozen=True, tag=True):
    """What a process is told first. The descriptors of `RunTable.share` follow."""

    packs: list[str]
    records: int
    #: To be imported in time.
    modules: list[str]


class Sinks(msgspec.Struct, frozen=True):
    """What a process is told when it may begin: builder and data of each sink, and whether its descriptor is among those that
    follow in this order."""

    shares: list[tuple[str, bytes, bool]]


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
                ours = fork()
                self._sockets.append(ours)
                tell(ours, UnpackTask(table.packs, len(table.records), modules), shared)
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
            told = Sinks([(one.builder, one.data, one.descriptor is not None) for one in shares])
            descriptors = [one.descriptor for one in shares if one.descriptor is not None]
            for ours in self._sockets:
                tell(ours, told, descriptors)
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


def _close_all(sockets: list[socket.socket]) -> None:
    for ours in sockets:
        ours.close()


def _lost() -> CheckpointError:
    return CheckpointError(
        "A process that reads the snapshot has ended.",
        hint="Look whether memory is short, then try again. The snapshot is untouched.",
    )
