"""One of the processes that `unpack_processes` starts: takes runs and descriptors from its standard input, writes, and ends."""

from __future__ import annotations

import os
import socket
import threading
from importlib import import_module
from pathlib import Path

from ..errors import GpuCkptError, record_of
from ..store import packs
from .runs import RunWorker, Write
from .unpack_processes import Job, Word, descriptors_from, hear, say
from .workers import share_out


def main() -> None:
    """Do the job that comes, if one does. Ends as soon as nobody is at the other end."""
    with socket.socket(fileno=0) as connection:
        job = hear(connection, Job)
        if job is None:
            return
        descriptors = descriptors_from(connection, len(job.sinks))
        writes = [
            _built(builder, descriptor, data)
            for (builder, data), descriptor in zip(job.sinks, descriptors, strict=True)
        ]
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        _work(connection, job, writes)
    # Nothing is to be tidied up, and whoever waits for us waits for our descriptors to close.
    os._exit(0)


def _work(connection: socket.socket, job: Job, writes: list[Write]) -> None:
    lock = threading.Lock()

    def tell(word: Word) -> None:
        with lock:
            say(connection, word)

    def worker() -> RunWorker:
        return RunWorker(
            lambda pack, start, buffer: packs.read_run(Path(pack), start, buffer),
            writes,
            lambda record: tell(Word(damaged=record)),
            lambda count: tell(Word(count)),
        )

    try:
        share_out(job.runs, lambda: worker().work, min(job.threads, len(job.runs)))
    except GpuCkptError as error:
        tell(Word(error=record_of(error)))
    except OSError as error:
        tell(Word(errno=error.errno or 1))
    except BaseException as error:
        tell(Word(error=record_of(error)))
        raise
    else:
        tell(Word(end=True))


def _built(builder: str, descriptor: int, data: bytes) -> Write:
    module, _, name = builder.partition(":")
    write: Write = getattr(import_module(module), name)(descriptor, data).write
    return write


def _end_with(connection: socket.socket) -> None:
    """End when the other side does: it never says anything more."""
    connection.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main()
