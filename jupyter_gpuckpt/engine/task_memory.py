"""Reading and writing another task's memory through /proc/TID/mem (man proc), whatever its mappings allow."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..host import processes

#: The instruction, as bytes.
SYSCALL = b"\x0f\x05"


def read(tid: int, address: int, length: int) -> bytes:
    """Bytes of its memory. Raises OSError where nothing is mapped."""
    with _memory(tid, os.O_RDONLY) as memory:
        return os.pread(memory, length, address)


def write(tid: int, address: int, data: bytes) -> None:
    """Overwrite bytes of its memory, read-only mappings too. Raises OSError where nothing is mapped."""
    with _memory(tid, os.O_RDWR) as memory:
        if os.pwrite(memory, data, address) != len(data):
            raise OSError(errno.EFAULT, f"not all at {address:#x} is mapped")


def syscall_instruction(tid: int) -> int:
    """The address of a `syscall` instruction for the thread: in the vdso, which every 64-bit process has, else in its code."""
    areas = [area for area in processes.maps(tid) if area.perms[2:3] == "x"]
    areas.sort(key=lambda area: area.path != "[vdso]")
    with _memory(tid, os.O_RDONLY) as memory:
        for area in areas:
            with suppress(OSError):  # vsyscall cannot be read
                code = os.pread(memory, area.end - area.start, area.start)
                if (offset := code.find(SYSCALL)) >= 0:
                    return area.start + offset
    raise OSError(errno.ENOEXEC, f"thread {tid} has no syscall instruction")


@contextmanager
def _memory(tid: int, flags: int) -> Iterator[int]:
    memory = os.open(f"/proc/{tid}/mem", flags | os.O_CLOEXEC)
    try:
        yield memory
    finally:
        os.close(memory)
