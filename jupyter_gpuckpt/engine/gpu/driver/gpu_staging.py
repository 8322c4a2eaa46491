"""Staging of GPU memory in files: the CUDA driver's staging memory is replaced by a file, so that the bytes never pass through CRIU.

Covers: replacing the driver's mmap() during Checkpoint. Does not cover: the Checkpoint itself (`cuda`), reading the files,
writing them again before a resume, unlinking them. See also: `injection/tracee.py` (how a call is injected).

During Checkpoint the driver allocates memory for everything that it takes off the GPUs by one call (with several GPUs perhaps more):
mmap(MAP_PRIVATE|MAP_ANONYMOUS|MAP_POPULATE) in the thread that GetRestoreThreadId names. Half of the Checkpoint's time goes into
zeroing small pages inside that call. So we trace that one thread meanwhile:

* At the call's entry we make a file of that size on the kernel's scratch tmpfs, from outside, and allocate it completely. If the
tmpfs is too small, this must fail now: later it would be a SIGBUS in the driver. If anything fails, the call goes on unchanged.
* Otherwise Linux is made to skip the call, and at its exit openat, mmap(MAP_SHARED), close and madvise are injected. If one of
them fails, the original mmap is injected instead. Either way the driver gets its memory.
* Several threads of ours zero the file's pages while the driver already copies into the first ones: its own page faults, one
after the other, would take longer than its copying.

That mmap is the driver's 41st call. Afterwards it makes thousands of calls, at times hundreds of thousands, while it waits for the
GPU. Tracing a call costs a tenth of a millisecond: 8 GB took 38 s instead of 2. So tracing ends soon after the mmap, and also
where none comes, as in a process without a context: its Checkpoint, traced to its end, took up to 4 s instead of 0.03.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import mmap
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from ....errors import FreezeFailed
from ....host import processes
from ....wire import stripes
from ...injection import ptrace
from ...injection.ptrace import Kind
from ...injection.tracee import Tracee
from ...tree.tree import Tree

logger = logging.getLogger(__name__)

_NR_CLOSE, _NR_MMAP, _NR_MUNMAP, _NR_MADVISE, _NR_OPENAT = 3, 9, 11, 28, 257
_AT_FDCWD = -100
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED = 0x01, 0x02, 0x10
_MAP_ANONYMOUS, _MAP_POPULATE = 0x20, 0x8000
_MADV_DONTFORK, _MADV_HUGEPAGE = 10, 14
_MADV_POPULATE_WRITE = 23  # Linux 5.14
_HUGE_PAGE = 2 << 20
#: The mode of the files; CRIU compares it at a restore.
STAGING_MODE = 0o600
#: The bytes that one thread zeroes at a time; the daemon's other threads cannot map memory meanwhile.
_PIECE = 16 << 20
#: Four threads keep ahead of the driver; more only take CPU time from it.
_ZEROING_THREADS = 4
#: The most calls of the driver's thread that are traced before its first mmap, and after each mmap to see another one.
_CALLS_BEFORE, _CALLS_AFTER = 500, 200
_LOOKS = 50
_SHORTEST_PAUSE, _LONGEST_PAUSE = 10e-6, 500e-6
_END_SECONDS = 60.0


class StagingFile(NamedTuple):
    """A file that holds GPU memory: its path in the kernel's mount namespace and its length in bytes.

    `number`: in how many files the bytes are, in stripes (`stripes.py`); `path` is that of the first.
    """

    path: str
    length: int
    number: int = 1

    @property
    def paths(self) -> list[str]:
        """The paths of all of its files."""
        return [self.path, *(further_path(self.path, number) for number in range(1, self.number))]


def further_path(path: str, number: int) -> str:
    """Return the path of file `number` (1 and up) of a set whose first file is `path`."""
    return f"{path}.{number}"


class _Replaced(NamedTuple):
    """A skipped mmap call: its six arguments and the file that replaces its memory."""

    arguments: tuple[int, ...]
    file: StagingFile


class FileStaging:
    """A tracer that puts the staging memory of a Checkpoint into files.

    Use it as `with FileStaging(...) as staging: cuda.checkpoint(pid)`. `pid` and `tid` (the restore thread) are host ids;
    `directory`, on the scratch tmpfs, is a path of the kernel's mount namespace. Every such mmap gets a new file there, owned by the
    process's user. After the block `files` lists them. The list is empty if no such call was seen, there was no room, or the thread
    could not be traced; then nothing was changed and the bytes are in private memory. When the block raises, the files are removed:
    a refused Checkpoint leaves nothing behind.

    Raises FreezeFailed at the end when the thread cannot be released.
    """

    def __init__(self, tree: Tree, pid: int, tid: int, directory: str) -> None:
        self.files: list[StagingFile] = []
        self._tree, self._pid, self._tid, self._directory = tree, pid, tid, directory
        self._zeroing = ThreadPoolExecutor(_ZEROING_THREADS, "staging")
        self._ready, self._done = threading.Event(), threading.Event()
        # A tracee belongs to one thread of the tracer, and the caller's thread is busy inside the driver's call.
        self._thread = threading.Thread(target=self._trace, name=f"staging-{tid}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join(_END_SECONDS)
        self._zeroing.shutdown(cancel_futures=True)
        if error is not None:
            self.discard()
        elif self._thread.is_alive():
            raise FreezeFailed(
                "The CUDA driver's thread in the kernel could not be released.",
                hint="The kernel's GPU work seems to hang; interrupt it and try again.",
                details=f"process {self._pid}, thread {self._tid}",
            )

    def discard(self) -> None:
        """Unlink the files; their memory is freed when nothing maps them any more."""
        while self.files:
            self._unlink(self.files.pop())

    def _trace(self) -> None:
        tracee = Tracee(self._pid, self._tid, return_frame=True)
        try:
            tracee.attach()
        except OSError as error:
            logger.info("GPU memory is staged in private memory: %s", error)
            return
        finally:
            self._ready.set()
        try:
            with suppress(ProcessLookupError):  # the process was killed; the Checkpoint fails then
                self._serve(tracee)
        finally:
            try:
                tracee.detach()
            except OSError:  # Linux detaches it when this thread ends
                logger.exception("thread %d could not be detached properly", self._tid)

    def _serve(self, tracee: Tracee) -> None:
        """Trace the thread's calls until enough were seen or the block is left; the thread is stopped on return."""
        replaced: _Replaced | None = None
        calls_left = _CALLS_BEFORE
        tracee.restart(ptrace.SYSCALL)
        while True:
            stop = self._next(tracee)
            if stop.kind is Kind.SYSCALL:
                now = ptrace.syscall_stop(tracee.tid)
                calls_left -= now.op == ptrace.SYSCALL_ENTRY
                if now.op == ptrace.SYSCALL_ENTRY and _stages(now):
                    calls_left = _CALLS_AFTER
                    replaced = self._skip(tracee, now.arguments)
                elif now.op == ptrace.SYSCALL_EXIT and replaced is not None:
                    tracee.finish(self._replace(tracee, replaced))
                    replaced = None
                if calls_left < 0:
                    return
            elif stop.kind in (Kind.TRAP, Kind.GROUP) and self._done.is_set():
                return
            # LISTEN leaves a thread stopped that the user stopped; everything else goes on.
            request = ptrace.LISTEN if stop.kind is Kind.GROUP else ptrace.SYSCALL
            tracee.restart(request, stop.signal if stop.kind is Kind.SIGNAL else 0)

    def _next(self, tracee: Tracee) -> ptrace.Stop:
        """Return the thread's next stop; once the block is left, interrupt the thread to get one.

        A blocking waitpid could not be woken when the block is left: PTRACE_INTERRUPT has to come from this very thread, a
        pidfd reports exits only, and SIGCHLD goes to the daemon's main thread. So this polls: at first without a pause, which
        serves a burst of short calls and keeps the GIL, then with pauses of a tenth of the time that the call has taken, so
        that a copy of seconds costs hardly any CPU time.
        """
        began, looks, asked = time.monotonic(), 0, False
        while (stop := tracee.poll()) is None:
            looks += 1
            if looks < _LOOKS:
                continue
            if self._done.is_set() and not asked:
                tracee.interrupt()
                asked = True
            pause = (time.monotonic() - began) / 10
            time.sleep(min(max(pause, _SHORTEST_PAUSE), _LONGEST_PAUSE))
        return stop

    def _skip(self, tracee: Tracee, arguments: tuple[int, ...]) -> _Replaced | None:
        """Make the file and let Linux skip the call; return None if the call is left unchanged."""
        try:
            file = self._make(arguments[1])
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            logger.info("GPU memory is staged in private memory: %s", error)
            return None
        try:
            tracee.skip()
        except OSError:
            self._unlink(file)
            raise
        return _Replaced(arguments, file)

    def _replace(self, tracee: Tracee, replaced: _Replaced) -> int:
        """Return the result for the skipped call: the address of the file's mapping or, if that fails, of private memory."""
        try:
            address = self._map(tracee, replaced)
        except ProcessLookupError:
            self._unlink(replaced.file)
            raise
        except OSError as error:
            logger.warning("GPU memory is staged in private memory: %s", error)
            self._unlink(replaced.file)
            try:
                return tracee.syscall(_NR_MMAP, *replaced.arguments)
            except ProcessLookupError:
                raise
            except OSError as refused:
                return -(refused.errno or 0)
        self.files.append(replaced.file)
        return address

    def _map(self, tracee: Tracee, replaced: _Replaced) -> int:
        (hint, length, protection, *_), file = replaced
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        with tracee.borrowed(os.fsencode(file.path) + b"\0") as path:
            fd = tracee.syscall(_NR_OPENAT, _AT_FDCWD, path, flags, 0)
        try:
            address = tracee.syscall(_NR_MMAP, hint, length, protection, _MAP_SHARED, fd, 0)
        finally:
            tracee.syscall(_NR_CLOSE, fd)
        try:
            # A child that is forked meanwhile would keep the file's memory allocated.
            tracee.syscall(_NR_MADVISE, address, length, _MADV_DONTFORK)
        except OSError:
            tracee.syscall(_NR_MUNMAP, address, length)
            raise
        with suppress(OSError):  # without huge pages it is slower, but correct
            tracee.syscall(_NR_MADVISE, address, length, _MADV_HUGEPAGE)
        return address

    def _make(self, length: int) -> StagingFile:
        """Make a new file of at least `length` bytes, all of them allocated."""
        prefix = f"{self._directory}/gpu-{processes.nspid(self._pid)}"
        whole = -(-length // _HUGE_PAGE) * _HUGE_PAGE
        for number in itertools.count():
            path = f"{prefix}-{number}"
            try:
                fd = _create(self._tree, self._pid, path, whole)
            except FileExistsError:  # from an earlier call or resume
                continue
            file = StagingFile(path, whole)
            try:
                os.posix_fallocate(fd, 0, whole)
                _zero(fd, whole, self._zeroing)
            except BaseException:
                self._unlink(file)
                raise
            finally:
                os.close(fd)
            return file
        raise AssertionError("unreachable")

    def _outside(self, file: StagingFile) -> Path:
        return self._tree.inside(file.path)

    def _unlink(self, file: StagingFile) -> None:
        with suppress(OSError):
            self._outside(file).unlink()


@contextmanager
def striped(tree: Tree, pid: int, file: StagingFile) -> Iterator[list[int]]:
    """Create files into which the ferry library writes a process's GPU memory; yield their descriptors.

    They have no pages yet: the library writes whole stripes, so that Linux need not zero them. An exception in the block removes the
    files. Raises OSError.
    """
    lengths = stripes.file_lengths(file.length, file.number)
    with ExitStack() as closing, ExitStack() as undo:
        descriptors = []
        for each, size in zip(file.paths, lengths, strict=True):
            fd = _create(tree, pid, each, size)
            closing.callback(os.close, fd)
            undo.callback(tree.inside(each).unlink, missing_ok=True)
            descriptors.append(fd)
        yield descriptors
        undo.pop_all()


def _create(tree: Tree, pid: int, path: str, length: int) -> int:
    """Create a file of this length without pages, owned by the process's user; return its descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(tree.inside(path), flags, STAGING_MODE)
    try:
        owner = Path(f"/proc/{pid}").stat()
        os.fchown(fd, owner.st_uid, owner.st_gid)
        os.fchmod(fd, STAGING_MODE)
        # The size is set first: a tmpfs allocates huge pages only below it (mm/shmem.c, huge=within_size).
        os.ftruncate(fd, length)
    except BaseException:
        os.close(fd)
        with suppress(OSError):
            tree.inside(path).unlink()
        raise
    return fd


def _zero(fd: int, length: int, zeroing: ThreadPoolExecutor) -> None:
    """Let threads zero the pages, in the order in which the driver will write to them.

    Allocated pages are zeroed at their first use (mm/shmem.c). If no thread can be started, the driver's page faults do it.
    """
    mapped = mmap.mmap(fd, length)
    first = ctypes.c_char.from_buffer(mapped)  # it keeps the mapping while threads use it

    def zero(at: int) -> None:
        size = min(_PIECE, length - at)
        _libc().madvise(ctypes.addressof(first) + at, size, _MADV_POPULATE_WRITE)

    for at in range(0, length, _PIECE):
        zeroing.submit(zero, at)


@cache
def _libc() -> ctypes.CDLL:
    # CDLL releases the GIL during a call; mmap.madvise would keep it while Linux zeroes pages.
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _stages(call: ptrace.SyscallStop) -> bool:
    """Return whether this is the driver's call for staging memory: no other call populates so much private memory at once."""
    if call.number != _NR_MMAP:
        return False
    _, length, _, flags, *_ = call.arguments
    wanted = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_POPULATE
    return length >= _HUGE_PAGE and flags & (wanted | _MAP_FIXED) == wanted
