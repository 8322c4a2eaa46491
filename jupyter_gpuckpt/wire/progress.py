"""The progress of an operation, for the UI, events, metrics and logs.

The operation's code calls `Progress.stage()` and `advance()`; clients that follow it get `ProgressRecord`s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

import msgspec

from ..errors import OperationCancelled


class Stage(StrEnum):
    """The stages of all operations, as users see them."""

    PREFLIGHT = "preflight"
    GPU_LOCK = "waiting for gpu work"
    GPU_CHECKPOINT = "gpu checkpoint"
    GPU_RELEASE = "gpu release"
    FREEZE = "freeze"
    CAPTURE = "capture"
    THAW = "thaw"
    STORE = "store"
    REHEARSAL = "rehearsal"
    COMMIT = "commit"
    STOP = "stop"
    NAMESPACES = "namespaces"
    IMAGES = "images"
    RESTORE = "restore"
    PAGES = "pages"
    AUDIT = "audit"
    GPU_FILES = "gpu files"
    GPU_RESTORE = "gpu restore"
    LET_GO = "let go"
    FETCH = "fetch"
    UPLOAD = "upload"
    RELEASE = "release"


_GPU_STAGES = (Stage.GPU_LOCK, Stage.GPU_CHECKPOINT, Stage.GPU_RELEASE)
#: The stages of each operation, in order of entry; those of the GPU only if one is used. Every step that can be interrupted must be
#: in a stage, because the tests kill the daemon at the end of each.
SAVE_STAGES = (
    Stage.PREFLIGHT,
    *_GPU_STAGES,
    Stage.FREEZE,
    Stage.CAPTURE,
    Stage.THAW,
    Stage.GPU_RESTORE,
    Stage.STORE,
    Stage.REHEARSAL,
    Stage.COMMIT,
)
SUSPEND_STAGES = (
    Stage.PREFLIGHT,
    *_GPU_STAGES,
    Stage.FREEZE,
    Stage.CAPTURE,
    Stage.STORE,
    Stage.REHEARSAL,
    Stage.COMMIT,
    Stage.STOP,
)
RESUME_STAGES = (
    Stage.PREFLIGHT,
    Stage.NAMESPACES,
    Stage.IMAGES,
    Stage.RESTORE,
    Stage.PAGES,
    Stage.AUDIT,
    Stage.GPU_FILES,
    Stage.GPU_RESTORE,
    Stage.LET_GO,
)


class ProgressRecord(msgspec.Struct, frozen=True):
    """The progress of an operation. Sizes are in bytes, times in seconds."""

    stage: str = ""
    done_bytes: int = 0
    total_bytes: int | None = None
    seconds: float = 0.0


class Progress:
    """A counter of one operation's work; thread-safe.

    `listener` is called with a record at every stage and at most every `interval` seconds while bytes advance.
    `cancel()` makes the next `stage()`, `advance()` or `check()` raise `OperationCancelled`, until `point_of_no_return()`.
    """

    def __init__(
        self,
        listener: Callable[[ProgressRecord], None] = lambda record: None,
        *,
        interval: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener, self._interval, self._clock = listener, interval, clock
        self._lock = threading.Lock()
        self._start = self._last = clock()
        self._stage = ""
        self._done = 0
        self._total: int | None = None
        self._committed = False
        #: Set when the operation is canceled, to wake waiting threads.
        self.cancelled = threading.Event()
        #: Seconds spent in each stage, in order of first entry.
        self.seconds_by_stage: dict[str, float] = {}
        #: A counter that grows with any progress; watchdogs read it to detect a stall.
        self.ticks = 0

    @contextmanager
    def stage(
        self,
        stage: Stage,
        total_bytes: int | None = None,
        *,
        done_bytes: int = 0,
        undo: bool = False,
    ) -> Iterator[None]:
        """Enter a stage for the block; its seconds are recorded even if it fails. An `undo` stage ignores cancellation.

        `done_bytes`: the part of the total that an earlier block of the same stage has done.
        """
        if not undo:
            self.check()
        name, began = str(stage), self._clock()
        with self._lock:
            outer = (self._stage, self._done, self._total)
            self._stage, self._done, self._total = name, done_bytes, total_bytes
        self._tell(force=True)
        try:
            yield
        finally:
            spent = self._clock() - began
            with self._lock:
                self.seconds_by_stage[name] = self.seconds_by_stage.get(name, 0.0) + spent
                self._stage, self._done, self._total = outer

    def advance(self, count_bytes: int) -> None:
        """Add `count_bytes` to the work done."""
        self.check()
        with self._lock:
            self._done += count_bytes
        self._tell()

    def reach(self, done_bytes: int, total_bytes: int) -> None:
        """Set work done and total of the current stage, whose total was not known at its beginning."""
        self.check()
        with self._lock:
            self._done, self._total = done_bytes, total_bytes
        self._tell()

    def record(self) -> ProgressRecord:
        """Return the current progress."""
        with self._lock:
            return ProgressRecord(self._stage, self._done, self._total, self._clock() - self._start)

    def cancel(self) -> bool:
        """Ask the operation to stop and undo its work; return False after its point of no return."""
        with self._lock:
            if not self._committed:
                self.cancelled.set()
            return self.cancelled.is_set()

    def check(self) -> None:
        """Raise `OperationCancelled` if the operation was canceled."""
        if self.cancelled.is_set():
            raise OperationCancelled("The operation was canceled.")

    def point_of_no_return(self) -> None:
        """Forbid cancellation from now on. Raises `OperationCancelled` if the operation was canceled before."""
        with self._lock:
            self._committed = not self.cancelled.is_set()
        self.check()

    def _tell(self, *, force: bool = False) -> None:
        now = self._clock()
        with self._lock:
            self.ticks += 1
            if not force and now - self._last < self._interval:
                return
            self._last = now
        self._listener(self.record())
