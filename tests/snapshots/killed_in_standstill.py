"""A program that begins a standstill with an audit, and kills itself in the middle of it, as a daemon that is killed.

`python -m tests.snapshots.killed_in_standstill MOMENT TREE`: MOMENT is `ask`, when a thread executes the audit's function, or
`begin`, when the terminals are emptied.
"""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from jupyter_gpuckpt.engine.audit.reading import Audit
from jupyter_gpuckpt.engine.injection.tracee import Tracee
from jupyter_gpuckpt.engine.tree.standstill import Standstill
from jupyter_gpuckpt.engine.tree.tree import Tree


def die(*arguments: object) -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


class DyingAudit(Audit):
    """An audit that ends with its process."""

    def ask(self, held):
        if sys.argv[1] == "ask" and len(held.tids) > 1:
            Tracee._wait = die  # the thread runs when this waits for it
        super().ask(held)

    def begin(self, descriptors):
        super().begin(descriptors)
        die()


if __name__ == "__main__":
    tree = msgspec.json.decode(sys.argv[2], type=Tree)
    Standstill(tree, DyingAudit(tree)).begin()
