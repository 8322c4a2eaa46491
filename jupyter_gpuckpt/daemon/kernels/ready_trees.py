"""The process trees of ready copies: resumed from templates' snapshots and stopped, for kernels that will be started. Thread-safe.

They belong to no kernel, so nothing lists, measures, suspends or saves them. Whatever needs their memory gets it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...engine.tree import launch as trees
from ...engine.tree.tree import Tree
from ...wire.place import Place
from ...wire.protocol import WantedCopies

_log = logging.getLogger(__name__)

#: How long no other is made after they were given up.
_PAUSE_SECONDS = 60.0


def prefix(place: Place) -> str:
    """Return the beginning of the names of ready copies of a place, which they have in the place of a kernel's id."""
    return f"ready-{place.key}-"


class ReadyTree(NamedTuple):
    """A ready copy. `ports`: those on which it listens; `moved_ports`: those of its snapshot's own ones and of servers, old to new."""

    owner_id: str
    wanted: WantedCopies
    tree: Tree
    ports: list[int]
    moved_ports: dict[int, int]
    log_path: str


class ReadyTrees:
    """The ready copies of this daemon."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trees = list[ReadyTree]()
        self._given_up = -_PAUSE_SECONDS

    @property
    def may_grow(self) -> bool:
        """Return whether copies were not given up a short time ago."""
        return time.monotonic() - self._given_up >= _PAUSE_SECONDS

    def add(self, ready: ReadyTree) -> None:
        """Keep a copy."""
        with self._lock:
            self._trees.append(ready)

    def count(self, owner_id: str, wanted: WantedCopies) -> int:
        """Return how many copies an owner has of what it wants."""
        with self._lock:
            return sum((one.owner_id, one.wanted) == (owner_id, wanted) for one in self._trees)

    def take(self, is_it: Callable[[ReadyTree], bool]) -> ReadyTree | None:
        """Return a copy, which is kept no longer; None if there is none that lives."""
        while (found := self._removed(is_it, most=1)) and not trees.alive(found[0].tree):
            _end(found[0])
        return found[0] if found else None

    def end(self, is_it: Callable[[ReadyTree], bool]) -> bool:
        """End copies; return whether there were any."""
        found = self._removed(is_it)
        for one in found:
            _end(one)
        return bool(found)

    def give_up(self) -> bool:
        """End all copies, because what they hold is needed; return whether there were any."""
        if not self.end(lambda one: True):
            return False
        _log.info("ready copies are given up: memory or the GPU is needed")
        self._given_up = time.monotonic()
        return True

    def _removed(self, is_it: Callable[[ReadyTree], bool], most: int = 1 << 30) -> list[ReadyTree]:
        with self._lock:
            found = [one for one in self._trees if is_it(one)][:most]
            self._trees = [one for one in self._trees if one not in found]
        return found


def _end(ready: ReadyTree) -> None:
    trees.kill(ready.tree)
    with suppress(OSError):
        Path(ready.log_path).unlink()
