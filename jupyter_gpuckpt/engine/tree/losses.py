"""The replacement of misleading errors by KernelLost: when a tree ends during an operation, each step fails in its own way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import GpuCkptError, KernelLost, OperationCancelled
from ...host import processes
from .launch import alive, wait_until
from .tree import Tree

#: How long to wait for the end of processes that are ending: Linux frees some ten GB of memory in a second.
_END_SECONDS = 60.0


@contextmanager
def telling_a_loss(tree: Tree, what: str) -> Iterator[None]:
    """Raise KernelLost in place of an error if the kernel has ended or is ending. `what`: the participle of the operation ("saved").

    By then init has written the exit status, by which the daemon tells a kernel that ended by itself from one that is lost.
    """
    try:
        yield
    except OperationCancelled:
        raise
    except Exception as error:
        if not _has_ended(tree):
            raise
        if isinstance(error, GpuCkptError):
            cause = f"{error} ({error.details})" if error.details else str(error)
        else:
            cause = f"{type(error).__name__}: {error}"
        raise KernelLost(
            f"The kernel ended while it was being {what}.",
            hint="Resume it from its last snapshot, or restart it. Its log file, or the system's if memory was short, has the cause.",
            details=cause,
        ) from error


def _has_ended(tree: Tree) -> bool:
    """Return whether the tree has ended; if it is ending, wait until it has."""
    wait_until(lambda: not alive(tree) or not _is_ending(tree), timeout=_END_SECONDS)
    return not alive(tree) or _is_ending(tree)


def _is_ending(tree: Tree) -> bool:
    """Return whether one of the processes has ended or is ending whose end is that of the whole tree."""
    return any(map(processes.is_ending, (tree.init_pid, tree.keeper_pid, tree.kernel_pid)))
