"""The trial of the engine on a small program: launch, the system calls of a save, suspend, resume.

Rights, filters, limits and security modules have too many combinations to predict the result from settings. If a small program can
be saved and resumed, kernels can: it holds what every kernel holds. Otherwise kernels are started without the engine, and the check
reports the failed step, its cause and the fix. The trial takes about 0.4 s; the daemon remembers a success until the next boot
(`daemon.host_report`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ..engine.settings import EngineSettings
from ..engine.tree import launch, user_namespaces
from ..engine.tree.tree import Tree
from ..errors import (
    CheckpointError,
    GpuCkptError,
    HostIncompatible,
    LimitReached,
    StoreError,
    StoreFull,
)
from ..host import doctor_remedies, privileges
from ..linux.disk_reserve import free_bytes
from ..linux.file_locks import holding, is_locked
from ..store.local import LocalStore
from ..wire.manifest_records import LaunchSpec, SaveOptions
from ..wire.progress import Progress
from ..wire.protocol import Check
from .resume import resume
from .save import save

#: The program's exit statuses: after the signal that ends it, if no signal comes, and if something that it holds does not work.
_SIGNALED, _TIMED_OUT, _BROKEN = 77, 78, 79
#: The time after which the program ends by itself, in case the daemon is gone.
_LIFE_SECONDS = 120
#: The timeouts of the program's messages and of CRIU's progress. A client waits half a minute for a daemon.
_SECONDS, _STALL_SECONDS = 12, 7
_WORK_MILLISECONDS = 5000
#: With less free space on the disk the program's output could be missing as well as its snapshot.
_DISK_BYTES = 16 << 20
_PREFIX = "trial-"
#: The file with the exit status of the program before it is suspended.
_EXIT = "exit-1"
_HELD = "sockets, connections, threads and a terminal"
#: ZeroMQ's sockets bring threads, eventfds, epolls, a listening TCP socket and a connection of the program to itself. All that the
#: program holds is used again after the resume.
_PROGRAM = f"""
import os, signal, sys
# Threads inherit the mask, so this comes first. Otherwise a signal just after the resume, before the main thread waits for it,
# kills the program.
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGUSR1}})
sys.path.append(sys.argv[1])
import zmq
server, client = map(zmq.Context().socket, (zmq.PULL, zmq.PUSH))
port = server.bind_to_random_port("tcp://127.0.0.1")
client.connect(f"tcp://127.0.0.1:{{port}}")
program_end, terminal_end = os.openpty()
def work():
    client.send(b"message")
    if not server.poll({_WORK_MILLISECONDS}):
        raise TimeoutError("its sockets of ZeroMQ passed no message")
    server.recv()
    os.write(terminal_end, b"line")
    if os.read(program_end, 9) != b"line":
        raise OSError("its terminal passed other bytes")
work()
print("ready", port, flush=True)
status = {_SIGNALED} if signal.sigtimedwait({{signal.SIGUSR1}}, {_LIFE_SECONDS}) else {_TIMED_OUT}
try:
    work()
except Exception as error:
    print(error, flush=True)
    status = {_BROKEN}
