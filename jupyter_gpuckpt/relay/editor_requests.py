"""The requests of editors: answered here, passed on to a kernel, or kept until the editor has one."""

from __future__ import annotations

from . import cell_commands
from .backend_import import BackendImport
from .editors import Editor
from .kernel_choice import KernelChoice
from .kernel_infos import digest_of
from .kernel_table import KernelTable
from .notebook_files import path_in
from .relayed_kernels import RelayedKernel, is_by_person
from .signed_messages import Message


class EditorRequests:
    """The handler of what comes by the sockets of editors."""

    def __init__(self, backend: BackendImport, kernels: KernelTable, choice: KernelChoice) -> None:
        self._backend, self._kernels, self._choice = backend, kernels, choice

    def receive(self, editor: Editor, channel: str) -> None:
        """Handle the requests that have come on a channel."""
        for message in editor.sockets.received(channel):
            self._handle(editor, channel, message)

    def handle_waiting(self, editor: Editor) -> None:
        """Handle the requests that have waited for a kernel."""
        editor.is_choosing = False
        waiting, editor.waiting = editor.waiting, []
        for number, (channel, message) in enumerate(waiting):
            if editor.is_choosing:
                editor.waiting = [*editor.waiting, *waiting[number:]]
                return
            self._handle(editor, channel, message)

    # ---- for cells that are commands ---------------------------------------------------------------------------------

    def kept(self) -> list[RelayedKernel]:
        """Return the kernels that no editor has."""
        return self._kernels.kept()

    def give(self, editor: Editor, kernel: RelayedKernel) -> None:
        """Give an editor a kernel that was kept, in place of the one that it has."""
        self._choice.give(editor, kernel)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _handle(self, editor: Editor, channel: str, message: Message) -> None:
        kind = message.header.msg_type
        if kind == "shutdown_request":
            self._shut_down(editor, channel, message)
        elif kind == "kernel_info_request" and (
            info := self._kernels.infos.get(digest_of(editor.start["kernelspec"]))
        ):
            editor.answer(channel, message, info)
        elif kind == "interrupt_request" and not _interrupts_itself(editor):
            if editor.kernel is not None:
                self._kernels.interrupt(editor.kernel)
            editor.answer(channel, message, {"status": "ok"})
        elif channel != "shell" and editor.kernel is not None and not editor.is_choosing:
            editor.note_request(message)
            editor.kernel.forward(channel, message)
        elif editor.is_choosing:
            editor.waiting.append((channel, message))
        else:
            self._run(editor, channel, message)

    def _run(self, editor: Editor, channel: str, message: Message) -> None:
        """Handle a request for which the editor may still need a kernel."""
        kind = message.header.msg_type
        content = message.content if kind == "execute_request" else {}
        by_person = is_by_person(kind, content)
        if kind == "execute_request":
            code = str(content.get("code", ""))
            if by_person and cell_commands.is_command(code):
                cell_commands.run(self, editor, message, code)
                return
            path = path_in(code) if not editor.has_run_cell else ""
            if path and path != editor.path:
                editor.waiting.insert(0, (channel, message))
                self._choice.choose(editor, path)
                return
        if editor.kernel is None:
            editor.waiting.insert(0, (channel, message))
            self._choice.give_new(editor)
            return
        editor.has_run_cell = editor.has_run_cell or by_person
        if by_person and not editor.path and content.get("allow_stdin"):
            self._tell_of_kept(editor)  # programs that run notebooks cannot answer questions
        if kind == "execute_request" and not editor.has_run_cell and not editor.kernel.is_idle:
            # The editor's own code must not wait for a cell that may run for hours: the editor would give up.
            editor.answer("shell", message, cell_commands.DONE)
            editor.kernel.forward(channel, message)
            return
        editor.note_request(message, by_person=by_person)
        editor.kernel.forward(channel, message)

    def _tell_of_kept(self, editor: Editor) -> None:
        if editor.was_told_of_kept or not (kept := self._kernels.kept()):
            return
        editor.was_told_of_kept = True
        folder = editor.start["folder"]
        here = [one for one in kept if one.record.folder == folder and not one.record.ends_at]
        if here:
            count = (
                "A kernel of this folder is"
                if len(here) == 1
                else f"{len(here)} kernels of this folder are"
            )
            editor.notices.append(f"{count} kept from before. `%gpuckpt resume` brings one back.")

    def _shut_down(self, editor: Editor, channel: str, message: Message) -> None:
        restart = bool(message.content.get("restart"))
        kernel = editor.kernel
        editor.answer(channel, message, {"status": "ok", "restart": restart})
        editor.publish("shutdown_reply", {"status": "ok", "restart": restart}, message.parts[0])
        if kernel is not None:
            kernel.detach()
            if not editor.has_run_cell:
                self._kernels.end(kernel)
            elif restart:
                self._kernels.set_aside(kernel)
            else:
                settings = self._backend.settings
                self._kernels.end(kernel, settings.undo_shutdown_for if settings else 0.0)
        editor.tell(exit=0)
        # Its program ends now. The sockets are closed then, when the reply has been sent.


def _interrupts_itself(editor: Editor) -> bool:
    kernel = editor.kernel
    is_message = editor.start["kernelspec"].get("interrupt_mode") == "message"
    return kernel is not None and kernel.is_reached and (is_message or kernel.record.has_agent)
