"""The relay: it gives each editor a kernel, keeps kernels whose editor has gone, and passes their messages on."""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import time
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import zmq

from ..wire.manifest_records import Cause
from ..wire.protocol import Event
from ..wire.states import KernelState
from . import cell_commands
from .address import PROTOCOL
from .editor_sockets import CHANNELS, EditorSockets
from .editors import Editor, is_of_this_user
from .event_loop import EventLoop
from .file_changes import FileChanges
from .kept_records import KeptFolder, KeptRecord, belonging, records_below, surplus
from .notebook_files import identity_of, path_in
from .relayed_kernels import RelayedKernel, is_by_person
from .signed_messages import Message

#: How long after the end of one program the start of another by the same parent is a restart, and how long the end of another editor
#: with the same notebook is waited for.
RESTART_SECONDS, HANDOVER_SECONDS = 2.0, 2.0
#: How long the editor of a killed relay is waited for: its program connects as soon as it notices.
_RETURN_SECONDS = 15.0
#: How long a relay without editors and running kernels stays.
_IDLE_EXIT_SECONDS = 60.0
_BIND_SECONDS, _PAUSE = 5.0, 0.05
#: The pause after a suspend that failed.
_SUSPEND_AGAIN_SECONDS = 300.0
_UNUSABLE = 64 << 20

_log = logging.getLogger(__name__)


