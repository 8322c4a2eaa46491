"""The program that `worker_processes.py` starts: a fork server, whose forks each do one task of packing, unpacking or checking."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from . import pack_worker, unpack_worker
from .pack_client import PackTask
from .unpack_client import UnpackTask
from .worker_messages import receive

#: Modules of higher packages whose tasks the forks do, too. Each has `prepare()`, the type `TASK` of its first message, and
#: `serve(connection)`. They are imported by name, so this package does not depend on theirs.
_OTHERS = ("jupyter_gpuckpt.remote.check_worker",)


def main() -> None:
    """Fork one worker for each socket that is received on stdin; exit at EOF.

    Stdin is a socket. One byte is sent to it when everything is imported.
    """
    others = [import_module(name) for name in _OTHERS]
    for other in others:
        other.prepare()
    # Linux would discard forks that nobody reaps, and with them the processor time that they have used, which is a save's cost.
    signal.signal(signal.SIGCHLD, _reap)
    # The caller never reads the byte. So when it closes its end, this end gets ECONNRESET instead of EOF.
    with socket.socket(fileno=0) as asking, suppress(ConnectionError):
        asking.send(b"r")
        while True:
            _, received, _, _ = socket.recv_fds(asking, 1, 1)
            if not received:
                return
            with socket.socket(fileno=received[0]) as connection:
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    asking.close()
                    _serve(connection, others)


def _reap(*_: object) -> None:
    """Reap the forks that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _serve(connection: socket.socket, others: Sequence[ModuleType]) -> NoReturn:
    """Receive a task, do it, and exit; exit at once at EOF."""
    try:
        task = receive(connection, PackTask, UnpackTask, *(other.TASK for other in others))
        if isinstance(task, PackTask):
            pack_worker.serve(connection, task)
        elif isinstance(task, UnpackTask):
            unpack_worker.serve(connection, task)
        elif task is not None:
            next(other for other in others if isinstance(task, other.TASK)).serve(connection)
    finally:
        # There is nothing to clean up, and the caller waits until this process's descriptors are closed.
        os._exit(0)


if __name__ == "__main__":
    main()
