"""Reading and writing another task's memory through /proc/TID/mem (man proc), whatever its mappings allow."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ...host import processes
from ...host.processes import Mapping

#: The machine code of the instruction `syscall`.
SYSCALL = b"\x0f\x05"
#: The bytes of code that are searched at a time: a CUDA library has gigabytes.
_PIECE = 4 << 20


def read(tid: int, address: int, length: int) -> bytes:
    """Read bytes of a task's memory. Raises OSError where nothing is mapped."""
    with _memory(tid, os.O_RDONLY) as memory:
        return os.pread(memory, length, address)


def write(tid: int, address: int, data: bytes) -> None:
    """Overwrite bytes of a task's memory, even in read-only mappings. Raises OSError where nothing is mapped."""
    with _memory(tid, os.O_RDWR) as memory:
        if os.pwrite(memory, data, address) != len(data):
            raise OSError(errno.EFAULT, f"not all at {address:#x} is mapped")


def syscall_instruction(tid: int) -> int:
    """Return the address of a `syscall` instruction in the thread's memory: in the vdso, or else in other code."""
    found = find_code(tid, [SYSCALL], first=lambda area: area.path == "[vdso]")
    if not found:
        raise OSError(errno.ENOEXEC, f"thread {tid} has no syscall instruction")
    return found


def find_code(tid: int, sequences: Sequence[bytes], *, first: Callable[[Mapping], bool]) -> int:
    """Return the address of one of these byte sequences in executable memory, 0 if none; areas that satisfy `first` are searched first."""
    areas = [area for area in processes.maps(tid) if area.perms[2:3] == "x"]
    areas.sort(key=lambda area: not first(area))
    overlap = max(map(len, sequences)) - 1
    with _memory(tid, os.O_RDONLY) as memory:
        for area in areas:
            for start in range(area.start, area.end, _PIECE):
                with suppress(OSError):  # vsyscall cannot be read
                    code = os.pread(memory, min(_PIECE + overlap, area.end - start), start)
                    for sequence in sequences:
                        if (offset := code.find(sequence)) >= 0:
                            return start + offset
    return 0


@contextmanager
def _memory(tid: int, flags: int) -> Iterator[int]:
    memory = os.open(f"/proc/{tid}/mem", flags | os.O_CLOEXEC)
    try:
        yield memory
    finally:
        os.close(memory)
