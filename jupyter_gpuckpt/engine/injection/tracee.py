"""Injection of system calls into a thread of another process, which does not notice them (x86-64).

Covers: stopping a thread that runs, sleeps or is stopped (state T) already, making calls in it, putting everything back.
Does not cover: the purpose of the calls, the fate of the thread if the tracer dies (`return_frame`, `tree/standstill.py`).
See also: `ptrace` (the calls), `threads_held` (all threads of a process), `call_tables` (many calls at once).

How a call is injected, and why so:

* All signals are blocked first. A signal that arrives in between would be handled *instead of* the call; then the register for
the result still holds the call's number (seen: 189 of 200 under a signal storm). Pending signals are delivered afterwards.
* The thread's instruction pointer is set to a `syscall` instruction of its own vdso and it is restarted by PTRACE_SYSCALL.
  Only Linux's own report is proof: an entry stop with our number at our instruction and then the exit stop, as
  PTRACE_GET_SYSCALL_INFO returns them. After anything else (a trap left over from PTRACE_INTERRUPT, a group stop, SIGSTOP, a
  call interrupted with -ERESTART*) the thread is restarted with its signal and the call tried again. Single-stepping would force
  a SIGTRAP, which resets the program's handler if SIGTRAP is blocked or ignored (kernel/signal.c, `force_sig_info_to_task`).
* orig_rax = -1 keeps Linux from restarting the interrupted call with our registers. When the original registers are back, a
sleep, poll or futex wait that the stop interrupted goes on with the time it had left.
* rbx holds a mark as long as anything in the thread is ours; the signal mask is put back before the registers. So the registers
show whether a dead tracer left the thread in an injected call (`RegistersRecord.in_injection`).
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

import msgspec

from ...host import processes
from . import ptrace, return_frame, task_memory
from .ptrace import Kind, Registers, Stop
from .return_frame import ReturnFrame

ALL_SIGNALS = (1 << 64) - 1
_ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
_NO_CALL = (1 << 64) - 1  # orig_rax of a thread that is in no system call
_MARK = 0x7470_6B63_7570_67A5
_CS_64_BIT = 0x33
_RED_ZONE = 128
#: ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK (include/linux/errno.h): results of interrupted calls.
_BROKEN_OFF = (-512, -513, -514, -516)
_TRIES = 100
_STOP_SECONDS = 10.0
_CALL_SECONDS = 60.0
_GROUP_STOP_SECONDS = 1.0


class RegistersRecord(msgspec.Struct, frozen=True):
    """A thread's registers and signal mask before an injection.

    `start_time`, in clock ticks since boot, identifies the thread together with `tid`.
    """

    pid: int
    tid: int
    start_time: int
    registers: bytes
    signal_mask: int

    @property
    def instruction_pointer(self) -> int:
        """The address at which the thread stood."""
        return Registers.from_buffer_copy(self.registers).rip

    @property
    def in_injection(self) -> bool:
        """Whether the registers are those of an injected call, not the thread's own."""
        return Registers.from_buffer_copy(self.registers).rbx == _MARK


#: The stop of a tracee that was restarted and has not stopped again.
RUNNING = Stop(Kind.RUNNING)
_TRAPPED = Stop(Kind.TRAP)


