"""A hold on the threads of a process, except those in which the CUDA driver and the ferry library work while no user code runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Self

from ...errors import CheckpointError
from ...host import processes
from .tracee import Tracee

_ROUNDS = 1000


class ThreadsHeld:
    """A hold on every thread of `pid` but `except_tids`, while the `with` block lasts.

    If a process in state T gets SIGCONT meanwhile, the held threads stay where they are (a traced task does not see it), the
    others run, and at the end all run; without SIGCONT they are stopped (T) as before. Threads that appear while
    the block is entered are held, too, but not threads that `except_tids` make later; threads that end are forgotten. Not
    thread-safe: one thread must enter and leave the block (`Tracee` asserts it). If that thread ends in between, Linux
    releases all. `options` and `return_frame`: as in `Tracee`.

    Raises CheckpointError when a thread cannot be stopped (another tracer has it, a right is missing, it is stuck in a device);
    those that were stopped are released.
    """

    def __init__(
        self,
        pid: int,
        *except_tids: int,
        options: int = 0,
        return_frame: bool = False,
    ) -> None:
        self.pid = pid
        self._except_tids = except_tids
        self._options, self._return_frame = options, return_frame
        self._held: dict[int, Tracee] = {}

    def __enter__(self) -> Self:
        with ExitStack() as rollback:
            rollback.callback(self.release)
            self._hold_all()
            rollback.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    @property
    def was_stopped(self) -> bool:
        """Whether the process was stopped (T) when its threads were held."""
        return any(tracee.was_stopped for tracee in self._held.values())

    @property
    def tids(self) -> list[int]:
        """Ids of the held threads."""
        return sorted(self._held)

    def tracee(self) -> Tracee:
        """Return a held thread into which calls can be injected: the main thread if it lives."""
        return self._held[min(self._held)]

    def tracees(self) -> list[Tracee]:
        """Return all held threads, by id."""
        return [self._held[tid] for tid in self.tids]

    def release(self) -> None:
        """Release all threads; a second call does nothing."""
        with ExitStack() as all_of_them:
            while self._held:
                _, tracee = self._held.popitem()
                # This does not wait for state T, which never comes after a SIGCONT.
                all_of_them.callback(tracee.detach, wait=False)

    def kill(self) -> None:
        """Kill the process by SIGKILL and reap the held threads, the main one last, as Linux does. Raises OSError if one does not end."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        for tid in sorted(self._held, key=lambda tid: tid == self.pid):
            self._held.pop(tid).kill()

    def _hold_all(self) -> None:
        """Hold threads until no new one is found: a thread may create another one before it is held."""
        gone: set[int] = set()
        for _ in range(_ROUNDS):
            known = {*self._held, *gone, *self._except_tids}
            new = [tid for tid in processes.threads(self.pid) if tid not in known]
            if not new:
                return
            for tid in new:
                tracee = Tracee(
                    self.pid, tid, options=self._options, return_frame=self._return_frame
                )
                with self._forgotten_if_gone(tid, gone):
                    tracee.begin_attach()
                    self._held[tid] = tracee
            for tid in [tid for tid in new if tid in self._held]:
                with self._forgotten_if_gone(tid, gone):
                    self._held[tid].end_attach()
        raise self._failed(OSError("it makes threads faster than they can be stopped"))

    @contextmanager
    def _forgotten_if_gone(self, tid: int, gone: set[int]) -> Iterator[None]:
        try:
            yield
        except ProcessLookupError:
            self._held.pop(tid, None)
            gone.add(tid)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            "The threads of a process could not be stopped.",
            hint="Detach debuggers from it; run `jupyter gpuckpt doctor` for missing rights.",
            details=f"process {self.pid}: {error}",
        )
