"""The caller's side of check workers: processes that decrypt, unpack and compare what a fetch from a remote has read.

Covers: starting them while the first chunks arrive, handing spans over, and the loss of a worker. Does not cover: the workers' side
(check_worker.py), starting workers (worker_processes.py), the checks (remote/checking.py).

On 16 cores four threads of one process check 1.8 GB/s of compressed data and then mostly wait for the GIL. What was received and what
was decrypted lies in memory that a worker shares with this process. The keys of packs are sent through the worker's socket.
"""

from __future__ import annotations

import logging
import mmap
import os
import queue
import threading
from collections.abc import Generator
from contextlib import suppress
from typing import Self

import msgspec

from ..errors import ErrorRecord, GpuCkptError, error_from
from ..host import commands
from ..images.worker_messages import receive, send, send_with_descriptors
from ..images.worker_processes import fork, is_ready
from ..linux.control_groups import processors
from ..linux.pwrite import pwrite_all
from ..store.writer import Record
from .checking import Checkers, CheckingThreads, Span, spans

logger = logging.getLogger(__name__)

#: The most workers, and how many processors there are for each: others are for the connections, the writes and the kernels.
_MAX_WORKERS, _PROCESSORS = 8, 2
#: With fewer workers threads are as fast.
_MIN_WORKERS = 4
#: The fewest bytes of packs that processes check, if the fork server is ready.
_MIN_BYTES_IF_READY = 64 << 20
#: The same, if the fork server has to be started: in a shorter fetch the processes would come late, and threads are faster.
_MIN_BYTES = 1 << 30
#: How many bytes of a span are checked at a time: so little memory is used again while the processor's cache still has it.
_PART_BYTES = 2 << 20
#: The length of each of the two halves of the shared memory. A part is longer than `_PART_BYTES` only if it is one chunk; threads check
#: those that are longer than this.
HALF_BYTES = _PART_BYTES + (1 << 20)


class CheckTask(msgspec.Struct, frozen=True, tag=True):
    """The first message to a worker. The descriptor of the shared memory follows."""


class CheckSpan(msgspec.Struct, frozen=True):
    """A request to check a part of a span.

    Its `length` bytes are in the first half of the shared memory. The worker writes the payloads to the second half.
    """

    name: str
    secret: bytes
    rows: bytes
    digests: bytes
    start: int
    length: int


class Checked(msgspec.Struct, frozen=True):
    """The answer to `CheckSpan`, or, without any error, that the worker is ready."""

    error: ErrorRecord | None = None


def checkers(stored_bytes: int) -> Checkers:
    """Return the checkers for packs of `stored_bytes` in all: processes where they are faster than threads."""
    workers = min(_MAX_WORKERS, processors() // _PROCESSORS)
    min_bytes = _MIN_BYTES_IF_READY if is_ready() else _MIN_BYTES
    if workers < _MIN_WORKERS or stored_bytes < min_bytes:
        return CheckingThreads()
    return CheckingProcesses(workers)


class _Worker:
    """The connection to one worker process. The constructor raises CommandFailed or OSError."""

    def __init__(self) -> None:
        descriptor = os.memfd_create("gpuckpt-fetch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, 2 * HALF_BYTES)
            self._decrypted = memoryview(mmap.mmap(descriptor, 2 * HALF_BYTES))[HALF_BYTES:]
            self._socket = fork()
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        with suppress(ConnectionError):  # `wait` reports it
            send_with_descriptors(self._socket, CheckTask(), [descriptor])

    def check(self, span: Span, data: memoryview) -> list[Record]:
        """Check a part of a span and return its records, which are valid until the next call.

        Raises OSError, and what `checking.check` raises.
        """
        # Unlike a copy to mapped memory, this does not hold the GIL.
        pwrite_all(self._descriptor, data, 0)
        pack, digests = span.pack, b"".join(span.digests)
        rows = span.rows.tobytes()
        send(
            self._socket,
            CheckSpan(pack.ref.name, pack.secret, rows, digests, span.start, len(data)),
        )
        self.wait()
        records, end = [], 0
        for digest, row in zip(span.digests, span.rows.tolist(), strict=True):
            _, _, length, raw_length, codec, *_ = row
            start, end = end, end + length
            records.append(Record(digest, self._decrypted[start:end], raw_length, codec))
        return records

    def wait(self) -> None:
        """Wait for an answer. Raises OSError if the worker has ended, or the error that it reports."""
        answer = receive(self._socket, Checked)
        if answer is None:
            raise ConnectionAbortedError("it has ended")
        if answer.error is not None:
            error = error_from(answer.error)
            # Such as a lack of memory, which is no fault of the chunks.
            if type(error) is GpuCkptError:
                raise OSError(str(error))
            raise error

    def close(self) -> None:
        """End the worker, when it has done what it is doing."""
        self._socket.close()
        os.close(self._descriptor)


class CheckingProcesses:
    """A group of workers for one fetch. Until the first is ready, and when all are lost, threads of this process check."""

    def __init__(self, count: int) -> None:
        self._count = self.elsewhere = count
        self._by_threads = CheckingThreads()
        self._lock = threading.Lock()
        self._workers: set[_Worker] = set()
        self._is_over = False
        #: Workers without a task; None when all are lost.
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        # A fetch need not wait until the fork server has started.
        threading.Thread(target=self._start, name="checkers", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
            for worker in self._workers:
                worker.close()
            self._workers.clear()

    def checked(self, span: Span, data: memoryview) -> Generator[list[Record]]:
        """Check the chunks of a span, one part after the other: see `Checkers`."""
        if not self._workers:
            yield from self._by_threads.checked(span, data)
            return
        for part in spans(span.pack, span.rows, span.digests, _PART_BYTES):
            yield from self._checked(part, data[part.start - span.start : part.end - span.start])

    def _checked(self, part: Span, data: memoryview) -> Generator[list[Record]]:
        worker = self._taken() if len(data) <= HALF_BYTES else None
        if worker is not None:
            try:
                records = worker.check(part, data)
            except OSError as error:
                self._drop(worker, error)
            except GpuCkptError:  # its answer
                self._idle.put(worker)
                raise
            except BaseException as error:
                # Its answer may still come, and must not count for another part.
                self._drop(worker, error)
                raise
            else:
                try:
                    yield records
                finally:
                    self._idle.put(worker)
                return
        yield from self._by_threads.checked(part, data)

    def _start(self) -> None:
        started: list[_Worker] = []
        try:
            while len(started) < self._count and not self._is_over:
                started.append(_Worker())
        except (commands.CommandFailed, OSError) as error:
            logger.warning("Threads check a fetch, because a process cannot be started: %s", error)
        for worker in started:
            try:
                worker.wait()
            except OSError as error:
                if not self._is_over:
                    logger.warning("A process that checks a fetch has not started: %s", error)
                worker.close()
                continue
            with self._lock:
                if self._is_over:
                    worker.close()
                    continue
                self._workers.add(worker)
            self._idle.put(worker)

    def _taken(self) -> _Worker | None:
        """Wait for a worker without a task and return it; return None if no worker is ready or left."""
        if not self._workers:
            return None
        worker = self._idle.get()
        if worker is None:
            self._idle.put(None)  # for the next that waits
        return worker

    def _drop(self, worker: _Worker, error: BaseException) -> None:
        logger.warning(
            "A process that checks a fetch has ended (%s); what it had is checked again. The machine may be short of memory.",
            error,
        )
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)
                worker.close()
            if not self._workers:
                self._idle.put(None)
