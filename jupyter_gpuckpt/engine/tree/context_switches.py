"""Proof that stopped tasks have not run: their context switches, counted when they have left their processors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ...host import processes
from .launch import pids, wait_until
from .tree import Tree

#: What a thread's `syscall` file says of one that has not left its processor, and how often that is asked.
_RUNS, _COUNTS = b"running\n", 100


def counted_once_stopped(tree: Tree) -> dict[int, dict[int, int]]:
    """Return the context switches of every thread, by process, once all have left their processors.

    A task shows as stopped just before it does. Reading its `syscall` file waits until it has (fs/proc/base.c,
    proc_pid_syscall: wait_task_inactive), or says that it runs, when there was no end to it. So they are counted until nothing
    has changed while all of them were looked at.
    """
    members = pids(tree)
    counted: dict[int, dict[int, int]] = {}
    for _ in range(_COUNTS):
        before, still = counted, True
        for pid in members:
            for tid in processes.threads(pid):
                wait_until(lambda tid=tid: processes.state(tid) in ("T", "Z", None), timeout=5.0)  # type: ignore[misc]
                with suppress(OSError):
                    still &= Path(f"/proc/{pid}/task/{tid}/syscall").read_bytes() != _RUNS
        counted = {pid: processes.context_switches(pid) for pid in members}
        if still and counted == before:
            break
    return counted


def that_has_run(counted: Mapping[int, Mapping[int, int]]) -> int | None:
    """Return a process that has run since `counted_once_stopped` looked, or has gone; None if none has."""
    return next(
        (pid for pid, before in counted.items() if processes.context_switches(pid) != before), None
    )
