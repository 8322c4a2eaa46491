"""Many system calls in one run of a stopped thread: a function in its memory executes a table of calls.

A call that is injected by itself takes four changes between tracer and thread; a table of twenty takes two. The function lies where
CRIU puts its own code, so that the record of a standstill has what was there (`tree/standstill.py`), and the table lies on the
thread's stack, below what is in use. All threads of the process must be held meanwhile.
"""

from __future__ import annotations

import signal
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ...host import processes
from .tracee import Tracee

#: loop: load a call from the table at r12, execute it, store its result in the call's place, go on with the next.
_FUNCTION = bytes.fromhex(
    "498b0424 498b7c2408 498b742410 498b542418 4d8b542420 4d8b442428 0f05 49890424 4983c430 ebd7"
)
_CALL_WORDS, _WORD_BYTES = 6, 8
_NR_TGKILL = 234


class Call(NamedTuple):
    """A system call of at most five arguments. `pointer`: which of them is the address of `data`, which the call may overwrite."""

    number: int
    arguments: tuple[int, ...] = ()
    pointer: int | None = None
    data: bytes = b""


class Result(NamedTuple):
    """The result of a call (-errno on failure), and its data afterwards."""

    value: int
    data: bytes


@contextmanager
def function_in(tracee: Tracee) -> Iterator[int]:
    """Put the function into the memory of a process; yield its address. Raises OSError."""
    address = code_address(tracee.pid)
    if not address:
        raise OSError(f"process {tracee.pid} has no code")
    before = tracee.read(address, len(_FUNCTION))
    tracee.write(address, _FUNCTION)
    try:
        yield address
    finally:
        tracee.write(address, before)


def code_address(pid: int) -> int:
    """Return the start of the first executable area of a process, 0 if there is none."""
    return next((area.start for area in processes.maps(pid) if area.perms[2:3] == "x"), 0)


def run(tracee: Tracee, function: int, ids: tuple[int, int], calls: Sequence[Call]) -> list[Result]:
    """Execute the calls in a thread; return their results. `ids`: process and thread, as they see themselves. Raises OSError."""
    words = _CALL_WORDS * (len(calls) + 1)
    data = b"".join(call.data for call in calls)
    with tracee.borrowed(bytes(words * _WORD_BYTES) + data) as address:
        tracee.write(address, _table(calls, ids, address + words * _WORD_BYTES))
        tracee.run_code(function, r12=address)
        found = tracee.read(address, words * _WORD_BYTES + len(data))
    values = struct.unpack_from(f"<{words}q", found)
    results, at = [], words * _WORD_BYTES
    for index, call in enumerate(calls):
        results.append(Result(values[index * _CALL_WORDS], found[at : at + len(call.data)]))
        at += len(call.data)
    return results


def _table(calls: Sequence[Call], ids: tuple[int, int], data: int) -> bytes:
    """Return the table, at the end of which the thread stops itself. `data`: the address of the first call's data."""
    words = list[int]()
    for call in calls:
        first = len(words)
        words += [call.number, *call.arguments]
        words += [0] * (first + _CALL_WORDS - len(words))
        if call.pointer is not None:
            words[first + 1 + call.pointer] = data
            data += len(call.data)
    words += [_NR_TGKILL, *ids, signal.SIGSTOP, 0, 0]
    return struct.pack(f"<{len(words)}Q", *(word & (1 << 64) - 1 for word in words))
