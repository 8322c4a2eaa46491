"""Python bindings of ptrace(2) on x86-64: requests, registers, stops. See also: `tracee.py`, which uses them.

Linux ties a tracee to the *thread* that attached to it: in any other thread all calls here but `poll` and `wait` fail with ESRCH,
and the tracee is detached when that thread ends (kernel/ptrace.c, `ptrace_check_attach`, `exit_ptrace`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from enum import Enum
from functools import cache
from typing import NamedTuple

# Requests (include/uapi/linux/ptrace.h, arch/x86/include/uapi/asm/ptrace-abi.h).
CONT, GETREGS, SETREGS, DETACH, SYSCALL = 7, 12, 13, 17, 24
GETREGSET, SETREGSET = 0x4204, 0x4205
SETOPTIONS, GETEVENTMSG, SEIZE, INTERRUPT, LISTEN = 0x4200, 0x4201, 0x4206, 0x4207, 0x4208
GETSIGMASK, SETSIGMASK, GET_SYSCALL_INFO = 0x420A, 0x420B, 0x420E

# Options.
TRACESYSGOOD, TRACECLONE, EXITKILL = 0x1, 0x8, 0x100000

# Events: bits 16 and up of a wait status.
EVENT_CLONE, EVENT_STOP = 3, 128

# PTRACE_GET_SYSCALL_INFO's `op`.
SYSCALL_ENTRY, SYSCALL_EXIT = 1, 2

#: The option of waitpid to wait for threads, too (man waitpid, __WALL).
WALL = 0x40000000
_SIGSET_BYTES = 8
_SPINS = 200
_NT_X86_XSTATE = 0x202
#: A buffer size that suffices for AMX (man 2 ptrace: Linux returns the size that it filled).
_XSTATE_BYTES = 16384


#: The registers of `struct user_regs_struct`, in its order.
_REGISTERS = (
    "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss "
    "fs_base gs_base ds es fs gs"
)


class Registers(ctypes.Structure):
    """`struct user_regs_struct` (arch/x86/include/asm/user_64.h)."""

    _fields_ = tuple((name, ctypes.c_ulonglong) for name in _REGISTERS.split())
    rbx: int
    r8: int
    r9: int
    r10: int
    r12: int
    rax: int
    rdx: int
    rsi: int
    rdi: int
    orig_rax: int
    rip: int
    cs: int
    rsp: int

    def copy(self) -> Registers:
        """Return a copy, which may be changed."""
        return Registers.from_buffer_copy(self)


class _SyscallInfo(ctypes.Structure):
    """`struct ptrace_syscall_info` (include/uapi/linux/ptrace.h): numbers[0] is the call's number at entry, its result at exit."""

    _fields_ = (
        ("op", ctypes.c_ubyte),
        ("padding", ctypes.c_ubyte * 3),
        ("arch", ctypes.c_uint),
        ("instruction_pointer", ctypes.c_ulonglong),
        ("stack_pointer", ctypes.c_ulonglong),
        ("numbers", ctypes.c_longlong * 7),
    )


class _Area(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))
    length: int


class SyscallStop(NamedTuple):
    """The place in a system call where a tracee stands. `op` is SYSCALL_ENTRY, SYSCALL_EXIT or 0 (in no call).

    At entry `number` and `arguments` are those of the call, at exit `number` is its result (-errno on failure).
    """

    op: int
    instruction_pointer: int
    number: int
    arguments: tuple[int, ...]


class Kind(Enum):
    """The kinds of stop that a wait status can report (man ptrace, "Stopped states")."""

    ENDED = "ended"
    #: The tracee runs; waitpid never reports this.
    RUNNING = "running"
    #: PTRACE_EVENT_STOP by PTRACE_INTERRUPT, or the first stop of a task that was attached at its birth.
    TRAP = "trap"
    #: PTRACE_EVENT_STOP because the whole process is stopped by SIGSTOP or another stop signal.
    GROUP = "group"
    #: Another PTRACE_EVENT_*.
    EVENT = "event"
    #: Entry to or exit from a system call.
    SYSCALL = "syscall"
    #: A signal is about to be delivered; it is lost unless the tracee is restarted with it.
    SIGNAL = "signal"


class Stop(NamedTuple):
    """A result of waitpid. `signal` and `event` are 0 where they do not apply."""

    kind: Kind
    signal: int = 0
    event: int = 0


@cache
def _libc() -> ctypes.PyDLL:
    # PyDLL keeps the GIL: the calls take microseconds and never wait for the tracee. Releasing the
    # GIL would cost up to a switch interval (5 ms) at each of them while other threads compute.
    libc = ctypes.PyDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.waitpid.restype = ctypes.c_int
    libc.waitpid.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    return libc


