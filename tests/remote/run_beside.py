"""Run a program until another process ends, however it ends: python run_beside.py PID COMMAND...

It returns at once. No signal of a terminal reaches the program, and whoever asked for it has no child to wait for.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(pid: int, words: list[str]) -> None:
    """Start the program under a process that kills it when `pid` has ended, and without which it ends, too."""
    other = os.pidfd_open(pid)
    if os.fork():
        return
    os.setsid()
    program = os.fork()
    if not program:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.execv(words[0], words)
    select.select([other, os.pidfd_open(program)], [], [])
    os.kill(program, signal.SIGKILL)
    os.waitpid(program, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
