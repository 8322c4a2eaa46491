"""Worker processes, forked from a server, because more than a handful of threads of one process mostly wait for the GIL.

Covers: starting the fork server, requesting a worker. Does not cover: the server's program (fork_server.py), messages to a worker
(worker_messages.py), the work (pack_worker.py, unpack_worker.py).
"""

from __future__ import annotations

import logging
import os
import resource
import select
import socket
import subprocess
import threading
import weakref

from ..host import commands, own_programs, processes

logger = logging.getLogger(__name__)

#: Below this number of processes, or of bytes, threads do the work.
_MIN_PROCESSES = 2
_MIN_BYTES = 512 << 20
#: With many threads fewer bytes suffice, because threads wait for the GIL: so many in any case, and so many times the number of threads.
_MIN_BYTES_WITH_MANY = 128 << 20
_MIN_BYTES_TIMES_PROCESSES = 2 << 30
#: A process that forks should have no other threads; numpy's library starts some by default.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def worth_it(raw_bytes: int, threads: int) -> bool:
    """Return whether processes are faster than threads at reading or writing this many bytes."""
    if threads < _MIN_PROCESSES:
        return False
    enough = max(_MIN_BYTES_WITH_MANY, _MIN_BYTES_TIMES_PROCESSES // threads)
    return raw_bytes >= min(_MIN_BYTES, enough)


class _ForkServer:
    """A handle of the fork server, which has all modules imported: starting Python takes longer than filling a GB.

    The server is started when it is first needed, restarted after it was lost, and ends with this process. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def fork(self) -> socket.socket:
        """Return a socket with a new worker at its other end."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                try:
                    self._ask(theirs)
                except OSError:  # the server was lost
                    self._drop()
                    self._ask(theirs)
        except BaseException:
            ours.close()
            raise
        return ours

    def _ask(self, theirs: socket.socket) -> None:
        socket.send_fds(self._started(), [b"f"], [theirs.fileno()])

    def warm_up(self) -> None:
        """Start the server unless it runs."""
        with self._lock:
            self._started()

    @property
    def is_ready(self) -> bool:
        """Whether the server runs and has imported everything."""
        with self._lock:
            if self._socket is None:
                return False
            poll = select.poll()
            poll.register(self._socket, select.POLLIN | select.POLLRDHUP)
            # The server sends one byte, which is never read.
            return poll.poll(0) == [(self._socket.fileno(), select.POLLIN)]

    @property
    def pid(self) -> int | None:
        """The server's process id; None if it was not started yet, or was lost."""
        return self._process.pid if self._process else None

    def _started(self) -> socket.socket:
        if self._socket is None:
            ours, theirs = socket.socketpair()
            with theirs:
                environment = {**os.environ, **_ONE_THREAD}
                self._process = own_programs.spawn(
                    f"{__package__}.fork_server", stdin=theirs.fileno(), env=environment
                )
            self._socket = ours
            # The finalizer also runs when the interpreter exits.
            self._end = weakref.finalize(self, _stop, ours, self._process)
        return self._socket

    def _drop(self) -> None:
        if self._socket is not None:
            self._end()
        self._socket = self._process = None


def _stop(ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
    ours.close()
    commands.stop(process)


_fork_server = _ForkServer()


def fork() -> socket.socket:
    """Return a socket with a new worker at its other end; the worker ends when the socket is closed.

    Raises CommandFailed or OSError if none can be started.
    """
    return _fork_server.fork()


def is_ready() -> bool:
    """Return whether the fork server can fork at once."""
    return _fork_server.is_ready


def processor_seconds() -> float:
    """Return the processor time of this process and of all its workers until now, in seconds."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    seconds = own.ru_utime + own.ru_stime
    pid = _fork_server.pid
    return seconds if pid is None else seconds + processes.processor_seconds(pid)


def warm_up(raw_bytes: int, threads: int) -> None:
    """Start the fork server if an operation of this size would use it; never raises."""
    if worth_it(raw_bytes, threads):
        try:
            _fork_server.warm_up()
        except (commands.CommandFailed, OSError) as error:
            logger.warning("no worker processes; threads write and read snapshots: %s", error)
