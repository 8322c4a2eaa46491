"""Process trees that stand still for longer than an operation: kernels that were shut down, and former processes. All functions block."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from ...engine.tcp import listeners
from ...engine.tree.standstill import Standstill
from ...engine.tree.tree import Tree
from ...errors import FreezeFailed


def stop(tree: Tree) -> None:
    """Stop all processes of a tree until `go_on`, which another daemon may call. Raises FreezeFailed; then it runs on."""
    standstill = Standstill(tree)
    try:
        standstill.begin()
    except BaseException:
        standstill.end()
        raise


def set_aside(tree: Tree) -> None:
    """Stop all processes of a tree and give its ports to others, until `go_on`. Raises FreezeFailed; then it runs on."""
    stop(tree)
    try:
        listeners.silence(tree)
    except BaseException:
        go_on(tree)
        raise


def go_on(tree: Tree, own_ports: Collection[int] = ()) -> None:
    """Let a stopped tree run on; do nothing if it is not stopped. Raises FreezeFailed if one of `own_ports` is in use; it stays stopped."""
    listeners.listen_again(tree, own_ports)
    standstill = Standstill.found(tree)
    if standstill is not None:
        with suppress(FreezeFailed):  # it ends later by itself
            standstill.end()
