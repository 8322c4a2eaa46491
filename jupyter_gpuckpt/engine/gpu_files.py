"""The files with GPU memory that a thaw writes while CRIU restores the rest."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from ..wire.manifest_records import Manifest
from ..wire.progress import Progress, Stage
from .content import Content, Writing
from .gpu.driver.gpu_staging import STAGING_MODE
from .gpu.ferry import ferry_windows


class GpuFiles:
    """A writer of the GPU's staging files, in a thread of its own while CRIU restores the rest.

    CRIU compares size and mode of the files, so these are set first. The ferries' files get no bytes: a ferry reads from any descriptor,
    so its bytes are in a file that other resumes of the snapshot use as well. The driver's are written before them, because they are
    needed earlier and may be much smaller. The ferries' bytes wait for `ferries_may`, since CRIU and the driver wait for all other memory;
    if that is at most half as much (`other_bytes`), they do not wait, because most processors have nothing to do while CRIU works.
    `finish_drivers`, `wait_for` and `finish` return when bytes are complete and verified. `by_windows`: the caller writes the ferries',
    window by window.
    """

    def __init__(
        self,
        manifest: Manifest,
        content: Content,
        inside: Callable[[str], Path],
        progress: Progress,
        *,
        other_bytes: int,
        by_windows: bool,
    ) -> None:
        self._drivers, self._ferries = list[tuple[str, Path]](), list[str]()
        ferry_bytes = 0
        for process in manifest.gpu:
            for path in process.staging:
                target = inside(path)
                target.parent.mkdir(parents=True, exist_ok=True)
                length = manifest.stream(f"gpu{path}").length
                with target.open("wb") as file:
                    os.fchmod(file.fileno(), STAGING_MODE)
                    file.truncate(length)
                if ferry_windows.is_ferries(path):
                    self._ferries.append(f"gpu{path}")
                    ferry_bytes += length
                else:
                    self._drivers.append((f"gpu{path}", target))
        if by_windows:
            self._ferries = []
        self._error: BaseException | None = None
        self._drivers_written, self._begun = threading.Event(), threading.Event()
        self._ended = False
        self._writing: Writing | None = None
        #: Set it to let the ferries' files be written.
        self.ferries_may = threading.Event()
        if 2 * other_bytes <= ferry_bytes:
            self.ferries_may.set()
        self._content, self._progress = content, progress
        self._thread = threading.Thread(target=self._write, name="gpu-files", daemon=True)
        if self._drivers or self._ferries:
            self._thread.start()

    def _write(self) -> None:
        try:
            self._content.to_file(self._drivers)
            self._drivers_written.set()
            self._writing = self._content.writing(self._ferries)
            self._begun.set()
            self.ferries_may.wait()
            if not self._ended:
                self._writing.run()
        except BaseException as error:
            self._error = error
        finally:
            self._drivers_written.set()
            self._begun.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """End the thread and drop its error: another step has failed before."""
        self._ended = True
        self.ferries_may.set()
        if self._writing is not None:
            self._writing.stop()
        self._join()

    def _join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def finish_drivers(self) -> None:
        """Wait until the driver's files are written. Raises the thread's error."""
        if self._drivers:
            self._wait(self._drivers_written.wait)

    def wait_for(self, stream: str, begin: int, end: int) -> int:
        """Wait until a ferry's file is written from `begin` to `end`; return the end of what is written from there.

        Raises the thread's error.
        """
        self.ferries_may.set()
        return self._ready().wait_for(stream, begin, end)

    def file(self, stream: str) -> int:
        """Return a descriptor of a ferry's file, to be read. Raises the thread's error."""
        return self._ready().file(stream)

    def _ready(self) -> Writing:
        self._begun.wait()
        if self._writing is None:
            raise self._error or RuntimeError("the thread has ended")
        return self._writing

    def finish(self) -> None:
        """Wait until all is written. Raises the thread's error."""
        if self._ferries:
            self.ferries_may.set()
            self._wait(self._join)

    def _wait(self, wait: Callable[[], object]) -> None:
        with self._progress.stage(Stage.GPU_FILES):
            wait()
        if self._error is not None:
            raise self._error