class Tracee:
    """One thread of a process, stopped and controlled by this process between `attach` and `detach` (or in a `with` block).

    `options` are added to PTRACE_O_TRACESYSGOOD. `events` collects (event, message) of the events that they ask for.
    `return_frame`: if this process dies, the thread continues by itself (`return_frame.py`); for that some kilobytes below its stack
    are overwritten until `detach`. A stopped process (T) needs no frame, because its registers can be put back from a record.
    All methods must be called in the thread that attached: Linux refuses others.
    """

    def __init__(
        self, pid: int, tid: int | None = None, *, options: int = 0, return_frame: bool = False
    ) -> None:
        self.pid, self.tid = pid, pid if tid is None else tid
        self.events: list[tuple[int, int]] = []
        #: The last stop; RUNNING from `restart` on.
        self.stop = RUNNING
        self._options = options | ptrace.TRACESYSGOOD
        self._wants_return_frame = return_frame
        self._return_frame: ReturnFrame | None = None
        self._owner = 0
        self._attached = self._was_stopped = self._skipped = False
        self._original: Registers | None = None
        self._mask = 0
        #: The address of a `syscall` instruction in its memory; 0 until one is needed.
        self._instruction = 0

    def __enter__(self) -> Self:
        self.attach()
        return self

    def __exit__(self, *exc: object) -> None:
        self.detach()

    @property
    def was_stopped(self) -> bool:
        """Whether its process was stopped (T) when it was attached."""
        return self._was_stopped

    # Attaching and detaching
    def attach(self) -> None:
        """Stop the thread (PTRACE_SEIZE + INTERRUPT), whatever it does.

        Raises ProcessLookupError when it has ended (also for a zombie), PermissionError when tracing is forbidden or another
        tracer has it, TimeoutError when it is in an uninterruptible call (only the end of the calling thread detaches it then).
        """
        self.begin_attach()
        self.end_attach()

    def begin_attach(self) -> None:
        """Request the stop; `end_attach` waits for it. Several threads stop at the same time that way. Raises as `attach`."""
        self._owner = threading.get_native_id()
        try:
            ptrace.request(ptrace.SEIZE, self.tid, None, self._options)
        except PermissionError:
            if processes.state(self.tid) in (None, "Z", "X"):
                raise ProcessLookupError(errno.ESRCH, f"thread {self.tid} has ended") from None
            raise
        self._attached = True
        try:
            self.interrupt()
        except BaseException:
            self.detach()
            raise

    def end_attach(self) -> None:
        """Wait until the thread has stopped. Raises as `attach`."""
        try:
            self._wait_for_trap()
        except BaseException:
            self.detach()
            raise
        self._was_stopped = self.stop.kind is Kind.GROUP

    def await_attached(self) -> None:
        """Wait for the first stop of a task that Linux attached to this thread at its creation (PTRACE_O_TRACECLONE ...)."""
        self._owner = threading.get_native_id()
        self._attached = True
        self._wait_for_trap()

    def detach(self, *, wait: bool = True) -> None:
        """Put everything back and detach the thread: it runs on, or is stopped again if its process is stopped (T).

        Linux stops a thread again by itself when its process is in group-stop (kernel/ptrace.c, `__ptrace_unlink`), but only when
        the thread gets a CPU. `wait`: wait for that. A thread that has ended is no error.
        """
        if not self._attached:
            return
        self._mine()
        self._attached = False
        with suppress(ProcessLookupError):  # it was killed meanwhile; its parent reaps it
            if self.stop is RUNNING:
                self.interrupt()
                self._wait_for_trap()
            self.finish()
            # A signal for which the thread stopped is delivered now; otherwise it would be lost.
            left = self.stop.signal if self.stop.kind is Kind.SIGNAL else 0
            ptrace.restart(ptrace.DETACH, self.tid, left)
            if wait and self._was_stopped:
                self._wait_for_group_stop()

    def kill(self) -> None:
        """Kill the thread's process by SIGKILL and reap it; return when it is gone."""
        self._mine()
        if not self._attached:
            return  # it has ended by itself, and another process may have its id now
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        while ptrace.wait(self.tid, _STOP_SECONDS).kind is not Kind.ENDED:
            pass  # another stop comes before the end
        self._attached = False

    # Calls and changes
    def syscall(self, number: int, *arguments: int) -> int:
        """Execute one system call in the thread and return its result.

        `detach` or `finish` puts the thread's own registers back; between calls the thread does not have them. Raises OSError with
        the call's errno, ProcessLookupError when the thread was killed, InterruptedError when every try was interrupted.
        """
        self._mine()
        prepared = self._begin()
        for _ in range(_TRIES):
            values = prepared.copy()
            values.rax, values.rip = number, self._instruction
            for name, value in zip(_ARGUMENTS, arguments, strict=False):
                setattr(values, name, value & (1 << 64) - 1)
            ptrace.set_registers(self.tid, values)
            result = self._run(number)
            if result in _BROKEN_OFF:
                continue
            if -4096 < result < 0:
                raise OSError(-result, f"{os.strerror(-result)} (call {number}, thread {self.tid})")
            return result
        raise InterruptedError(errno.EINTR, f"call {number} in thread {self.tid} was broken off")

    def run_code(self, address: int, r12: int, end: tuple[int, int]) -> None:
        """Let the thread execute code until it has sent itself SIGSTOP, which alone is not delivered. `end`: rip and r12 then."""
        self.begin_code(address, r12)
        self.end_code(end)

    def begin_code(self, address: int, r12: int) -> None:
        """Let the thread begin to execute code; `end_code` waits for its end. Several threads execute it at the same time that way."""
        self._mine()
        values = self._begin(calls=False)
        values.rip, values.r12 = address, r12
        ptrace.set_registers(self.tid, values)
        self.restart(ptrace.CONT, self.stop.signal if self.stop.kind is Kind.SIGNAL else 0)

    def end_code(self, end: tuple[int, int]) -> None:
        """Wait until the thread has sent itself SIGSTOP; see `run_code`."""
        self._mine()
        while True:
            self._wait(_CALL_SECONDS)
            values = ptrace.registers(self.tid)
            is_signal = self.stop.kind is Kind.SIGNAL
            if is_signal and self.stop.signal != signal.SIGSTOP:
                caught, self.stop = self.stop.signal, _TRAPPED
                raise OSError(errno.EPROTO, f"thread {self.tid} was stopped by signal {caught}")
            if is_signal and (values.rip, values.r12) == end:
                break
            self.restart(ptrace.CONT, self.stop.signal if is_signal else 0)
        self.stop = _TRAPPED
        self.finish()

    def finish(self, result: int | None = None) -> None:
        """Put signal mask and registers back; the thread stays stopped.

        `result` replaces the result (rax) of the system call at whose exit the thread stands.
        """
        self._mine()
        if self._original is None and result is None:
            return
        if self._original is None:
            self._original, self._mask = ptrace.registers(self.tid), ptrace.signal_mask(self.tid)
        if result is not None:
            self._original.rax, self._original.orig_rax = result & (1 << 64) - 1, _NO_CALL
            if self._skipped:
                self._original.rip += len(task_memory.SYSCALL)
            self._skipped = False
        # The mask first: the mark in the registers must be there as long as the mask is not the thread's own.
        ptrace.set_signal_mask(self.tid, self._mask)
        ptrace.set_registers(self.tid, self._original)
        self._original = None
        if self._return_frame is not None:
            self._return_frame.clear(self.tid)
            self._return_frame = None

    def record(self) -> RegistersRecord:
        """Return a record of the thread's own registers and signal mask."""
        self._mine()
        start = processes.start_time(self.tid) or 0
        registers = self._original or ptrace.registers(self.tid)
        mask = self._mask if self._original else ptrace.signal_mask(self.tid)
        return RegistersRecord(self.pid, self.tid, start, bytes(registers), mask)

    def put_back(self, record: RegistersRecord) -> bool:
        """Put the thread back to `record`; return whether anything differed."""
        self._mine()
        if self._original is None and self.record() == record:
            return False
        self._original = None
        ptrace.set_signal_mask(self.tid, record.signal_mask)
        ptrace.set_registers(self.tid, Registers.from_buffer_copy(record.registers))
        return True

    def skip(self) -> None:
        """Make Linux skip the call at whose entry the thread stands; `finish(result)` then sets its result.

        Without `finish(result)` Linux makes the call after all, also if this process dies.
        """
        self._mine()
        values = ptrace.registers(self.tid)
        values.rax, values.orig_rax = values.orig_rax, _NO_CALL
        values.rip -= len(task_memory.SYSCALL)
        ptrace.set_registers(self.tid, values)
        self._skipped = True

    def restart(self, request: int, signum: int = 0) -> None:
        """Restart the thread by CONT, SYSCALL (up to the next entry or exit) or LISTEN (stay in group-stop), with a signal."""
        self._mine()
        ptrace.restart(request, self.tid, signum)
        self.stop = RUNNING

    def interrupt(self) -> None:
        """Request a stop, of kind TRAP, or GROUP if the process is stopped; other stops may come before it."""
        self._mine()
        ptrace.request(ptrace.INTERRUPT, self.tid)

    def poll(self) -> Stop | None:
        """Return the thread's next stop; None if it still runs. Raises ProcessLookupError when it has ended."""
        self._mine()
        if (stop := ptrace.poll(self.tid)) is not None:
            self._stopped(stop)
        return stop

    def set_options(self, options: int) -> None:
        """Replace the options (PTRACE_O_EXITKILL ...); PTRACE_O_TRACESYSGOOD stays."""
        self._mine()
        ptrace.request(ptrace.SETOPTIONS, self.tid, None, options | ptrace.TRACESYSGOOD)

    def read(self, address: int, length: int) -> bytes:
        """Read bytes of the thread's memory. Raises OSError where nothing is mapped."""
        return task_memory.read(self.tid, address, length)

    def write(self, address: int, data: bytes) -> None:
        """Overwrite bytes of the thread's memory, in read-only mappings, too. Raises OSError where nothing is mapped."""
        task_memory.write(self.tid, address, data)

    @contextmanager
    def borrowed(self, data: bytes) -> Iterator[int]:
        """Yield the address of `data` in the thread's memory, for a call's argument; restore that memory afterwards.

        The address is on the thread's stack below the red zone: the 128 bytes under the stack pointer that a function may use
        without moving it (System V ABI). Below that the stack is unused, but the stacks of Go and of fibers lie close together.
        """
        self._mine()
        stack = (self._original or ptrace.registers(self.tid)).rsp
        address = (stack - _RED_ZONE - len(data)) & ~15
        before = self.read(address, len(data))
        self.write(address, data)
        try:
            yield address
        finally:
            with suppress(ProcessLookupError):
                self.write(address, before)

    # Internals
    def _mine(self) -> None:
        if threading.get_native_id() != self._owner:
            raise RuntimeError(f"thread {self.tid} was attached by thread {self._owner}")

    def _begin(self, *, calls: bool = True) -> Registers:
        """Return the registers between calls. The first time, keep the thread's own ones and block all signals."""
        if self._original is None:
            original = ptrace.registers(self.tid)
            if original.cs != _CS_64_BIT:
                raise OSError(errno.ENOEXEC, f"thread {self.tid} does not run 64-bit code")
            self._mask = ptrace.signal_mask(self.tid)
            if self._wants_return_frame:
                self._return_frame = return_frame.write_frame(self.tid, original, self._mask)
            if self._return_frame is not None:
                self._instruction = self._return_frame.call
            elif calls and not self._instruction:
                self._instruction = task_memory.syscall_instruction(self.tid)
            self._original = original
            ptrace.set_registers(self.tid, self._prepared(original))
            ptrace.set_signal_mask(self.tid, ALL_SIGNALS)
        return self._prepared(self._original)

    def _prepared(self, original: Registers) -> Registers:
        """Return the registers between calls: marked, in no call, and set to the return frame if there is one."""
        prepared = original.copy()
        prepared.rbx, prepared.orig_rax, prepared.rip = _MARK, _NO_CALL, self._instruction
        if self._return_frame is not None:
            prepared.rip, prepared.rsp = self._return_frame.returns_to, self._return_frame.stack
        return prepared

    def _run(self, number: int) -> int:
        """Let the thread execute only the prepared call; return Linux's result."""
        entered, deliver = False, 0
        while True:
            self.restart(ptrace.SYSCALL, deliver)
            deliver = 0
            self._wait(_CALL_SECONDS)
            kind = self.stop.kind
            if kind is Kind.SYSCALL:
                now = ptrace.syscall_stop(self.tid)
                if entered and now.op == ptrace.SYSCALL_EXIT:
                    return now.number
                after = self._instruction + len(task_memory.SYSCALL)
                ours = now.number == number and now.instruction_pointer == after
                if now.op != ptrace.SYSCALL_ENTRY or not ours:
                    raise OSError(errno.EPROTO, f"thread {self.tid} made a call of its own: {now}")
                entered = True
            elif kind is Kind.EVENT:
                self.events.append((self.stop.event, ptrace.event_message(self.tid)))
            elif kind is Kind.SIGNAL:
                # Only SIGSTOP and signals that the call itself caused pass the mask: SIGSYS of a seccomp filter, SIGSEGV.
                if self.stop.signal != signal.SIGSTOP:
                    caught, self.stop = self.stop.signal, _TRAPPED
                    raise OSError(errno.EPERM, f"call {number} caused signal {caught}")
                deliver = self.stop.signal

    def _wait_for_trap(self) -> None:
        """Wait for the stop that was requested; deliver signals that come before it."""
        while True:
            self._wait(_STOP_SECONDS)
            if self.stop.kind in (Kind.TRAP, Kind.GROUP):
                return
            self.restart(ptrace.CONT, self.stop.signal)

    def _wait(self, timeout: float) -> None:
        self._stopped(ptrace.wait(self.tid, timeout))

    def _stopped(self, stop: Stop) -> None:
        self.stop = stop
        if stop.kind is Kind.ENDED:
            self._attached = False
            raise ProcessLookupError(errno.ESRCH, f"thread {self.tid} has ended")

    def _wait_for_group_stop(self) -> None:
        """Wait until the thread is in state T again. Another lasting state means that some process sent SIGCONT."""
        deadline = time.monotonic() + _GROUP_STOP_SECONDS
        while processes.state(self.tid) in ("t", "R") and time.monotonic() < deadline:
            time.sleep(50e-6)
