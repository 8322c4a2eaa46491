"""What a process of `unpack_processes` does: it takes runs and writes them to the sinks."""

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
from .runs import RunReader, RunRow, RunTable, RunWorker, Write, shared_table, taken
from .unpack_processes import Sinks, UnpackTask, Word
from .worker_processes import descriptors_from, hear, say


def serve(connection: socket.socket, task: UnpackTask) -> None:
    """Get ready, wait for the sinks and do the task; what goes wrong is said."""
    records, runs = descriptors_from(connection, 2)
    table = shared_table(task.packs, task.records, records)
    for module in task.modules:
        import_module(module)
    sinks = hear(connection, Sinks)
    if sinks is None:
        return
    descriptors = iter(descriptors_from(connection, sum(is_open for _, _, is_open in sinks.shares)))
    writes: list[Write] = [
        resolve_name(builder)(next(descriptors) if is_open else None, data).write
        for builder, data, is_open in sinks.shares
    ]
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    _work(connection, table, taken(runs), writes)


def _work(
    connection: socket.socket, table: RunTable, runs: Iterator[RunRow], writes: list[Write]
) -> None:
    reader = RunReader(_fill)

    def read(pack: str, start: int, end: int) -> memoryview:
        found = packs.map_run(Path(pack), start, end)
        return reader.read(pack, start, end) if found is None else found

    worker = RunWorker(
        table,
        read,
        writes,
        lambda damaged: say(connection, Word(damaged=damaged)),
        lambda count: say(connection, Word(count)),
    )
    try:
        for run in runs:
            worker.work(run)
    except OSError as error:
        say(connection, Word(errno=error.errno or 1))
    except BaseException as error:
        say(connection, Word(error=record_of(error)))
    else:
        say(connection, Word(end=True))


def _fill(pack: str, start: int, buffer: memoryview) -> int:
    return packs.read_run(Path(pack), start, buffer)


def _end_with(connection: socket.socket) -> None:
    """End when the other side does: it never says anything more."""
    connection.recv(1)
    os._exit(1)
