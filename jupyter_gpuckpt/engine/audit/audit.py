"""The audit of a tree that is frozen: questions to its threads, its terminals' queues, and all that can be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..injection.threads_held import ThreadsHeld
from ..tree.tree import Tree
from . import reading
from .fact_records import Facts
from .terminal_queues import TerminalQueues


class Audit:
    """The guest of a standstill that gathers the facts of its moment."""

    def __init__(self, tree: Tree) -> None:
        self._answers: reading.Answers = {}
        self._descriptors: Mapping[int, Sequence[int]] = {}
        self._terminals = TerminalQueues(tree)

    def ask(self, held: ThreadsHeld) -> None:
        """Ask the threads of a process."""
        self._answers |= reading.ask(held)

    def begin(self, descriptors: Mapping[int, Sequence[int]]) -> None:
        """Take what waits in terminals."""
        self._descriptors = descriptors
        self._terminals.take(descriptors)

    def end(self) -> None:
        """Put back what waits in terminals."""
        self._terminals.put_back()

    def read(self) -> Callable[[], Facts]:
        """Read the processes, which must stand still; return a function that understands all facts when they run on."""
        found = reading.read(list(self._descriptors), self._descriptors)
        queues = list(self._terminals.queues)
        return lambda: reading.facts(found, self._answers, queues)
