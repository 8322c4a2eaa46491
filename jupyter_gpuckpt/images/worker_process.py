"""The program behind `worker_processes`: a process that waits and makes others of itself, which do what they are told."""

from __future__ import annotations

import os
import signal
import socket
from typing import NoReturn

from . import pack_process, unpack_process
from .pack_processes import PackTask
from .unpack_processes import UnpackTask
from .worker_processes import hear


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
    """Do the task that comes, if one does, and end."""
    try:
        task = hear(connection, PackTask, UnpackTask)
        if isinstance(task, PackTask):
            pack_process.serve(connection, task)
        elif isinstance(task, UnpackTask):
            unpack_process.serve(connection, task)
    finally:
        # Nothing is to be tidied up, and whoever waits for us waits for our descriptors to close.
        os._exit(0)


if __name__ == "__main__":
    main()
