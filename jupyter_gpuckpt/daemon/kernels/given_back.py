"""The memory and GPUs that suspended and parked kernels have given back on this machine, in bytes times seconds.

A kernel's period is added when it ends, by a resume or otherwise; a period that has not ended counts until now. A machine that takes a
suspended kernel over counts its whole period. A small file in the data directory keeps the sums; several daemons of this host, for
instance in containers, may add to it.
"""

from __future__ import annotations

import logging
import platform
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ...linux.file_locks import alone
from ...wire import decoding
from ...wire.snapshot_records import GivenBack
from ...wire.states import KernelState
from .kernel_records import KernelRecord
from .whole_files import write_file

_AWAY = frozenset({KernelState.SUSPENDED, KernelState.PARKED})

_log = logging.getLogger(__name__)


class GivenBackSums:
    """The sums of this machine. Thread-safe; only the constructor and `write` use the file."""

    def __init__(self, data_dir: Path) -> None:
        # A data directory may be shared by machines.
        self._path = data_dir / "given-back" / f"{platform.node() or 'machine'}.json"
        self._lock, self._file_lock = threading.Lock(), threading.Lock()
        #: The sums in the file, and what was not added to them yet.
        self._stored, self._added = _read(self._path) or GivenBack(), GivenBack()

    def total(self, records: Iterable[KernelRecord]) -> GivenBack:
        """Return the sums, with the periods of these kernels until now."""
        with self._lock:
            total = _sum(self._stored, self._added)
        for record in records:
            total = _sum(total, _period(record))
        return total

    def end_period(self, record: KernelRecord) -> float:
        """Add the period of a kernel that is about to leave its state; return its seconds, 0 if it is neither suspended nor parked."""
        if record.state not in _AWAY:
            return 0.0
        seconds = _seconds(record)
        with self._lock:
            self._added = _sum(self._added, _period(record))
        record.since = time.time()  # the period is not added again
        return seconds

    def write(self) -> None:
        """Add the periods that the file does not contain yet to the sums in the file; never raises."""
        with self._file_lock:
            added = self._added
            if added == GivenBack():
                return
            try:
                with alone(self._path.with_suffix(".lock")):
                    found = _read(self._path)
                    stored = _sum(self._stored if found is None else found, added)
                    write_file(self._path, msgspec.json.encode(stored))
            except OSError as error:
                _log.warning("%s could not be written: %s", self._path, error)
            else:
                with self._lock:
                    self._stored, self._added = stored, _sum(self._added, added, sign=-1)


def _period(record: KernelRecord) -> GivenBack:
    """Return what a kernel has given back since it entered its state."""
    seconds, sizes = _seconds(record), record.sizes
    match record.state:
        case KernelState.SUSPENDED:
            return GivenBack(
                memory_byte_seconds=seconds * max(0, sizes.raw_bytes - sizes.gpu_bytes),
                gpu_byte_seconds=seconds * sizes.gpu_bytes,
                gpu_seconds=seconds if sizes.gpu_bytes else 0.0,
            )
        case KernelState.PARKED:  # the number of bytes is not in the record
            return GivenBack(gpu_seconds=seconds)
        case _:
            return GivenBack()


def _seconds(record: KernelRecord) -> float:
    return max(0.0, time.time() - record.since)


def _sum(one: GivenBack, other: GivenBack, *, sign: int = 1) -> GivenBack:
    return GivenBack(
        one.memory_byte_seconds + sign * other.memory_byte_seconds,
        one.gpu_byte_seconds + sign * other.gpu_byte_seconds,
        one.gpu_seconds + sign * other.gpu_seconds,
    )


def _read(path: Path) -> GivenBack | None:
    """Return the sums in the file; None if it cannot be read, and then it is replaced later."""
    try:
        return decoding.from_json(path.read_bytes(), GivenBack)
    except FileNotFoundError:
        return GivenBack()
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("%s is not used: %s", path, error)
        return None
