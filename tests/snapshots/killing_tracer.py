"""A program that kills CRIU in the middle of its work inside a task, at a moment that can be chosen.

`python -m tests.snapshots.killing_tracer PID NUMBER`: PID is CRIU's. The moments are those in which it has let a task run and the
task stands still again, as far as it does by itself; NUMBER counts them from 0.
Prints "ready", then "killed", or the count of all moments where CRIU came to its end before.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from pathlib import Path

from jupyter_gpuckpt.engine.injection import ptrace
from tests.conftest import wait_for

NR_PTRACE = 101
CONT, SYSCALL, SEIZE, INTERRUPT = 7, 24, 0x4206, 0x4207
OPTION_SYSGOOD, ALL_CHILDREN = 1, 0x40000000
#: System calls in which CRIU's code in a task waits for orders: recvfrom, recvmsg, read, futex, connect.
WAITING = ("45 ", "47 ", "0 ", "202 ", "42 ")


def find_task(nspid: int, tracer: int) -> Path:
    """Return the directory in /proc of the task that CRIU calls `nspid` and traces."""
    for status in Path("/proc").glob("[0-9]*/task/[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
        except OSError:
            continue
        if fields["NSpid"].split()[-1] == str(nspid) and fields["TracerPid"] == str(tracer):
            return status.parent
    raise LookupError(nspid)


def stands(task: Path) -> bool:
    """Return whether a task has come to a stop, or waits for CRIU."""
    state = (task / "stat").read_text().rpartition(")")[2].split()[0]
    return state == "t" or (task / "syscall").read_text().startswith(WAITING)


def main() -> None:
    """Trace CRIU from system call to system call."""
    pid, moments, entered = int(sys.argv[1]), 0, False
    ptrace.request(SEIZE, pid, data=OPTION_SYSGOOD)
    ptrace.request(INTERRUPT, pid)
    print("ready", flush=True)
    while True:
        _, status = os.waitpid(pid, ALL_CHILDREN)
        if not os.WIFSTOPPED(status):
            print(moments)
            return
        passed = 0
        if os.WSTOPSIG(status) == signal.SIGTRAP | 0x80:
            entered = not entered
            call = ptrace.registers(pid)
            succeeded = not entered and call.rax == 0
            if succeeded and call.orig_rax == NR_PTRACE and call.rdi in (CONT, SYSCALL):
                if moments == int(sys.argv[2]):
                    task = find_task(call.rsi, pid)
                    wait_for(functools.partial(stands, task))
                    os.kill(pid, signal.SIGKILL)
                    print("killed")
                    return
                moments += 1
        elif status >> 16 == 0:
            passed = os.WSTOPSIG(status)
        ptrace.request(SYSCALL, pid, data=passed)


if __name__ == "__main__":
    main()
