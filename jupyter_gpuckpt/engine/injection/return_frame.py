"""A signal frame by which a thread that executes injected calls continues unchanged if its tracer dies.

Covers: the data on the thread's stack. Does not cover: the calls (`tracee`). See also: `tree/standstill.py`, which serves the
same purpose for stopped processes and writes nothing into their memory.

When a tracer dies, Linux lets its tracees run on at once with whatever registers they have. So the registers must always allow the
thread to run on. The instruction after an injected `syscall` is a `ret` in the program's own C library. It returns to the library's
`rt_sigreturn`, which reads a frame from the stack. That frame is the one that Linux itself writes for the return from a signal
handler: the thread's own registers, vector registers and signal mask (arch/x86/kernel/signal_64.c).
"""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...host.processes import Mapping
from . import ptrace, task_memory
from .ptrace import Registers

_SYSCALL_RET = b"\x0f\x05\xc3"
#: The code of rt_sigreturn: mov $15, %rax (or %eax); syscall
_SIGRETURNS = (b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05", b"\xb8\x0f\x00\x00\x00\x0f\x05")

#: The 128 bytes below the stack pointer are in use (System V ABI); `Tracee.borrowed` uses what follows.
_KEPT_FREE = 128 + 4096
_XSTATE_ALIGNMENT = 64
_FRAME_BYTES = 8 + 304 + 128  # pretcode, ucontext, siginfo
#: uc_flags: there is extended state, and ss is valid and to be used.
_UC_FLAGS = 0x1 | 0x2 | 0x4
#: Not a valid combination, so that sigreturn leaves the alternative stack as it is (signal_64.c ignores the error).
_NO_ALTSTACK_CHANGE = 0x7FFF
#: The registers in the order of `struct sigcontext`.
_CONTEXT = [
    "r8",
    "r9",
    "r10",
    "r11",
    "r12",
    "r13",
    "r14",
    "r15",
    "rdi",
    "rsi",
    "rbp",
    "rbx",
    "rdx",
    "rax",
    "rcx",
    "rsp",
    "rip",
    "eflags",
]

# The software-reserved bytes of an XSAVE area (arch/x86/include/uapi/asm/sigcontext.h, `struct _fpx_sw_bytes`).
_SW_OFFSET, _HEADER_OFFSET = 464, 512
_MAGIC1, _MAGIC2 = 0x46505853, 0x46505845
#: AMX state: a task that has not requested AMX has no room for it, and Linux refuses a larger area.
_AMX = 0b11 << 17
_BYTES_WITHOUT_AMX, _AMX_OFFSET = 2696, 2752

#: Results of calls that the stop interrupted and that are made again (include/linux/errno.h); the last one by restart_syscall(2).
_RESTART_CALL, _RESTART_BLOCK, _NR_RESTART_SYSCALL = (-512, -513, -514), -516, 219


class ReturnFrame(NamedTuple):
    """A signal frame in a thread's memory.

    `call`: the address of the `syscall` instruction; `stack`: the stack pointer for it; `before`: the memory that was
    overwritten from there on.
    """

    call: int
    stack: int
    before: bytes

    @property
    def returns_to(self) -> int:
        """The address of the `ret` after the call."""
        return self.call + len(task_memory.SYSCALL)

    def clear(self, tid: int) -> None:
        """Restore the thread's memory."""
        task_memory.write(tid, self.stack, self.before)


def write_frame(tid: int, registers: Registers, mask: int) -> ReturnFrame | None:
    """Write a frame that restores these registers and this signal mask; return None if its code or room on the stack is missing.

    The thread is stopped by ptrace and still has these registers.
    """
    call = task_memory.find_code(tid, [_SYSCALL_RET], first=_in_libc)
    sigreturn = task_memory.find_code(tid, _SIGRETURNS, first=_in_libc)
    if not call or not sigreturn:
        return None
    extended = _extended(ptrace.extended_registers(tid))
    top = (registers.rsp - _KEPT_FREE - len(extended)) // _XSTATE_ALIGNMENT * _XSTATE_ALIGNMENT
    stack = (top - _FRAME_BYTES) & ~15
    frame = _frame(sigreturn, _resumed(registers), mask, top)
    image = frame.ljust(top - stack, b"\0") + extended
    with suppress(OSError):
        before = task_memory.read(tid, stack, len(image))
        if len(before) == len(image):
            task_memory.write(tid, stack, image)
            return ReturnFrame(call, stack, before)
    return None


def _in_libc(area: Mapping) -> bool:
    return Path(area.path).name.startswith(("libc.", "libc-", "ld-musl"))


def _frame(sigreturn: int, after: Registers, mask: int, extended: int) -> bytes:
    """Return a `struct rt_sigframe`."""
    context = struct.pack("<18Q", *(getattr(after, name) for name in _CONTEXT))
    segments = struct.pack("<4H", after.cs, after.gs & 0xFFFF, after.fs & 0xFFFF, after.ss)
    fault = struct.pack("<4Q", 0, 0, mask, 0)  # err, trapno, oldmask, cr2
    ucontext = struct.pack("<QQQiIQ", _UC_FLAGS, 0, 0, _NO_ALTSTACK_CHANGE, 0, 0)
    return (
        struct.pack("<Q", sigreturn)
        + ucontext
        + context
        + segments
        + fault
        + struct.pack("<Q", extended)
        + bytes(64)
        + struct.pack("<Q", mask)
        + bytes(128)
    )


def _resumed(registers: Registers) -> Registers:
    """Return the registers with which Linux would continue the thread after the stop; sigreturn itself restarts no call."""
    after = registers.copy()
    result = struct.unpack("<q", struct.pack("<Q", registers.rax))[0]
    if registers.orig_rax >> 63 == 0 and result in (*_RESTART_CALL, _RESTART_BLOCK):
        after.rax = _NR_RESTART_SYSCALL if result == _RESTART_BLOCK else registers.orig_rax
        after.rip -= len(task_memory.SYSCALL)
    return after


def _extended(state: bytes) -> bytes:
    """Return an XSAVE area in the format of a signal frame."""
    (features,) = struct.unpack_from("<Q", state, _SW_OFFSET)
    (in_use,) = struct.unpack_from("<Q", state, _HEADER_OFFSET)
    if len(state) > _AMX_OFFSET and not in_use & _AMX:
        state, features = state[:_BYTES_WITHOUT_AMX], features & ~_AMX
    length = len(state)
    reserved = struct.pack("<IIQI", _MAGIC1, length + 4, features, length).ljust(48, b"\0")
    state = state[:_SW_OFFSET] + reserved + state[_HEADER_OFFSET:]
    return state + struct.pack("<I", _MAGIC2)
