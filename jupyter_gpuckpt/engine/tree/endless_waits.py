"""System calls without a timeout, restarted after a freeze interrupts them.

Linux restarts an interrupted `poll` from data of its own (`restart_syscall`), which no image holds, so CRIU makes such a call fail
with EINTR instead (compel's `get_task_regs`). `epoll_wait` fails with EINTR at every stop. A program that never gets signals
need not expect that: xeus kernels end with "terminate called after throwing an instance of 'zmq::error_t'". A wait with a timeout
still fails with EINTR, because it could last twice as long if it were restarted.
"""

from __future__ import annotations

from ..injection import ptrace
from ..injection.ptrace import Registers
from ..injection.tracee import Tracee

#: The register with the timeout, by the number of the call (man 2 poll, epoll_wait, epoll_pwait).
_WAITS = {7: "rdx", 232: "r10", 281: "r10"}
#: ERESTARTNOHAND, ERESTART_RESTARTBLOCK (include/linux/errno.h), EINTR.
_RESTART, _RESTART_BY_BLOCK, _INTERRUPTED = -514, -516, -4
_ALL_BITS = (1 << 64) - 1


def restart_endless_wait(tracee: Tracee) -> None:
    """Make a stopped thread repeat its endless call with the same arguments when it continues. A signal handler still runs first."""
    registers = ptrace.registers(tracee.tid)
    if _is_endless(registers) and _result(registers) in (_RESTART_BY_BLOCK, _INTERRUPTED):
        changed = registers.copy()
        changed.rax = _RESTART & _ALL_BITS
        ptrace.set_registers(tracee.tid, changed)


def _is_endless(registers: Registers) -> bool:
    limit = _WAITS.get(registers.orig_rax)
    return limit is not None and bool(getattr(registers, limit) & 0x8000_0000)  # a negative int


def _result(registers: Registers) -> int:
    return registers.rax - (1 << 64) if registers.rax >> 63 else registers.rax