def request(
    number: int, tid: int, address: int | None = None, data: ctypes.Structure | int | None = None
) -> int:
    """Call ptrace(2). Raises OSError; ProcessLookupError also when the tracee is not stopped."""
    pointer = ctypes.byref(data) if isinstance(data, ctypes.Structure) else data
    result = int(_libc().ptrace(number, tid, address, pointer))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace request {number:#x} on thread {tid}: {os.strerror(error)}")
    return result


def registers(tid: int) -> Registers:
    """Return the general registers of a stopped tracee."""
    found = Registers()
    request(GETREGS, tid, data=found)
    return found


def set_registers(tid: int, values: Registers) -> None:
    """Set the general registers with which the tracee will continue."""
    request(SETREGS, tid, data=values)


def extended_registers(tid: int) -> bytes:
    """Return the floating-point and vector registers of a stopped tracee, as XSAVE writes them."""
    buffer = ctypes.create_string_buffer(_XSTATE_BYTES)
    area = _Area(ctypes.addressof(buffer), len(buffer))
    request(GETREGSET, tid, _NT_X86_XSTATE, area)
    return buffer.raw[: area.length]


def set_extended_registers(tid: int, values: bytes) -> None:
    """Set the floating-point and vector registers with which the tracee will continue."""
    buffer = ctypes.create_string_buffer(values, len(values))
    request(SETREGSET, tid, _NT_X86_XSTATE, _Area(ctypes.addressof(buffer), len(buffer)))


def signal_mask(tid: int) -> int:
    """Return the mask of blocked signals, bit n-1 for signal n; in sigsuspend or ppoll, the mask that the call will restore."""
    mask = ctypes.c_ulonglong()
    request(GETSIGMASK, tid, _SIGSET_BYTES, ctypes.addressof(mask))
    return mask.value


def set_signal_mask(tid: int, mask: int) -> None:
    """Block exactly the signals in `mask`; SIGKILL and SIGSTOP cannot be blocked."""
    value = ctypes.c_ulonglong(mask)
    request(SETSIGMASK, tid, _SIGSET_BYTES, ctypes.addressof(value))


def event_message(tid: int) -> int:
    """Return the message of a tracee's ptrace event: after EVENT_CLONE, the new thread's id in our PID namespace."""
    message = ctypes.c_ulong()
    request(GETEVENTMSG, tid, None, ctypes.addressof(message))
    return message.value


def syscall_stop(tid: int) -> SyscallStop:
    """Return the system call at which a tracee stopped, and whether at its entry or exit, which its wait status does not tell."""
    info = _SyscallInfo()
    request(GET_SYSCALL_INFO, tid, ctypes.sizeof(info), ctypes.addressof(info))
    number, *arguments = info.numbers
    return SyscallStop(
        info.op,
        info.instruction_pointer,
        number,
        tuple(argument & (1 << 64) - 1 for argument in arguments),
    )


def restart(number: int, tid: int, signum: int = 0) -> None:
    """Restart a stopped tracee by CONT, SYSCALL, LISTEN or DETACH, with `signum` delivered (0: none)."""
    request(number, tid, None, signum or None)


def poll(tid: int) -> Stop | None:
    """Return the next stop of a tracee; None if it still runs."""
    status = ctypes.c_int()
    got = int(_libc().waitpid(tid, ctypes.byref(status), WALL | os.WNOHANG))
    if got == 0:
        return None
    # ECHILD: the thread was reaped, or execve by another thread took its id over.
    return Stop(Kind.ENDED) if got < 0 else decode(status.value)


def wait(tid: int, timeout: float) -> Stop:
    """Wait for the next stop of a tracee. Raises TimeoutError after `timeout` seconds.

    Stops that we cause come within microseconds, so this polls a few times before it sleeps. A blocking wait would release
    the GIL and could not have a deadline.
    """
    deadline, pause, spins = time.monotonic() + timeout, 20e-6, 0
    while (stop := poll(tid)) is None:
        spins += 1
        if spins < _SPINS:
            continue
        if time.monotonic() > deadline:
            message = f"thread {tid} did not stop within {timeout:g} s"
            raise TimeoutError(message)
        time.sleep(pause)
        pause = min(pause * 1.5, 2e-3)
    return stop


def decode(status: int) -> Stop:
    """Return the stop that a wait status means (man ptrace: PTRACE_O_TRACESYSGOOD, PTRACE_SEIZE, group-stop)."""
    if status & 0xFF != 0x7F:
        return Stop(Kind.ENDED)
    signum, event = status >> 8 & 0xFF, status >> 16
    if signum == signal.SIGTRAP | 0x80:
        return Stop(Kind.SYSCALL)
    if event == EVENT_STOP:
        return Stop(Kind.TRAP) if signum == signal.SIGTRAP else Stop(Kind.GROUP, signum)
    if event:
        return Stop(Kind.EVENT, event=event)
    return Stop(Kind.SIGNAL, signum)
