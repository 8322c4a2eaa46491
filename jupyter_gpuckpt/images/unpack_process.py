"""The processes that `unpack_processes` asks for: one that waits and makes others of itself, which write what they are told."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from ..errors import record_of
from ..store import packs
from .runs import Run, RunWorker, Write
from .unpack_processes import Job, Word, descriptors_from, hear, say
from .workers import share_out


def main() -> None:
    """For every descriptor that comes by the standard input, a process at the other end of it; until nobody is there any more."""
    # Nobody waits for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=0) as asking:
        while True:
            _, received, _, _ = socket.recv_fds(asking, 1, 1)
            if not received:
                return
            with socket.socket(fileno=received[0]) as connection:
                if os.fork() == 0:
                    asking.close()
                    _serve(connection)


def _serve(connection: socket.socket) -> NoReturn:
    """Do the job that comes, if one does, and end."""
    try:
        job = hear(connection, Job)
        if job is not None:
            descriptors = descriptors_from(connection, len(job.sinks))
            writes = [
                _built(builder, descriptor, data)
                for (builder, data), descriptor in zip(job.sinks, descriptors, strict=True)
            ]
            threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
            _work(connection, job, writes)
    finally:
        # Nothing is to be tidied up, and whoever waits for us waits for our descriptors to close.
        os._exit(0)


def _work(connection: socket.socket, job: Job, writes: list[Write]) -> None:
    lock = threading.Lock()

    def tell(word: Word) -> None:
        with lock:
            say(connection, word)

    def make_worker() -> Callable[[Run], None]:
        return RunWorker(
            lambda pack, start, buffer: packs.read_run(Path(pack), start, buffer),
            writes,
            lambda record: tell(Word(damaged=record)),
            lambda count: tell(Word(count)),
        ).work

    try:
        share_out(job.runs, make_worker, min(job.threads, len(job.runs)))
    except OSError as error:
        tell(Word(errno=error.errno or 1))
    except BaseException as error:
        tell(Word(error=record_of(error)))
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
