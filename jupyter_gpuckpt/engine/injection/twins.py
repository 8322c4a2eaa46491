"""Twins: copies of a process that clone() makes, injected into it; they stay stopped and never run an instruction of the program.

A twin is made with CLONE_PARENT: it is a child of the process's parent, so the process never sees it. Its exit signal is the
caller's own (kernel/fork.c, `copy_process`: CLONE_PARENT copies it), so the parent gets a SIGCHLD and reaps a pid that it does not
know. Therefore only a process whose parent is ours (init or keeper), which reaps any child, can have twins. A twin dies with this
process, because it is traced with PTRACE_O_EXITKILL.
"""

from __future__ import annotations

import errno

from ...host import processes
from . import ptrace
from .tracee import Tracee

_NR_CLONE, _CLONE_PARENT = 56, 0x8000
#: The flag for a twin that has the process's own memory and not a copy.
SHARES_MEMORY = 0x100


def make_twin(pid: int, flags: int = 0) -> Tracee:
    """Make a twin of a process, stopped before its first instruction. Raises OSError, TimeoutError.

    The process may run, sleep or be stopped (T); its state does not change. Only the calling thread can use the twin. `flags`: those
    of clone (man 2 clone).
    """
    tid = processes.living_thread(pid)
    with Tracee(pid, tid, options=ptrace.TRACECLONE) as original:
        original.syscall(_NR_CLONE, _CLONE_PARENT | flags, 0, 0, 0, 0)
        # The call's result is the twin's pid in the program's namespace; the event has its pid in ours.
        pids = [number for event, number in original.events if event == ptrace.EVENT_CLONE]
        if not pids:
            raise OSError(errno.EPROTO, f"the twin of process {pid} was not seen")
        twin = Tracee(pids[0])
        try:
            twin.await_attached()
            twin.set_options(ptrace.EXITKILL)
        except BaseException:
            twin.kill()
            raise
    return twin
