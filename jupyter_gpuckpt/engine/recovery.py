"""Recovery of a tree from a freeze that was interrupted when the daemon was killed.

Inspection shows how far the freeze had come: the standstill's journal and CRIU's images lie on the tree's own scratch tmpfs,
and the driver reports the state of every CUDA process. A ghost has died with its tracer.
"""

from __future__ import annotations

import logging

from ..errors import FreezeFailed
from ..wire.progress import Progress
from .audit import terminal_queues
from .capture import clear, drop_copies, unlink_strays
from .criu import command_lines as criu_options
from .criu import deleted_files
from .gpu.gpu_processes import DIRECTORY, GpuProcesses
from .tcp import record as tcp_record
from .tree.launch import wait_until
from .tree.standstill import Standstill
from .tree.strangers import end_strangers, strangers
from .tree.tree import Tree

logger = logging.getLogger(__name__)

#: How long to wait for a CRIU whose caller is gone: it fails and cleans up by itself; killing it is the last resort.
_CRIU_SECONDS = 15.0


def recover(tree: Tree, *, stands_still: bool = False) -> None:
    """Let `tree` run on as before the freeze, wherever that was interrupted. `stands_still`: it stood still before, and still does.

    This may be called repeatedly, and without such a freeze. Errors are logged; the next save retries the GPU's part.
    """
    if not wait_until(lambda: not strangers(tree), timeout=_CRIU_SECONDS):
        end_strangers(tree, _CRIU_SECONDS)
    unlink_strays(tree)
    tcp_record.recover(tree)
    terminal_queues.recover(tree)
    gpu = GpuProcesses(tree, Progress())
    standstill = Standstill.found(tree, lasts=stands_still)
    if standstill is not None:
        if not stands_still:
            logger.warning("letting the processes of tree %d run on", tree.init_pid)
        standstill.repair()
        gpu.hold_taken()
        try:
            standstill.end()
        except FreezeFailed as error:
            logger.error("tree %d: %s %s", tree.init_pid, error, error.hint)
    drop_copies(tree)
    deleted_files.remove(tree)
    clear(tree.inside(criu_options.IMAGES))
    if gpu.recover():
        clear(tree.inside(DIRECTORY))
