"""The CPUs on which threads may run (sched_setaffinity), which CRIU does not save."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from ...host import processes
from .tree import Tree


def chosen(tree: Tree, pid: int) -> dict[int, list[int]]:
    """Return the CPUs of each thread that may use only some of the tree's, by the thread's id in the tree's namespace."""
    allowed = os.sched_getaffinity(tree.init_pid)
    found = {}
    for tid in processes.threads(pid):
        with suppress(OSError):  # it has ended
            processors = os.sched_getaffinity(tid)
            nspid = processes.nspid(tid)
            if processors != allowed and nspid is not None:
                found[nspid] = sorted(processors)
    return found


def apply(tree: Tree, pid: int, processors: Mapping[int, list[int]]) -> None:
    """Set the CPU affinity that `chosen` recorded, limited to CPUs that exist here and that the tree may use."""
    if not processors:
        return
    allowed = os.sched_getaffinity(tree.init_pid)
    for tid in processes.threads(pid):
        usable = allowed.intersection(processors.get(processes.nspid(tid) or 0, ()))
        if usable:
            with suppress(OSError):
                os.sched_setaffinity(tid, usable)
