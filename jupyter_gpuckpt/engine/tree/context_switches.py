"""Proof that stopped tasks have not run: their counts of context switches, read after they have left their CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ...host import processes
from .launch import pids, wait_until
from .tree import Tree

#: The content of the `syscall` file of a thread that has not left its CPU, and the most attempts to count.
_RUNS, _COUNTS = b"running\n", 100


def counted_once_stopped(tree: Tree) -> dict[int, dict[int, int]]:
    """Return the context switches of every thread, by process, once all have left their CPUs.

    A task shows as stopped just before it leaves its processor. Reading its `syscall` file waits until it has left (fs/proc/base.c,
    proc_pid_syscall: wait_task_inactive), or says "running" if that takes too long. So the threads are counted again until no
    count has changed and none was running.
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
    """Return a process that has run or ended since `counted_once_stopped` was called; None if there is none."""
    return next(
        (pid for pid, before in counted.items() if processes.context_switches(pid) != before), None
    )