os._exit(status)  # ZeroMQ waits for messages otherwise
"""


def checks(settings: EngineSettings, directory: Path) -> Iterator[Check]:
    """Yield the result of each step, up to the first that failed. Temporary files are in `directory`.

    A step that failed for lack of memory or disk space shows nothing about this machine's rights and fails no check.
    """
    step = "namespaces"
    try:
        with _scratch(directory) as scratch, _subjects() as trees:
            settings = msgspec.structs.replace(
                settings, spill_dir=scratch / "spill", stall_seconds=_STALL_SECONDS
            )
            spec = _spec(scratch)
            tree = launch.launch(spec, settings, scratch / _EXIT)
            trees.append(tree)
            yield Check(step, True, _namespaces(tree), required=True)
            step = "start"
            port = _port(scratch)
            step = "system calls"
            yield (tried := _system_calls(tree))
            if tried.ok is False:
                return
            step, store = "suspend", LocalStore(scratch / "store")
            try:
                with _connect(port):
                    saved = save(
                        tree, spec, store, settings, SaveOptions(stop=True), progress=Progress()
                    ).manifest
                yield Check(
                    step, True, f"A small program with {_HELD} was suspended.", required=True
                )
                step = "resume"
                exit_path = scratch / "exit-2"
                trees.append(
                    resume(saved, store, settings, exit_path=exit_path, progress=Progress()).tree
                )
            finally:
                store.close()
            with _connect(port), suppress(ProcessLookupError):
                os.kill(trees[-1].kernel_pid, signal.SIGUSR1)
            _wait(exit_path.exists)
            status = os.waitstatus_to_exitcode(int(exit_path.read_text()))
            if status != _SIGNALED:
                raise CheckpointError(f"It ended with status {status} ({_last_line(scratch)}).")
            yield Check(step, True, f"It was resumed and ran on{_as_whom()}.", required=True)
    except (StoreError, HostIncompatible, OSError) as error:
        yield Check(step, None, f"Could not be tried: {error}")
    except GpuCkptError as error:
        yield _failure(step, error)


_LOST = {
    "namespaces": "Linux refused a namespace that kernels need",
    "start": "A small program could not be started",
    "system calls": "Linux refused system calls that a save needs",
    "suspend": "A small program could not be suspended",
    "resume": "A small program was suspended, but could not be resumed",
}


def _failure(step: str, error: GpuCkptError) -> Check:
    if isinstance(error, LimitReached):
        fix = doctor_remedies.find(error.details).fix
        return Check(step, False, error.message, fix, required=True)
    cause = f": {error.message}" if step != "namespaces" else f" ({_refused(error)})."
    remedy = doctor_remedies.find(cause)
    message = f"{_LOST[step]}{cause} {remedy.why}".rstrip()
    return Check(step, False, message, remedy.fix, required=True)


def _refused(error: GpuCkptError) -> str:
    """Return the failed step of gpuckpt-init with Linux's reason, from the parentheses of the error's message."""
    _, _, rest = error.message.partition("(")
    return rest.rpartition(")")[0] or error.message


def _system_calls(tree: Tree) -> Check:
    answers = privileges.attempts(tree.kernel_pid)
    refused = [f"{name} ({error})" for name, error in answers.items() if error]
    if not refused:
        return Check("system calls", True, f"Allowed: {', '.join(answers)}.", required=True)
    remedy = doctor_remedies.find()
    message = f"{_LOST['system calls']}: {', '.join(refused)}. {remedy.why}".rstrip()
    return Check("system calls", False, message, remedy.fix, required=True)


def _namespaces(tree: Tree) -> str:
    own = " and a user namespace" if user_namespaces.has_own(tree.init_pid) else ""
    return f"Kernels get PID, mount and time namespaces{own}."


def _as_whom() -> str:
    return "" if os.geteuid() == 0 else f"; this works as an ordinary user (uid {os.geteuid()})"


def _folder_of_zeromq() -> str:
    """Return the folder of the package `zmq`, which kernels use. Only the program imports it: it would take memory in the daemon."""
    found = importlib.util.find_spec("zmq")
    if found is None or found.origin is None:
        raise CheckpointError("The Python package pyzmq is missing.")
    return str(Path(found.origin).parents[1])


def _spec(scratch: Path) -> LaunchSpec:
    return LaunchSpec(
        kernel_id="trial",
        argv=[sys.executable, "-I", "-S", "-c", _PROGRAM, _folder_of_zeromq()],
        env=dict(os.environ),
        cwd=str(scratch),
        log_path=str(scratch / "log"),
    )


def _port(scratch: Path) -> int:
    """Return the port of the program's own socket, when it holds everything."""
    log, exit_path = scratch / "log", scratch / _EXIT
    _wait(lambda: exit_path.exists() or (log.exists() and "ready" in log.read_text()))
    ready, _, port = _last_line(scratch).partition(" ")
    if ready != "ready":
        raise CheckpointError(f"It ended ({_last_line(scratch)}).")
    return int(port)


def _last_line(scratch: Path) -> str:
    return (scratch / "log").read_text().rpartition("\n")[0].rpartition("\n")[2]


def _wait(done: Callable[[], bool]) -> None:
    if not launch.wait_until(done, timeout=_SECONDS):
        raise CheckpointError(f"It did nothing for {_SECONDS} s.")


def _connect(port: int) -> socket.socket:
    """Return a connection to the program's socket, like a server's to a kernel. Raises CheckpointError if it cannot be made."""
    try:
        connection = socket.create_connection(("127.0.0.1", port), _SECONDS)
        connection.recv(1)  # ZeroMQ has accepted the connection when it sends its greeting
    except OSError as error:
        raise CheckpointError(f"Its socket answers no connection ({error}).") from error
    return connection


@contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory for the trial, and remove those of killed trials. Raises StoreFull if there is no room for one."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (free := free_bytes(directory)) < _DISK_BYTES:
        raise StoreFull(f"The disk is full: {free >> 20} MB are free in {directory}.")
    for left in directory.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            is_old = time.time() - left.stat().st_mtime > 10 * _LIFE_SECONDS
            # The lock shows that a trial runs, whatever the time of day is.
            if is_old and not is_locked(left):
                shutil.rmtree(left, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(
            prefix=_PREFIX, dir=directory, ignore_cleanup_errors=True
        ) as made,
        holding(Path(made)),
    ):
        yield Path(made)


@contextmanager
def _subjects() -> Iterator[list[Tree]]:
    """Yield a list for started trees, and kill all of them at the end."""
    trees: list[Tree] = []
    try:
        yield trees
    finally:
        for tree in trees:
            launch.kill(tree)
