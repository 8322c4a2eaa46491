"""The caller's side of unpack workers: each worker reads spans and writes them to the sinks.

Covers: requesting the workers, sending them the table of spans and the sinks' descriptors, receiving progress and errors. Does
not cover: the workers' side (unpack_worker.py), starting workers (worker_processes.py), what a span is (spans.py).

On 16 cores one process with 16 threads fills memory at 4 GB/s, because its threads wait for the GIL at every chunk; sixteen
processes do it at 15 GB/s. Each worker takes the next span when it has finished one: the times differ so much that a fixed assignment
is a fifth slower. A lost worker fails the operation like a thread's error. Workers end when the caller's end of their socket
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
from .spans import Damaged, SpanTable
from .worker_messages import receive, send_with_descriptors
from .worker_processes import fork


class Share(NamedTuple):
    """A description of a sink for another process: `builder(descriptor, data)` recreates it there.

    `builder` is module:attribute.
    """

    builder: str
    descriptor: int | None
    data: bytes


@runtime_checkable
class SharedSink(Protocol):
    """A sink that other processes can write to."""

    #: The module of the sink's builder; workers import it while the sink is prepared.
    module: str

    def share(self) -> tuple[str, int | None, bytes]:
        """Return the fields of a `Share`; called when the sink is prepared."""


class UnpackTask(msgspec.Struct, frozen=True, tag=True):
    """The first message to a worker. The descriptors of `SpanTable.share` follow it."""

    packs: list[str]
    records: int
    #: Modules to import before the sinks come.
    modules: list[str]


class Sinks(msgspec.Struct, frozen=True):
    """The message that starts a worker: for each sink its builder, its data, and whether a descriptor of it follows, in this order."""

    shares: list[tuple[str, bytes, bool]]


class WorkerReport(msgspec.Struct, frozen=True):
    """A worker's report: a span that is written, if any, and its bytes; or an error."""

    span: int | None = None
    count: int = 0
    damaged: Damaged | None = None
    error: ErrorRecord | None = None
    errno: int = 0
    #: This report is the worker's last.
    end: bool = False


class UnpackClient:
    """A group of workers that prepare at once and then wait for their sinks.

    The constructor raises CommandFailed or OSError if no workers can be started.
    """

    def __init__(self, table: SpanTable, sinks: Sequence[SharedSink], count: int) -> None:
        self._sockets: list[socket.socket] = []
        # Closing the sockets also ends workers that never received their sinks.
        self._close = weakref.finalize(self, _close_all, self._sockets)
        modules = sorted({sink.module for sink in sinks})
        shared = table.share()
        try:
            for _ in range(count):
                ours = fork()
                self._sockets.append(ours)
                send_with_descriptors(
                    ours, UnpackTask(table.packs, len(table.records), modules), shared
                )
        except BaseException:
            self._close()
            raise
        finally:
            for descriptor in shared:
                os.close(descriptor)

    def work(
        self,
        sinks: Sequence[SharedSink],
        written: Callable[[int, int], None],
        damaged: Callable[[Damaged], None],
    ) -> None:
        """Let the workers write all spans to the sinks; on return they have closed the sinks again.

        `written` is called in this process with the number and the bytes of each span that is written, `damaged` before it for each of
        its chunks whose bytes are wrong. The first error of any worker stops all.
        """
        try:
            shares = [Share(*sink.share()) for sink in sinks]
            request = Sinks([(one.builder, one.data, one.descriptor is not None) for one in shares])
            descriptors = [one.descriptor for one in shares if one.descriptor is not None]
            for ours in self._sockets:
                send_with_descriptors(ours, request, descriptors)
            self._listen(written, damaged)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _lost() from error
        finally:
            self._close()

    def _listen(
        self, written: Callable[[int, int], None], damaged: Callable[[Damaged], None]
    ) -> None:
        with selectors.DefaultSelector() as selector:
            for connection in self._sockets:
                selector.register(connection, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    ours = cast("socket.socket", key.fileobj)
                    report = receive(ours, WorkerReport)
                    if report is None:
                        raise _lost()
                    if report.error is not None:
                        raise error_from(report.error)
                    if report.errno:
                        raise OSError(report.errno, os.strerror(report.errno))
                    if report.damaged is not None:
                        damaged(report.damaged)
                    if report.span is not None:
                        written(report.span, report.count)
                    if report.end:
                        # EOF comes when the worker has exited and its descriptors are closed.
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
