"""The program that `worker_processes.py` starts: a fork server, whose forks each do one task of packing, unpacking or checking."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from typing import NoReturn

from ..remote import check_worker
from ..remote.check_client import CheckTask
from . import pack_worker, unpack_worker
from .pack_client import PackTask
from .unpack_client import UnpackTask
from .worker_messages import receive


def main() -> None:
    """Fork one worker for each socket that is received on stdin; exit at EOF.

    Stdin is a socket. One byte is sent to it when everything is imported.
    """
    check_worker.prepare()
    # The forks need not be reaped: Linux discards them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # The caller never reads the byte. So when it closes its end, this end gets ECONNRESET instead of EOF.
    with socket.socket(fileno=0) as asking, suppress(ConnectionError):
        asking.send(b"r")
        while True:
            _, received, _, _ = socket.recv_fds(asking, 1, 1)
            if not received:
                return
            with socket.socket(fileno=received[0]) as connection:
                if os.fork() == 0:
                    asking.close()
                    _serve(connection)


def _serve(connection: socket.socket) -> NoReturn:
    """Receive a task, do it, and exit; exit at once at EOF."""
    try:
        task = receive(connection, PackTask, UnpackTask, CheckTask)
        if isinstance(task, PackTask):
            pack_worker.serve(connection, task)
        elif isinstance(task, UnpackTask):
            unpack_worker.serve(connection, task)
        elif isinstance(task, CheckTask):
            check_worker.serve(connection)
    finally:
        # There is nothing to clean up, and the caller waits until this process's descriptors are closed.
        os._exit(0)


if __name__ == "__main__":
    main()
