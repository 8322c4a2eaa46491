"""Which kernel an editor gets: that of its notebook, one that a Jupyter server has left, or a new one."""

from __future__ import annotations

import time
from pathlib import Path

from ..wire.states import KernelState
from .backend_import import BackendImport
from .editor_table import EditorTable
from .editors import Editor
from .event_loop import EventLoop
from .kept_records import belonging
from .kernel_table import KernelTable
from .notebook_files import identity_of
from .relayed_kernels import RelayedKernel

#: How long after the end of one program the start of another by the same parent is a restart, and how long the end of another editor
#: with the same notebook is waited for.
RESTART_SECONDS, HANDOVER_SECONDS = 2.0, 2.0
_PAUSE = 0.05


class KernelChoice:
    """The chooser. When an editor has its kernel, `Editor.handle_waiting` is called."""

    def __init__(
        self, loop: EventLoop, backend: BackendImport, kernels: KernelTable, editors: EditorTable
    ) -> None:
        self._loop, self._backend = loop, backend
        self._kernels, self._editors = kernels, editors

    def may_be_kept(self, editor: Editor) -> bool:
        """Return whether the notebook that the editor will name may have a kernel."""
        folder = editor.start["folder"]
        return any(
            one.record.path and folder in {str(Path(one.record.path).parent), one.record.folder}
            for one in self._kernels
        )

    def choose(self, editor: Editor, path: str) -> None:
        """Choose the kernel for a notebook: its own, or a new one."""
        editor.is_choosing = True
        editor.path = path
        before = [one for one in self._kernels if one.record.path == path]
        if restarted := [one for one in before if _is_restart(one, editor)]:
            for kernel in restarted:
                if kernel.editor is not None and kernel.editor is not editor:
                    kernel.detach()
                self._kernels.set_aside(kernel)
            self.give_new(editor)
            return
        self._give_own(editor, path, time.monotonic() + HANDOVER_SECONDS)

    def _give_own(self, editor: Editor, path: str, deadline: float) -> None:
        if editor.ended:
            return
        records = [one.record for one in self._kernels if one is not editor.kernel]
        found = belonging(records, path)
        kernel = self._kernels.get(found.kernel_id) if found is not None else None
        if kernel is None:
            known = {one.record.kernel_id for one in self._kernels}
            self._loop.in_thread(
                lambda: self._backend().left_by_server(path, known),
                lambda left: self._give_from_server(editor, left),
            )
            return
        other = kernel.editor
        if other is not None and other.has_living_parent and not other.ended:
            if time.monotonic() < deadline:
                self._loop.later(_PAUSE, lambda: self._give_own(editor, path, deadline))
                return
            self._give_other(editor, "Another window has this notebook's kernel")
            return
        if other is not None:
            self._editors.gone(other)
        if kernel.is_reached or kernel.is_changing:
            self.give(editor, kernel)
        else:
            self._kernels.find(kernel, lambda state: self._give_found(editor, kernel, state))

    def _give_found(
        self, editor: Editor, kernel: RelayedKernel, state: KernelState | Exception | None
    ) -> None:
        """Give an editor a kernel that was suspended, unless a Jupyter server has taken it over meanwhile."""
        if editor.ended:
            return
        if kernel.editor is not None:
            self._give_own(editor, editor.path, time.monotonic() + HANDOVER_SECONDS)
            return
        if state is not None and not kernel.has_ended:
            self.give(editor, kernel)
            return
        if not kernel.has_ended:
            self._kernels.ended(kernel, 1)
        self._give_other(editor, "A Jupyter server has this notebook's kernel, or it has ended")

    def _give_other(self, editor: Editor, why: str) -> None:
        editor.notices.append(f"{why}, so this is a new one.")
        self.give_new(editor)

    def _give_from_server(self, editor: Editor, left: tuple[str, bool] | Exception) -> None:
        """Take over the kernel that a Jupyter server, which has ended, left for this notebook."""
        if editor.ended:
            return
        kernel_id, has_agent = left if isinstance(left, tuple) else ("", False)
        if not kernel_id or kernel_id in self._kernels:
            self.give_new(editor)
            return
        kernel = self._kernels.made(editor, kernel_id)
        kernel.record.has_agent = has_agent
        kernel.record.missed_first = 1  # of the cell that runs, if one does
        self.give(editor, kernel)

    def give(self, editor: Editor, kernel: RelayedKernel) -> None:
        """Give an editor a kernel that was kept, in place of the new one that it may have."""
        if editor.kernel is not None:
            former: RelayedKernel = editor.kernel
            left = list(former.requests)
            former.detach()
            editor.waiting = [("shell", message) for message in left] + editor.waiting
            if editor.has_run_cell:
                self._kernels.describe(former)
            else:
                self._kernels.end(former)
        record = kernel.record
        record.is_before_restart = False
        if editor.path:
            record.path, record.identity = editor.path, identity_of(editor.path)
        was_ending, record.ends_at = record.ends_at, 0.0
        kernel.attach(editor)
        if was_ending:
            self._kernels.undo_end(kernel)
        elif kernel.is_reached:
            self._kernels.describe(kernel)
        else:
            self._kernels.wake(kernel)
        editor.handle_waiting(editor)

    def give_new(self, editor: Editor) -> None:
        """Give an editor a new kernel; one that nobody has used is as good."""
        if editor.kernel is not None and not editor.has_run_cell:
            kernel: RelayedKernel = editor.kernel
            if editor.path:
                kernel.record.path, kernel.record.identity = editor.path, identity_of(editor.path)
                kernel.write()
                if kernel.is_reached:
                    self._kernels.describe(kernel)
        else:
            kernel = self._kernels.made(editor)
            kernel.attach(editor)
            self._kernels.launch(kernel, editor.start)
        editor.handle_waiting(editor)


def _is_restart(kernel: RelayedKernel, editor: Editor) -> bool:
    """Return whether an editor restarts this kernel: the same process started a second program for the same notebook at once."""
    before = kernel.last_editor
    if before is None or before is editor or before.parent != editor.parent:
        return False
    if kernel.record.is_before_restart or kernel.record.ends_at:
        return False
    return not before.ended or editor.began - before.ended < RESTART_SECONDS
