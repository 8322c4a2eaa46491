"""The worker's side of unpacking: it takes spans from the shared table and writes them to the sinks.

See also: `unpack_client.py`, the caller's side, which defines the messages.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

from ..errors import record_of
from ..store import packs
from .spans import SpanReader, SpanRow, SpanTable, SpanWorker, Write, shared_table, taken
from .unpack_client import Sinks, UnpackTask, WorkerReport
from .worker_messages import receive, receive_descriptors, send


def serve(connection: socket.socket, task: UnpackTask) -> None:
    """Do a task: prepare, wait for the sinks, write spans until none is left. Report errors to the caller."""
    records, spans = receive_descriptors(connection, 2)
    table = shared_table(task.packs, task.records, records)
    for module in task.modules:
        import_module(module)
    sinks = receive(connection, Sinks)
    if sinks is None:
        return
    descriptors = iter(
        receive_descriptors(connection, sum(is_open for _, _, is_open in sinks.shares))
    )
    writes: list[Write] = [
        resolve_name(builder)(next(descriptors) if is_open else None, data).write
        for builder, data, is_open in sinks.shares
    ]
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    _work(connection, table, taken(spans), writes)


def _work(
    connection: socket.socket, table: SpanTable, spans: Iterator[SpanRow], writes: list[Write]
) -> None:
    reader = SpanReader(_fill)

    def read(pack: str, start: int, end: int) -> memoryview:
        found = packs.map_span(Path(pack), start, end)
        return reader.read(pack, start, end) if found is None else found

    worker = SpanWorker(
        table,
        read,
        writes,
        lambda damaged: send(connection, WorkerReport(damaged=damaged)),
        lambda span, count: send(connection, WorkerReport(span, count)),
    )
    try:
        for span in spans:
            worker.work(span)
    except OSError as error:
        send(connection, WorkerReport(errno=error.errno or 1))
    except BaseException as error:
        send(connection, WorkerReport(error=record_of(error)))
    else:
        send(connection, WorkerReport(end=True))


def _fill(pack: str, start: int, buffer: memoryview) -> int:
    return packs.read_span(Path(pack), start, buffer)


def _end_with(connection: socket.socket) -> None:
    """Exit when the caller closes the socket; the caller sends nothing more before."""
    connection.recv(1)
    os._exit(1)
