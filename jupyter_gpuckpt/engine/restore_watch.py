"""The watch over a running `criu restore`: it ends a restore that makes no progress."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from ..host import processes
from ..wire.progress import Progress
from .criu import log_causes as criu_log

#: How long a restore that has logged an error may take to make progress or to end.
_ERROR_SECONDS = 5.0


class RestoreWatch:
    """A watcher that kills a restore without progress: `criu restore` has no timeout of its own and can hang for ever.

    The restore gets less time when CRIU has logged an error: other tasks may wait for ever for one that failed.
    """

    def __init__(
        self, init_pid: int, progress: Progress, log: Path, *, stall_seconds: float
    ) -> None:
        self._init, self._progress, self._log = init_pid, progress, log
        self._seconds = stall_seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="restore-watch", daemon=True)
        self.killed = False
        #: The diagnosis of CRIU's log, read before the kill: the log disappears with init's mount namespace.
        self.diagnosis: criu_log.Diagnosis | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        ticks, since = self._ticks(), time.monotonic()
        while not self._end.wait(0.25):
            if (now := self._ticks()) != ticks:
                ticks, since = now, time.monotonic()
            elif self._is_stalled(time.monotonic() - since):
                self.diagnosis = criu_log.diagnose(
                    self._log, fallback="The restore made no progress and was given up."
                )
                self.killed = True
                with suppress(ProcessLookupError):
                    os.kill(self._init, signal.SIGKILL)
                return

    def _is_stalled(self, seconds: float) -> bool:
        return seconds > self._seconds or (
            seconds > min(_ERROR_SECONDS, self._seconds) and criu_log.has_errors(self._log)
        )

    def _ticks(self) -> int:
        # CRIU's own work, including its reading, is visible only as CPU time.
        ticks = self._progress.ticks
        with suppress(OSError):  # no file can be opened
            ticks += processes.processor_ticks(self._init)
        return ticks
