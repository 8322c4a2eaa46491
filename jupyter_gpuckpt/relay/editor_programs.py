"""The connections of the programs that editors start: each tells the relay which ports to bind, and its end is the editor's."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress
from functools import partial
from typing import Any

import zmq

from .address import PROTOCOL
from .editor_requests import EditorRequests
from .editor_sockets import CHANNELS, EditorSockets
from .editor_table import EditorTable
from .editors import Editor, is_of_this_user
from .event_loop import EventLoop
from .kernel_choice import KernelChoice
from .kernel_table import RETURN_SECONDS, KernelTable
from .relayed_kernels import RelayedKernel

_BIND_SECONDS, _PAUSE = 5.0, 0.05
_UNUSABLE = 64 << 20


class EditorPrograms:
    """The programs that connect to `listener`."""

    def __init__(
        self,
        listener: socket.socket,
        loop: EventLoop,
        context: zmq.Context[Any],
        kernels: KernelTable,
        editors: EditorTable,
        choice: KernelChoice,
        requests: EditorRequests,
    ) -> None:
        self._listener, self._loop, self._context = listener, loop, context
        self._kernels, self._editors = kernels, editors
        self._choice, self._requests = choice, requests
        loop.watch(listener.fileno(), self._accept)

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
                self._loop.forget(program.fileno())
                program.close()
            elif b"\n" in piece:
                self._loop.forget(program.fileno())
                self._hello(program, bytes(data))

        self._loop.watch(program.fileno(), read)

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
            sockets = EditorSockets(self._context, told["connection"])
        except zmq.ZMQError as error:
            if time.monotonic() < deadline:
                self._loop.later(_PAUSE, lambda: self._bind(program, told, deadline))
            else:
                _tell(program, unusable=f"a port of its connection file is in use: {error}")
                program.close()
            return
        self._begin(program, sockets, told)

    def _begin(self, program: socket.socket, sockets: EditorSockets, told: dict[str, Any]) -> None:
        names = ("kernelspec", "resource_dir", "environment", "folder")
        start = {name: told[name] for name in names}
        editor = Editor(program, sockets, start, told["parent"], self._requests.handle_waiting)
        self._editors.add(editor)
        for channel in CHANNELS:
            self._loop.watch(sockets[channel], partial(self._requests.receive, editor, channel))
        self._loop.watch(sockets["hb"], sockets.echo)
        self._loop.watch(sockets["iopub"], lambda: editor.greet(sockets.note_subscriptions()))
        self._loop.watch(program.fileno(), lambda: self._read_program(editor))
        editor.tell(bound=True)
        if told.get("session"):
            self._go_on(editor, told["session"])
        elif not self._choice.may_be_kept(editor):
            self._choice.give_new(editor)  # it starts while the editor does

    def _go_on(self, editor: Editor, session_id: str) -> None:
        """Continue with the kernel of an editor whose relay was killed."""
        found = [one for one in self._kernels if one.record.session_id == session_id]
        if not found:
            editor.tell(exit=1)
            return
        kernel = found[0]
        editor.path = kernel.record.path
        editor.is_choosing = True
        self._wait_for_subscriber(kernel, editor, time.monotonic() + RETURN_SECONDS / 2)

    def _wait_for_subscriber(self, kernel: RelayedKernel, editor: Editor, deadline: float) -> None:
        if editor.ended:
            return
        if editor.sockets.has_subscriber or time.monotonic() > deadline:
            kernel.attach_again(editor)
            self._kernels.wake(kernel)
            self._requests.handle_waiting(editor)
        else:
            self._loop.later(_PAUSE, lambda: self._wait_for_subscriber(kernel, editor, deadline))

    def _read_program(self, editor: Editor) -> None:
        try:
            piece = editor.program.recv(4096)
        except OSError:
            piece = b""
        if not piece:
            self._editors.gone(editor)
        elif editor.kernel is not None:
            self._kernels.interrupt(editor.kernel)


def _tell(program: socket.socket, **told: object) -> None:
    with suppress(OSError):
        program.sendall(json.dumps(told).encode() + b"\n")
