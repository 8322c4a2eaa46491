"""The scratch of kernels that an older version launched elsewhere, bind mounted where this version expects it."""

from __future__ import annotations

import logging

from ...host.commands import CommandFailed
from ...wire.manifest_records import FORMER_SCRATCH, SCRATCH
from . import mounts
from .tree import Tree

logger = logging.getLogger(__name__)

#: A file that every scratch has from the launch on.
_MARK = "keeper"


def mount_over(tree: Tree) -> None:
    """Bind mount a tree's former scratch at its current place, in the tree's mount namespace, unless the tree is newer.

    This never raises. If it fails, the tree runs on, and saves of it are refused (`is_known`).
    """
    root = tree.root
    try:
        if not is_known(tree) and (root / FORMER_SCRATCH[1:] / _MARK).exists():
            (root / SCRATCH[1:]).mkdir(mode=0o755, exist_ok=True)
            mounts.bind(tree.init_pid, FORMER_SCRATCH, SCRATCH)
    except (OSError, CommandFailed) as error:
        logger.warning("the scratch of tree %d cannot be moved: %s", tree.init_pid, error)


def is_known(tree: Tree) -> bool:
    """Return whether a tree's scratch is where this version expects it."""
    return (tree.scratch / _MARK).exists()
