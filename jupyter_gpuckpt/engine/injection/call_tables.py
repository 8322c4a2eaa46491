"""Many system calls in one run of a stopped thread: a function in its memory executes a table of calls.

A call that is injected by itself takes four changes between tracer and thread; a table of twenty takes two. The function lies where
CRIU puts its own code, so that the record of a standstill has what was there (`tree/standstill.py`), and the table lies on the
thread's stack, below what is in use. All threads of the process must be held meanwhile.
"""

from __future__ import annotations

import errno
import os
import signal
import struct
from collections.abc import Sequence
from typing import NamedTuple, Self

from ...host import processes
from . import ptrace
from .tracee import Tracee

#: loop: load a call from the table at r12, execute it, store its result in the call's place, go on with the next.
_FUNCTION = bytes.fromhex(
    "498b0424 498b7c2408 498b742410 498b542418 4d8b542420 4d8b442428 0f05 49890424 4983c430 ebd7"
)
#: The place in it after the call.
_AFTER_CALL = 31
_CALL_WORDS, _WORD_BYTES = 6, 8
#: The bytes below the stack pointer that a function may use without moving it (System V ABI).
_RED_ZONE = 128
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


class Table:
    """The form of some calls in a thread's memory. It is made once for all threads that make them."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._words, self._pointers = list[int](), list[tuple[int, int]]()
        used = 0
        for call in calls:
            first = len(self._words)
            words = (call.number, *call.arguments)
            self._words += [*words, *[0] * (_CALL_WORDS - len(words))]
            if call.pointer is not None:
                self._pointers.append((first + 1 + call.pointer, used))
            used += len(call.data)
        self._data = b"".join(call.data for call in calls)
        self._layout = struct.Struct(f"<{len(self._words) + _CALL_WORDS}Q")
        self._words = [word & (1 << 64) - 1 for word in self._words]
        self.last = len(self._words) * _WORD_BYTES
        self.length = self._layout.size + len(self._data)

    def at(self, address: int, ids: tuple[int, int]) -> bytes:
        """Return the table for this address, at the end of which the thread stops itself."""
        words = [*self._words, _NR_TGKILL, *ids, signal.SIGSTOP, 0, 0]
        for index, used in self._pointers:
            words[index] = address + self._layout.size + used
        return self._layout.pack(*words) + self._data

    def results(self, found: bytes) -> list[Result]:
        """Return the results of the calls. `found`: what `CallTables.run` has returned."""
        values = struct.unpack_from(f"<{self._layout.size // _WORD_BYTES}q", found)
        results, at = [], self._layout.size
        for index, call in enumerate(self._calls):
            results.append(Result(values[index * _CALL_WORDS], found[at : at + len(call.data)]))
            at += len(call.data)
        return results


class CallTables:
    """The function in the memory of a process whose threads are held, as long as the `with` block lasts. Raises OSError.

    All threads share the memory, so one descriptor of it serves them.
    """

    def __init__(self, tracee: Tracee) -> None:
        self._address = code_address(tracee.pid)
        if not self._address:
            raise OSError(f"process {tracee.pid} has no code")
        self._memory = os.open(f"/proc/{tracee.tid}/mem", os.O_RDWR | os.O_CLOEXEC)
        self._before = b""

    def __enter__(self) -> Self:
        try:
            self._before = self._read(self._address, len(_FUNCTION))
            self._write(self._address, _FUNCTION)
        except BaseException:
            os.close(self._memory)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._write(self._address, self._before)
        finally:
            os.close(self._memory)

    def run(self, tracee: Tracee, ids: tuple[int, int], table: Table) -> bytes:
        """Execute a table in a thread; return what is in its place then. `ids`: process and thread, as they see themselves.

        Raises OSError.
        """
        [result] = self.run_all([(tracee, ids)], table)
        if isinstance(result, bytes):
            return result
        raise result

    def run_all(
        self, tracees: Sequence[tuple[Tracee, tuple[int, int]]], table: Table
    ) -> list[bytes | OSError]:
        """Execute a table in several threads at the same time; return for each what `run` returns, or its error."""
        begun = list[tuple[int, bytes] | OSError]()
        results = list[bytes | OSError]()
        for tracee, ids in tracees:
            try:
                begun.append(self._begin(tracee, ids, table))
            except OSError as error:
                begun.append(error)
        for (tracee, _), one in zip(tracees, begun, strict=True):
            if isinstance(one, OSError):
                results.append(one)
                continue
            address, before = one
            try:
                tracee.end_code((self._address + _AFTER_CALL, address + table.last))
                results.append(self._read(address, table.length))
            except OSError as error:
                results.append(error)
            finally:
                self._write(address, before)
        return results

    def _begin(self, tracee: Tracee, ids: tuple[int, int], table: Table) -> tuple[int, bytes]:
        """Let a thread begin to execute a table; return its address and what was there before."""
        address = (ptrace.registers(tracee.tid).rsp - _RED_ZONE - table.length) & ~15
        before = self._read(address, table.length)
        self._write(address, table.at(address, ids))
        try:
            tracee.begin_code(self._address, address)
        except BaseException:
            self._write(address, before)
            raise
        return address, before

    def _read(self, address: int, length: int) -> bytes:
        data = os.pread(self._memory, length, address)
        if len(data) != length:
            raise OSError(errno.EFAULT, f"not all at {address:#x} is mapped")
        return data

    def _write(self, address: int, data: bytes) -> None:
        if os.pwrite(self._memory, data, address) != len(data):
            raise OSError(errno.EFAULT, f"not all at {address:#x} is mapped")


def code_address(pid: int) -> int:
    """Return the start of the first executable area of a process, 0 if there is none."""
    return next((area.start for area in processes.maps(pid) if area.perms[2:3] == "x"), 0)
