"""The watch on the inits of kernels' trees: a function is called when one has ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from ...engine.tree.tree import Tree
from .machine import Machine

#: How long to wait before a watch is tried again.
_RETRY_SECONDS = 1.0

_Kernel = TypeVar("_Kernel")


class TreeWatch(Generic[_Kernel]):
    """The watched trees, each with its kernel. `on_end` is called once for each whose init has ended. Used on the event loop only."""

    def __init__(
        self, machine: Machine, on_end: Callable[[_Kernel, Tree], Awaitable[None]]
    ) -> None:
        self._machine, self._on_end = machine, on_end
        self._watched: dict[int, tuple[_Kernel, Tree]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, kernel: _Kernel, tree: Tree) -> None:
        """Watch the init of a tree: a pidfd becomes readable when its process ends (man pidfd_open)."""
        if any(watched == tree for _, watched in self._watched.values()):
            return
        try:
            pidfd = self._machine.watch(tree)
        except OSError:  # no file can be opened, for which no operation must fail
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self.add, kernel, tree)
            return
        if pidfd is None:
            self._spawn(self._end(kernel, tree))
            return
        self._watched[pidfd] = (kernel, tree)
        asyncio.get_running_loop().add_reader(pidfd, self._on_readable, pidfd)

    def remove(self, tree: Tree) -> None:
        """Stop watching a tree."""
        for pidfd, (_, watched) in list(self._watched.items()):
            if watched == tree:
                self._unwatch(pidfd)

    def close(self) -> None:
        """Stop watching all trees."""
        for pidfd in list(self._watched):
            self._unwatch(pidfd)

    async def _end(self, kernel: _Kernel, tree: Tree) -> None:
        await self._on_end(kernel, tree)

    def _on_readable(self, pidfd: int) -> None:
        self._spawn(self._end(*self._unwatch(pidfd)))

    def _unwatch(self, pidfd: int) -> tuple[_Kernel, Tree]:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        return self._watched.pop(pidfd)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
