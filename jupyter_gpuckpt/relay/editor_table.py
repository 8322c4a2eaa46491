"""The editors that are there now, and what becomes of the kernel of one that goes."""

from __future__ import annotations

import time
from collections.abc import Iterator

from .editor_sockets import CHANNELS
from .editors import Editor
from .event_loop import EventLoop
from .kernel_table import KernelTable
from .notebook_files import identity_of

#: How long an editor without its parent process may take to connect.
_ARRIVAL_SECONDS = 10.0


class EditorTable:
    """The editors whose program runs."""

    def __init__(self, loop: EventLoop, kernels: KernelTable) -> None:
        self._loop, self._kernels = loop, kernels
        self._editors: list[Editor] = []

    def __iter__(self) -> Iterator[Editor]:
        return iter(list(self._editors))

    def add(self, editor: Editor) -> None:
        """Add an editor."""
        self._editors.append(editor)

    def gone(self, editor: Editor) -> None:
        """Close the sockets of an editor that is gone, and keep its kernel."""
        kernel = editor.kernel
        editor.tell(exit=1)  # a program that has outlived its editor would come again
        for channel in (*CHANNELS, "hb", "iopub"):
            self._loop.forget(editor.sockets[channel])
        self._loop.forget(editor.program.fileno())
        editor.close()
        if editor in self._editors:
            self._editors.remove(editor)
        if kernel is None:
            return
        kernel.detach()
        if not editor.has_run_cell and not editor.path:
            self._kernels.end(kernel)  # nobody has used it
            return
        self._kernels.describe(kernel)
        self._kernels.keep_few()

    def look_after(self) -> bool:
        """Note editors that were killed but whose program runs: its parent is gone, nobody is connected; return whether one is left.

        Notebooks are looked at while their editor is there: soon after its end the path may be another notebook's.
        """
        for editor in self:
            if editor.kernel is not None and editor.path:
                editor.kernel.note_identity(identity_of(editor.path))
            is_alone = not editor.has_living_parent and not editor.sockets.has_subscriber
            if is_alone and time.monotonic() - editor.began > _ARRIVAL_SECONDS:
                self.gone(editor)
        return bool(self._editors)
