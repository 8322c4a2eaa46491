"""Programs like CRIU that entered a tree's PID namespace, and the end of those that Linux does not end."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import suppress

from ...host import fuse, processes
from .launch import pids, wait_until
from .tree import Tree

logger = logging.getLogger(__name__)


def strangers(tree: Tree, group: int | None = None) -> list[int]:
    """Return the processes in the tree's PID namespace that do not descend from its init; only those of a process group if one is named."""
    namespace = processes.namespace(tree.init_pid, "pid")
    own = {tree.init_pid, *processes.descendants(tree.init_pid)}
    return [
        pid
        for pid in processes.every()
        if pid not in own
        and group in (None, processes.process_group(pid))
        and processes.namespace(pid, "pid") == namespace
        and processes.state(pid) != "Z"
    ]


def end_strangers(tree: Tree, seconds: float, group: int | None = None) -> list[str]:
    """Kill the strangers (see there for `group`) and wait until they are gone; return the connections that had to be aborted for that.

    Linux ends no process that closes a file whose server does not answer. If they are not gone after `seconds`, connections are
    aborted, and if that does not help within as many seconds, they are left to themselves.
    """
    for pid in strangers(tree, group):
        logger.warning("ending process %d (%s), left in a kernel", pid, processes.name(pid))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if wait_until(lambda: not strangers(tree, group), timeout=seconds):
        return []
    aborted = fuse.abort_waiting(pids(tree))
    for text in aborted:
        logger.warning("ended the connection to a server that does not answer: %s", text)
    wait_until(lambda: not strangers(tree, group), timeout=seconds)
    return aborted
