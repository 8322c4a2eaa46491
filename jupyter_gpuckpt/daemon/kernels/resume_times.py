"""Durations of resumes on this machine, and the estimate of the next one.

A resume takes a constant time (namespaces, images, CRIU) and the time to read the memory from the store. GPUs make both longer,
so kernels that use one are counted separately. A small file in the data directory keeps the latest resumes of each kind.
"""

from __future__ import annotations

import logging
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec

from ...wire import decoding
from ...wire.manifest_records import Manifest, Sizes
from ...wire.progress import Progress, Stage
from .whole_files import write_file

#: The number of latest resumes of each kind that count, because disks and machines change.
_KEPT = 9
#: Stages that take longer the more memory there is.
_PER_BYTE = frozenset({Stage.PAGES, Stage.GPU_FILES, Stage.GPU_RESTORE})

_log = logging.getLogger(__name__)


class _Resume(msgspec.Struct, frozen=True):
    """A successful resume. `reading_seconds`: the part of its time that grows with the bytes."""

    raw_bytes: Annotated[int, msgspec.Meta(ge=0)]
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    reading_seconds: Annotated[float, msgspec.Meta(ge=0)]


class _Measured(msgspec.Struct):
    """The content of the file: the latest resumes without and with GPU, oldest first."""

    without_gpu: list[_Resume] = []
    with_gpu: list[_Resume] = []

    def of(self, *, gpu: bool) -> list[_Resume]:
        return self.with_gpu if gpu else self.without_gpu


class ResumeTimes:
    """A record of the latest resumes of this machine. Thread-safe; only `load` and `measured` use the file."""

    def __init__(self, data_dir: Path) -> None:
        # A data directory may be shared by machines of different speed.
        self._path = data_dir / "resume-times" / f"{platform.node() or 'machine'}.json"
        self._lock = threading.Lock()
        self._measured = _Measured()

    def load(self) -> None:
        """Read the file; an unreadable one is ignored and replaced at the next resume."""
        try:
            found = decoding.from_json(self._path.read_bytes(), _Measured)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("%s is not used: %s", self._path, error)
            return
        with self._lock:
            self._measured = found

    @contextmanager
    def measured(self, manifest: Manifest, progress: Progress) -> Iterator[None]:
        """Measure the resume inside the block; record it if it succeeds."""
        began, before = time.monotonic(), _reading_seconds(progress)
        yield
        seconds = time.monotonic() - began
        reading = min(max(_reading_seconds(progress) - before, 0.0), seconds)
        done = _Resume(manifest.info.sizes.raw_bytes, seconds, reading)
        with self._lock:
            kept = self._measured.of(gpu=bool(manifest.info.sizes.gpu_bytes))
            kept.append(done)
            del kept[:-_KEPT]
            encoded = msgspec.json.encode(self._measured)
        self._write(encoded)

    def estimate(self, sizes: Sizes) -> float | None:
        """Estimate the seconds of a resume of a snapshot of these sizes; None if no similar one was measured."""
        with self._lock:
            kept = list(self._measured.of(gpu=bool(sizes.gpu_bytes)))
        if not kept:
            return None
        import statistics  # noqa: PLC0415 - slow to import, and a daemon that never resumed anything does not need it

        constant = statistics.median(one.seconds - one.reading_seconds for one in kept)
        # The rate is computed from the sums, so that large resumes count more: small ones say little about it.
        raw_bytes = sum(one.raw_bytes for one in kept)
        reading = sum(one.reading_seconds for one in kept)
        return constant + (sizes.raw_bytes * reading / raw_bytes if raw_bytes else 0.0)

    def _write(self, encoded: bytes) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(self._path, encoded)
        except OSError as error:
            _log.warning("the duration of a resume could not be written: %s", error)


def _reading_seconds(progress: Progress) -> float:
    spent = progress.seconds_by_stage
    return sum(spent.get(stage, 0.0) for stage in _PER_BYTE)
