"""Scratch of kernels that an older version launched: it is in another place, so it is bind mounted where this version expects it."""

from __future__ import annotations

import logging

from ...host.commands import CommandFailed
from ...model import FORMER_SCRATCH, SCRATCH
from . import mounts
from .tree import Tree

logger = logging.getLogger(__name__)

#: A file that is on every scratch, from the launch on.
_MARK = "keeper"


def lay_over(tree: Tree) -> None:
    """Bind mount a tree's former scratch at its present place, in the tree's mount namespace, unless the tree is newer.

    It never raises: if it fails the tree runs on, and a save of it is refused (`is_known`).
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
