"""The only module that runs other programs, with the same rules for all of them.

Covers: argv lists only, never a shell; a clean environment unless one is given; stdin empty unless
given; every program in a session of its own; a deadline that the caller has to name; the whole
process group killed when the deadline passes; every child reaped.

Does not cover: how a kernel is started (`engine.tree.launch` decides descriptors and environment and
calls `spawn`).
"""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

logger = logging.getLogger(__name__)

Argv = Sequence[str | os.PathLike[str]]

#: Variables that programs get when the caller passes no environment. LD_LIBRARY_PATH and similar ones
#: are left out on purpose: a system tool must not load the libraries of a user's environment.
INHERITED = ("HOME", "TMPDIR", "USER", "LOGNAME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME")

#: An ordinary user's PATH lacks the folders of root's tools, where CRIU lies.
ADMINISTRATION_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin")

TAIL_BYTES = 16 * 1024
REAP_SECONDS = 5.0


class CommandFailed(Exception):  # noqa: N818 - an event of the host layer, not an error for users
    """A program that could not be run, failed or passed its deadline.

    Internal: the caller, which knows the program's purpose, turns it into one of `jupyter_gpuckpt.errors`.
    `program` is argv[0] (other arguments may be secret), `returncode` is as in `subprocess` (126
    and 127 when it could not be started, as in shells), `tail` the end of its stderr.
    """

    def __init__(
        self, program: str, returncode: int, tail: str = "", *, timed_out: bool = False
    ) -> None:
        self.program, self.returncode = program, returncode
        self.tail, self.timed_out = tail, timed_out
        super().__init__(f"{program} {self._ending()}" + (f": {tail}" if tail else ""))

    def _ending(self) -> str:
        return "took too long and was killed" if self.timed_out else ending(self.returncode)


class Completed(NamedTuple):
    """The result of a program: all of its stdout, the end of its stderr, and how long it took."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float


def run(
    argv: Argv,
    *,
    timeout: float | None,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    input: bytes | None = None,  # noqa: A002 - the name that subprocess.run uses
    check: bool = True,
    cwd: str | os.PathLike[str] | None = None,
) -> Completed:
    """Run a program to its end and return its output.

    This returns when the program itself ends, even if children that it left behind still hold its stdout.
    `timeout` is in seconds; None means no deadline and has to be passed explicitly. `env` replaces the
    environment; None gives `environment()`.

    Raises `CommandFailed` when the program cannot be started or passes its deadline, and, unless
    `check` is False, when its status is not 0. Thread-safe.
    """
    program, began = os.fspath(argv[0]), time.monotonic()
    # Files in memory instead of pipes: nothing has to be read while the program runs, so there
    # is no thread, no deadlock, and no wait for an EOF that a daemonized child would delay.
    with _memory_file(input or b"") as stdin, _memory_file() as stdout, _memory_file() as stderr:
        process = spawn(
            argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            env=env,
            cwd=cwd,
        )
        try:
            status = wait(process, timeout)
        except BaseException:
            stop(process)
            raise
        if status is None:
            stop(process)
            raise CommandFailed(program, -signal.SIGKILL, _tail(stderr), timed_out=True)
        seconds = time.monotonic() - began
        completed = Completed(status, _all(stdout), _tail(stderr), seconds)
    logger.debug("%s ended with status %d after %.3f s", program, status, seconds)
    if check and status:
        raise CommandFailed(program, status, completed.stderr or completed.stdout[-TAIL_BYTES:])
    return completed


def spawn(
    argv: Argv,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program and return at once; the caller owns it: `wait` for it or `stop` it.

    The program leads a session and a process group of its own (pgid = pid).
    Other arguments as in `run`; raises `CommandFailed` when it cannot be started.
    """
    program = os.fspath(argv[0])
    try:
        return subprocess.Popen(  # noqa: S603 - an argv list, no shell: this module's purpose
            [os.fspath(argument) for argument in argv],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(pass_fds),
            env=environment() if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        returncode = 127 if error.errno == errno.ENOENT else 126
        raise CommandFailed(program, returncode, error.strerror or str(error)) from error


def wait(process: subprocess.Popen[bytes], timeout: float | None) -> int | None:
    """Wait for the program, reap it and return its status; None when `timeout` seconds pass first.

    Unlike `Popen.wait` it wakes at once when the program ends, without polling.
    """
    if process.returncode is None and timeout is not None:
        try:
            with watched(process) as ended:
                poll = select.poll()
                poll.register(ended, select.POLLIN)
                if not poll.poll(max(0, int(timeout * 1000))):
                    return None
        except OSError:  # out of descriptors: polling is slower, but correct
            try:
                return process.wait(timeout)
            except subprocess.TimeoutExpired:
                return None
    return process.wait()


@contextmanager
def watched(process: subprocess.Popen[bytes]) -> Iterator[int]:
    """Yield a descriptor that is readable when the program has ended; the program is not reaped, so its group can still be killed."""
    pidfd = os.pidfd_open(process.pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def stop(process: subprocess.Popen[bytes]) -> int:
    """Kill the program's whole process group, reap the program and return its status; do nothing if it was reaped before.

    Processes that the program left in its group are killed even if it has ended itself. This returns when the program is gone, or
    else after a few seconds: a background thread reaps a process in uninterruptible sleep when that finally ends.
    """
    if process.returncode is not None:
        return process.returncode
    # It is not reaped yet, so the pid is still its own even if it has ended.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
    status = wait(process, REAP_SECONDS)
    if status is None:
        logger.warning("process %d does not end after SIGKILL", process.pid)
        threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
        return -signal.SIGKILL
    return status


class ErrorOutput:
    """A file in memory for a spawned program's standard error; the end of the text is kept.

    Pass `descriptor` to `spawn` as `stderr`. Unlike a pipe, a file does not have to be read while the program runs, and children
    that it leaves behind delay no reader. Call `close` at the end; `text` stays available.
    """

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("stderr", os.MFD_CLOEXEC)
        self._text = ""

    def text(self) -> str:
        """Return the text that was written so far, at most the last `TAIL_BYTES` bytes."""
        if self.descriptor >= 0:
            self._text = _tail(self.descriptor)
        return self._text

    def close(self) -> None:
        """Release the memory; may be called again."""
        if self.descriptor >= 0:
            self.text()
            os.close(self.descriptor)
            self.descriptor = -1


def ending(status: int) -> str:
    """Describe a return code of `subprocess`: "ended with status 1", "was ended by signal 9", "could not be run"."""
    if status < 0:
        return f"was ended by signal {-status}"
    if status in {126, 127}:
        return "could not be run"
    return f"ended with status {status}"


def environment() -> dict[str, str]:
    """Return the environment for programs whose caller passes none: messages in English, PATH with sbin."""
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return kept | {"PATH": search_path(), "LC_ALL": "C.UTF-8"}


def search_path() -> str:
    """Return the search path for programs: PATH, then the folders of administrators' tools."""
    here = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder]
    return os.pathsep.join(here + [folder for folder in ADMINISTRATION_PATH if folder not in here])


@contextmanager
def _memory_file(content: bytes = b"") -> Iterator[int]:
    """Yield the descriptor of an anonymous file in memory."""
    fd = os.memfd_create("command", os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _all(fd: int) -> str:
    # The file offset is shared with the program, and pread does not change it.
    return os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "replace")


def _tail(fd: int) -> str:
    size = os.fstat(fd).st_size
    start = max(0, size - TAIL_BYTES)
    text = os.pread(fd, size - start, start).decode("utf-8", "replace")
    return text.strip() if start == 0 else "... " + text.strip()
