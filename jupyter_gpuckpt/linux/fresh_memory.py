"""Memory for large buffers: fresh, and reusable, whose pages stay mapped."""

from __future__ import annotations

import mmap
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

_VIRTIO_DEVICES = Path("/sys/bus/virtio/devices")
#: The number of virtio's balloon device, and of its feature VIRTIO_BALLOON_F_REPORTING (linux/virtio_balloon.h).
_BALLOON, _REPORTING = 5, 5


def fresh_memory(length: int) -> memoryview:
    """Return `length` bytes of writable, page-aligned memory.

    It is in huge pages, unless these would take longer to get. It is private, because shared memory, mmap's default, gets no huge pages
    unless an administrator enables them for it.
    """
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if not _host_takes_free_memory():
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


@cache
def _host_takes_free_memory() -> bool:
    """Return whether the host of this virtual machine takes back free memory.

    The machine reports only large free blocks to it. So a huge page usually has to come from the host again (512 MB took 1.8 s), while
    small pages are mostly ones that the machine still has (0.3 s).
    """
    for device in _VIRTIO_DEVICES.glob("*"):
        with suppress(OSError, ValueError):
            features = (device / "features").read_text()
            if int((device / "device").read_text(), 16) == _BALLOON:
                return features[_REPORTING : _REPORTING + 1] == "1"
    return False


class Scratch:
    """A reusable buffer of one worker: every `get` returns the same memory again."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def get(self, length: int) -> memoryview:
        """Return writable, page-aligned memory with undefined content."""
        if len(self._memory) < length:
            self._memory = fresh_memory(length)
        return self._memory[:length]


class ThreadScratch(threading.local):
    """Reusable memory, separate for each thread that uses it."""

    def __init__(self) -> None:
        self.memory = Scratch()