class Relay:
    """The relay of one user. It binds ports before it imports what talks to the daemon, which takes a second."""

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        self.folder, self._listener = folder, listener
        self.loop = EventLoop()
        self.context = zmq.Context()
        self.kernels: dict[str, RelayedKernel] = {}
        self.editors: list[Editor] = []
        self._changes = FileChanges()
        self._infos: dict[str, dict[str, Any]] = {}
        self._backend: Any = None
        self._suspend_at: dict[str, float] = {}
        self._needed_at = time.monotonic()

    def run(self) -> None:
        """Serve until nobody needs the relay."""
        self.loop.watch(self._listener.fileno(), self._accept)
        self.loop.watch(self._changes.descriptor, self._changes.read)
        self._load_kernels()
        self.loop.in_thread(self.backend, self._backend_is_there)
        self.loop.every(1.0, self._look_after)
        self.loop.run()
        for kernel in self.kernels.values():
            kernel.close()

    # ---- the daemon --------------------------------------------------------------------------------------------------

    def backend(self) -> Any:  # noqa: ANN401 - imported late
        """Return what starts, suspends and resumes kernels. Called in threads."""
        if self._backend is None:
            from .backend import Backend  # noqa: PLC0415 - importing it takes a second

            self._backend = Backend(self.folder, self.context, self._on_event)
        return self._backend

    @property
    def settings(self) -> Any:  # noqa: ANN401 - as above
        """Return the settings; only after the backend was imported."""
        return self._backend.settings

    def _backend_is_there(self, backend: object) -> None:
        if isinstance(backend, Exception):
            _log.error("the relay cannot work", exc_info=backend)
        for kernel in list(self.kernels.values()):
            if not kernel.is_changing and not kernel.is_reached:
                self._find(kernel)

    def _find(self, kernel: RelayedKernel) -> None:
        """Find out what became of a kernel of an earlier relay, and connect to it if it runs."""

        def found(state: KernelState | Exception | None) -> None:
            if isinstance(state, Exception):
                _log.warning("kernel %s was not found: %s", kernel.record.kernel_id, state)
            elif state is None:
                self._ended(kernel, 1)
            elif (
                state in {KernelState.RUNNING, KernelState.SAVING}
                or kernel.editor
                or kernel.requests
            ):
                self.wake(kernel)

        self.loop.in_thread(lambda: self.backend().state_of(kernel.record.kernel_id), found)

    def _on_event(self, event: Event) -> None:
        """Handle an event of the daemon; called in another thread."""
        self.loop.from_thread(lambda: self._note(event))

    def _note(self, event: Event) -> None:
        kernel_id = event.kernel.kernel_id if event.kernel else event.gone
        kernel = self.kernels.get(kernel_id)
        if kernel is None:
            return
        if event.gone:
            self.loop.in_thread(
                lambda: self.backend().exit_code(kernel.exit_path),
                lambda code: self._ended(kernel, code if isinstance(code, int) else 1),
            )
        elif event.kernel is not None and not kernel.is_changing:
            if self.backend().is_absent(event.kernel) and kernel.is_reached:
                kernel.unreachable()
                if kernel.requests:
                    self.wake(kernel)
            elif event.kernel.state is KernelState.RUNNING and not kernel.is_reached:
                self.wake(kernel)  # a user has resumed it

    # ---- editors -----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        program, _ = self._listener.accept()
        if not is_of_this_user(program):
            program.close()
            return
        program.setblocking(True)
        data = bytearray()

        def read() -> None:
            try:
                piece = program.recv(1 << 16)
            except OSError:
                piece = b""
            data.extend(piece)
            if not piece or len(data) > _UNUSABLE:
                self.loop.forget(program.fileno())
                program.close()
            elif b"\n" in piece:
                self.loop.forget(program.fileno())
                self._hello(program, bytes(data))

        self.loop.watch(program.fileno(), read)

    def _hello(self, program: socket.socket, data: bytes) -> None:
        told = json.loads(data)
        if told.get("protocol") != PROTOCOL:
            text = "a relay of another version runs, and has kernels of other editors"
            _tell(program, unusable=text)
            program.close()
            return
        self._bind(program, told, time.monotonic() + _BIND_SECONDS)

    def _bind(self, program: socket.socket, told: dict[str, Any], deadline: float) -> None:
        """Bind the ports, which the sockets of an editor before may hold for a moment."""
        try:
            sockets = EditorSockets(self.context, told["connection"])
        except zmq.ZMQError as error:
            if time.monotonic() < deadline:
                self.loop.later(_PAUSE, lambda: self._bind(program, told, deadline))
            else:
                _tell(program, unusable=f"a port of its connection file is in use: {error}")
                program.close()
            return
        self._begin(program, sockets, told)

    def _begin(self, program: socket.socket, sockets: EditorSockets, told: dict[str, Any]) -> None:
        start = {
            name: told[name] for name in ("kernelspec", "resource_dir", "environment", "folder")
        }
        editor = Editor(program, sockets, start, told["parent"])
        self.editors.append(editor)
        for channel in CHANNELS:
            self.loop.watch(sockets[channel], partial(self._receive, editor, channel))
        self.loop.watch(sockets["hb"], sockets.echo)
        self.loop.watch(sockets["iopub"], lambda: editor.greet(sockets.note_subscriptions()))
        self.loop.watch(program.fileno(), lambda: self._read_program(editor))
        editor.tell(bound=True)
        if told.get("session"):
            self._go_on(editor, told["session"])
        elif not self._may_be_kept(editor):
            self._give_new(editor)  # it starts while the editor does

    def _may_be_kept(self, editor: Editor) -> bool:
        """Return whether the notebook that the editor will name may have a kernel."""
        folder = editor.start["folder"]
        return any(
            one.record.path and folder in {str(Path(one.record.path).parent), one.record.folder}
            for one in self.kernels.values()
        )

    def _go_on(self, editor: Editor, session_id: str) -> None:
        """Continue with the kernel of an editor whose relay was killed."""
        found = [one for one in self.kernels.values() if one.record.session_id == session_id]
        if not found:
            editor.tell(exit=1)
            return
        kernel = found[0]
        editor.path = kernel.record.path
        self._wait_for_subscriber(kernel, editor, time.monotonic() + _RETURN_SECONDS / 2)

    def _wait_for_subscriber(self, kernel: RelayedKernel, editor: Editor, deadline: float) -> None:
        if editor.sockets.has_subscriber or time.monotonic() > deadline:
            kernel.attach_again(editor)
            if not kernel.is_reached and not kernel.is_changing:
                self.wake(kernel)
            self._flush(editor)
        else:
            editor.is_choosing = True
            self.loop.later(_PAUSE, lambda: self._wait_for_subscriber(kernel, editor, deadline))

    def _read_program(self, editor: Editor) -> None:
        try:
            piece = editor.program.recv(4096)
        except OSError:
            piece = b""
        if not piece:
            self._gone(editor)
        elif editor.kernel is not None:
            self.interrupt(editor.kernel)

    def _gone(self, editor: Editor) -> None:
        """Keep the kernel of an editor whose program has ended."""
        kernel = editor.kernel
        self._close(editor)
        if kernel is None:
            return
        kernel.detach()
        if not editor.has_run_cell and not editor.path:
            self.end(kernel)  # nobody has used it
            return
        kernel.record.identity = identity_of(kernel.record.path) if kernel.record.path else []
        kernel.write()
        self._describe(kernel, is_left=True)
        self._keep_few()

    def _close(self, editor: Editor) -> None:
        for channel in (*CHANNELS, "hb", "iopub"):
            self.loop.forget(editor.sockets[channel])
        self.loop.forget(editor.program.fileno())
        editor.close()
        if editor in self.editors:
            self.editors.remove(editor)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _receive(self, editor: Editor, channel: str) -> None:
        for message in editor.sockets.received(channel):
            self._handle(editor, channel, message)

    def _handle(self, editor: Editor, channel: str, message: Message) -> None:
        kind = message.header.msg_type
        if kind == "shutdown_request":
            self._shut_down(editor, channel, message)
        elif kind == "kernel_info_request" and (info := self._info(editor)):
            editor.answer(channel, message, info)
        elif kind == "interrupt_request" and not self._interrupts_itself(editor):
            if editor.kernel is not None:
                self.interrupt(editor.kernel)
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
                self._choose(editor, path)
                return
        if editor.kernel is None:
            editor.waiting.insert(0, (channel, message))
            self._give_new(editor)
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

    def _flush(self, editor: Editor) -> None:
        """Handle the requests that have waited for a kernel."""
        editor.is_choosing = False
        waiting, editor.waiting = editor.waiting, []
        for number, (channel, message) in enumerate(waiting):
            if editor.is_choosing:
                editor.waiting = [*editor.waiting, *waiting[number:]]
                return
            self._handle(editor, channel, message)

    def _tell_of_kept(self, editor: Editor) -> None:
        if not editor.was_told_of_kept and (kept := self.kept()):
            editor.was_told_of_kept = True
            folder = editor.start["folder"]
            here = [one for one in kept if one.record.folder == folder and not one.record.ends_at]
            if here:
                count = (
                    "A kernel of this folder is"
                    if len(here) == 1
                    else f"{len(here)} kernels of this folder are"
                )
                editor.notices.append(
                    f"{count} kept from before. `%gpuckpt resume` brings one back."
                )

    def _interrupts_itself(self, editor: Editor) -> bool:
        kernel = editor.kernel
        is_message = editor.start["kernelspec"].get("interrupt_mode") == "message"
        return kernel is not None and kernel.is_reached and (is_message or kernel.record.has_agent)

    def interrupt(self, kernel: RelayedKernel) -> None:
        """Interrupt a kernel's cell."""
        self.loop.in_thread(lambda: self.backend().interrupt(kernel), _log_failure)

    def _shut_down(self, editor: Editor, channel: str, message: Message) -> None:
        restart = bool(message.content.get("restart"))
        kernel = editor.kernel
        editor.answer(channel, message, {"status": "ok", "restart": restart})
        editor.publish("shutdown_reply", {"status": "ok", "restart": restart}, message.parts[0])
        if kernel is not None:
            kernel.detach()
            if not editor.has_run_cell:
                self.end(kernel)
            elif restart:
                self._set_aside(kernel)
            else:
                self.end(kernel, self.settings.undo_shutdown_for)
        editor.tell(exit=0)
        # Its program ends now. The sockets are closed then, when the reply has been sent.

    # ---- the choice of a kernel --------------------------------------------------------------------------------------

    def kept(self) -> list[RelayedKernel]:
        """Return the kernels that no editor has."""
        return [one for one in self.kernels.values() if one.editor is None and not one.has_ended]

    def _choose(self, editor: Editor, path: str) -> None:
        """Choose the kernel for a notebook: its own, or a new one."""
        editor.is_choosing = True
        editor.path = path
        before = [one for one in self.kernels.values() if one.record.path == path]
        if restarted := [one for one in before if _is_restart(one, editor)]:
            for kernel in restarted:
                if kernel.editor is not None and kernel.editor is not editor:
                    kernel.detach()
                self._set_aside(kernel)
            self._give_new(editor)
            return
        self._give_own(editor, path, time.monotonic() + HANDOVER_SECONDS)

    def _give_own(self, editor: Editor, path: str, deadline: float) -> None:
        records = [one.record for one in self.kernels.values() if one is not editor.kernel]
        found = belonging(records, path)
        kernel = self.kernels.get(found.kernel_id) if found is not None else None
        if kernel is None:
            self.loop.in_thread(
                lambda: self.backend().kernel_of(path),
                lambda kernel_id: self._give_from_server(editor, kernel_id),
            )
            return
        other = kernel.editor
        if other is not None and other.has_living_parent and not other.ended:
            if time.monotonic() < deadline:
                self.loop.later(_PAUSE, lambda: self._give_own(editor, path, deadline))
                return
            editor.notices.append(
                "Another window has this notebook's kernel, so this is a new one."
            )
            self._give_new(editor)
            return
        if other is not None:
            self._gone(other)
        self.give(editor, kernel)

    def _give_from_server(self, editor: Editor, kernel_id: str | Exception) -> None:
        """Take over the kernel that a Jupyter server, which has ended, left for this notebook."""
        if not isinstance(kernel_id, str) or not kernel_id or kernel_id in self.kernels:
            self._give_new(editor)
            return
        kernel = self._made(editor, kernel_id)
        kernel.record.has_agent = True
        self.give(editor, kernel)

    def give(self, editor: Editor, kernel: RelayedKernel) -> None:
        """Give an editor a kernel that was kept, in place of the new one that it may have."""
        if editor.kernel is not None:
            former = editor.kernel
            left = list(former.requests)
            former.detach()
            editor.waiting = [("shell", message) for message in left] + editor.waiting
            if editor.has_run_cell:
                self._describe(former, is_left=True)
            else:
                self.end(former)
        record = kernel.record
        record.is_before_restart = False
        if editor.path:
            record.path, record.identity = editor.path, identity_of(editor.path)
        was_ending, record.ends_at = record.ends_at, 0.0
        kernel.attach(editor)
        if was_ending:
            self.loop.in_thread(
                lambda: self.backend().undo_end(record.kernel_id),
                lambda _: self.wake(kernel),
            )
        elif not kernel.is_reached:
            self.wake(kernel)
        else:
            self._describe(kernel, is_left=False)
        self._flush(editor)

    def _made(self, editor: Editor, kernel_id: str) -> RelayedKernel:
        start = editor.start
        record = KeptRecord(
            session_id=uuid.uuid4().hex[:12],
            kernel_id=kernel_id,
            spec_digest=_digest(start["kernelspec"]),
            kernel_name=str(start["kernelspec"].get("display_name", "")),
            folder=start["folder"],
            path=editor.path,
        )
        return self._add(record)

    def _add(self, record: KeptRecord) -> RelayedKernel:
        folder = KeptFolder(self.folder / "sessions" / record.session_id)
        kernel = RelayedKernel(record, folder, wake=self.wake, later=self.loop.later, cut=self._cut)
        kernel.write()
        self.kernels[record.kernel_id] = kernel
        kernel.watch = self._changes.watch(folder.journal.parent, kernel.changed)
        return kernel

    def _give_new(self, editor: Editor) -> None:
        """Give an editor a new kernel; one that nobody has used is as good."""
        if editor.kernel is not None and not editor.has_run_cell:
            kernel = editor.kernel
            if editor.path:
                kernel.record.path, kernel.record.identity = editor.path, identity_of(editor.path)
                kernel.write()
                if kernel.is_reached:
                    self._describe(kernel, is_left=False)
            self._flush(editor)
            return
        kernel = self._made(editor, str(uuid.uuid4()))
        kernel.record.identity = identity_of(kernel.record.path) if kernel.record.path else []
        kernel.attach(editor)
        kernel.is_changing = True
        start = editor.start

        def started(reached: Any) -> None:  # noqa: ANN401 - `Reached`, which is imported late
            kernel.is_changing = False
            if isinstance(reached, Exception):
                _log.warning("a kernel could not be started: %s", reached)
                self._say(kernel, f"The kernel could not be started: {reached}")
                self._ended(kernel, 1)
                return
            kernel.reached(self.context, reached)
            self._watch_sockets(kernel)
            self._learn(kernel.record.spec_digest, reached.info)
            if reached.plain_reason:
                self._say(
                    kernel,
                    f"This kernel stays in memory when its editor closes, but cannot be suspended: {reached.plain_reason}",
                )
            elif kernel.editor is None:
                self._describe(kernel, is_left=True)

        self.loop.in_thread(
            lambda: self.backend().launch(kernel.record, kernel.folder, start), started
        )
        self._flush(editor)

    def _say(self, kernel: RelayedKernel, text: str) -> None:
        if kernel.editor is not None:
            kernel.editor.notices.append(text)
            kernel.editor.tell(say=text)

    def _info(self, editor: Editor) -> dict[str, Any]:
        """Return what a kernel of this kernelspec says about itself, if one has said it before."""
        digest = _digest(editor.start["kernelspec"])
        if digest not in self._infos:
            with suppress(OSError, ValueError):
                self._infos[digest] = json.loads((self.folder / "info" / digest).read_bytes())
        return self._infos.get(digest, {})

    def _learn(self, digest: str, info: dict[str, Any]) -> None:
        if not info:
            return
        # Replies of subshells do not come by the shell's socket.
        features = [one for one in info.get("supported_features", []) if one != "kernel subshells"]
        if "supported_features" in info:
            info = {**info, "supported_features": features}
        self._infos[digest] = info
        path = self.folder / "info" / digest
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        with suppress(OSError):
            new.write_bytes(msgspec.json.encode(info))
            new.replace(path)

    # ---- kernels -----------------------------------------------------------------------------------------------------

    def _load_kernels(self) -> None:
        for record in records_below(self.folder / "sessions"):
            if record.plain_reason:
                KeptFolder(self.folder / "sessions" / record.session_id).remove()
                continue  # it has ended with its relay
            kernel = self._add(record)
            if not record.left_at:
                self.loop.later(_RETURN_SECONDS, partial(self._give_up_waiting, kernel))

    def _give_up_waiting(self, kernel: RelayedKernel) -> None:
        if kernel.editor is None and not kernel.has_ended and not kernel.record.left_at:
            kernel.give_up_waiting()
            self._describe(kernel, is_left=True)

    def _watch_sockets(self, kernel: RelayedKernel) -> None:
        if kernel.sockets is not None:
            for name, one in kernel.sockets.sockets.items():
                self.loop.watch(one, partial(kernel.sockets.receive, name, kernel.received))

    def wake(self, kernel: RelayedKernel) -> None:
        """Bring a kernel back, or connect to one that runs; requests wait meanwhile."""
        if kernel.is_changing or kernel.has_ended or kernel.record.plain_reason:
            return
        kernel.is_changing = True

        def reached(result: Any) -> None:  # noqa: ANN401 - `Reached`, which is imported late
            kernel.is_changing = False
            if kernel.has_ended:
                return
            if isinstance(result, Exception):
                _log.warning("kernel %s: %s", kernel.record.kernel_id, result)
                kernel.fail_requests(f"The kernel could not be brought back: {result}")
                return
            self._disconnect(kernel)
            kernel.reached(self.context, result)
            self._watch_sockets(kernel)
            self._describe(kernel, is_left=kernel.editor is None)
            kernel.deliver()

        self.loop.in_thread(lambda: self.backend().reach(kernel.record, kernel.folder), reached)

    def _disconnect(self, kernel: RelayedKernel) -> None:
        if kernel.sockets is not None:
            for one in kernel.sockets.sockets.values():
                self.loop.forget(one)
        kernel.unreachable()

    def _describe(self, kernel: RelayedKernel, *, is_left: bool) -> None:
        if kernel.record.plain_reason or kernel.has_ended:
            return
        record = msgspec.structs.replace(kernel.record)
        self.loop.in_thread(lambda: self.backend().describe(record, is_left=is_left), _log_failure)

    def _cut(self, kernel: RelayedKernel, received: int) -> None:
        connection = kernel.connection
        self.loop.in_thread(
            lambda: self.backend().cut_journal(connection, kernel.folder, received), _log_failure
        )

    def _set_aside(self, kernel: RelayedKernel) -> None:
        """Keep the kernel of before a restart, until a user wants it."""
        for other in list(self.kernels.values()):
            if (
                other is not kernel
                and other.record.is_before_restart
                and other.record.path == kernel.record.path
                and other.editor is None
                and other.record.folder == kernel.record.folder
            ):
                self.end(other)
        kernel.record.is_before_restart = True
        kernel.record.left_at = kernel.record.left_at or time.time()
        kernel.write()
        self._suspend(kernel, Cause.RESTART)

    def _suspend(self, kernel: RelayedKernel, cause: Cause) -> None:
        """Suspend a kernel that no editor has, when it is idle."""
        if not kernel.is_reached or kernel.is_changing or not kernel.is_idle:
            return
        if kernel.record.plain_reason:
            return
        kernel.is_changing = True

        def suspended(result: object) -> None:
            kernel.is_changing = False
            if isinstance(result, Exception):
                _log.warning("kernel %s was not suspended: %s", kernel.record.kernel_id, result)
                self._suspend_at[kernel.record.kernel_id] = (
                    time.monotonic() + _SUSPEND_AGAIN_SECONDS
                )
                return
            self._disconnect(kernel)
            if kernel.editor is not None or kernel.requests:
                self.wake(kernel)

        self.loop.in_thread(
            lambda: self.backend().suspend(kernel.record, kernel.connection, cause), suspended
        )

    def end(self, kernel: RelayedKernel, after_seconds: float = 0.0) -> None:
        """End a kernel; with `after_seconds` it can be brought back until then."""
        if kernel.record.plain_reason or not after_seconds:
            self.loop.in_thread(lambda: self.backend().end(kernel), _log_failure)
            self._forget(kernel)
            return
        kernel.record.ends_at = time.time() + after_seconds
        kernel.record.left_at = kernel.record.left_at or time.time()
        kernel.write()
        self.loop.in_thread(lambda: self.backend().end(kernel, after_seconds), _log_failure)

    def _ended(self, kernel: RelayedKernel, code: int) -> None:
        """Let the editor know that its kernel has ended."""
        if kernel.has_ended:
            return
        editor = kernel.editor
        kernel.deliver()
        self._forget(kernel)
        if editor is not None:
            editor.kernel = None
            editor.tell(exit=code)

    def _forget(self, kernel: RelayedKernel) -> None:
        kernel.has_ended = True
        self.kernels.pop(kernel.record.kernel_id, None)
        self._changes.forget(kernel.watch)
        self._disconnect(kernel)
        kernel.close()
        kernel.folder.remove()

    def _keep_few(self) -> None:
        if self._backend is None:
            return
        records = [one.record for one in self.kept()]
        most, days = self.settings.keep_sessions, self.settings.keep_days
        for record in surplus(records, most, days, time.time()):
            if (kernel := self.kernels.get(record.kernel_id)) is not None:
                _log.info(
                    "kernel %s (%s) is ended: too many are kept", record.kernel_id, record.name
                )
                self.end(kernel)

    def _look_after(self) -> None:
        """Suspend, end and forget kernels whose time has come; end the relay when nobody needs it."""
        now = time.monotonic()
        self._keep_few()
        for kernel in list(self.kernels.values()):
            if kernel.poll is not None and (code := kernel.poll()) is not None:
                self._ended(kernel, code)
            elif kernel.record.ends_at and time.time() > kernel.record.ends_at:
                self.end(kernel)
            elif kernel.editor is None and self._is_due(kernel, now):
                cause = Cause.RESTART if kernel.record.is_before_restart else Cause.IDLE
                self._suspend(kernel, cause)
        if self.editors or any(one.is_reached or one.is_changing for one in self.kernels.values()):
            self._needed_at = now
        elif now - self._needed_at > _IDLE_EXIT_SECONDS:
            self.loop.stop()

    def _is_due(self, kernel: RelayedKernel, now: float) -> bool:
        if self._backend is None or kernel.record.ends_at or not kernel.record.left_at:
            return False
        if now < self._suspend_at.get(kernel.record.kernel_id, 0.0):
            return False
        seconds = 0.0 if kernel.record.is_before_restart else self.settings.keep_minutes * 60
        left = time.time() - kernel.record.left_at
        return min(left, now - kernel.idle_since) >= seconds


def _is_restart(kernel: RelayedKernel, editor: Editor) -> bool:
    """Return whether an editor restarts this kernel: the same process started a second program for the same notebook at once."""
    before = kernel.last_editor
    if before is None or before is editor or before.parent != editor.parent:
        return False
    if kernel.record.is_before_restart or kernel.record.ends_at:
        return False
    return not before.ended or editor.began - before.ended < RESTART_SECONDS


def _digest(kernelspec: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(kernelspec, sort_keys=True).encode()).hexdigest()[:32]


def _tell(program: socket.socket, **told: object) -> None:
    with suppress(OSError):
        program.sendall(json.dumps(told).encode() + b"\n")


def _log_failure(result: object) -> None:
    if isinstance(result, Exception):
        _log.warning("a request failed: %s", result, exc_info=result)
