"""Inside an ipykernel (6 or 7): keeps what the kernel says while nobody can hear it.

Covers: output and replies between a freeze and the moment when every peer is connected again. Does not cover: when that is
(the server's `agent.py` asks). Sent as text and run once, before the first cell; it uses nothing but the kernel's own packages,
leaves no name in the user's namespace, and is spoken to by a control message of its own, so that no IPython event is triggered.

    gpuckpt_request {"op": "prepare"}   from now on keep output and replies; what was said before has left
    gpuckpt_request {"op": "probe"}     say something on iopub, past what is kept
    gpuckpt_request {"op": "thaw"}      say what was kept, in order
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq
from ipykernel.kernelapp import IPKernelApp

#: Without a word from a server the kernel speaks again: it must not fall silent because a server died.
_LONGEST_SILENCE = 30.0
#: How long a reply is offered to a peer that has not connected again.
_PATIENCE = 10.0
_PAUSE = 0.01


class Agent:
    """The agent of `kernel`."""

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._pid = kernel, os.getpid()
        self._iopub, self._shell = kernel.iopub_thread, kernel.shell_stream
        self._lock = threading.Lock()
        self._silent, self._since = False, 0.0
        self._kept_output: deque[Any] = deque()
        self._kept_replies: deque[list[bytes]] = deque()
        self._say, self._iopub._really_send = self._iopub._really_send, self._output
        self._answer, self._shell.send_multipart = self._shell.send_multipart, self._reply
        self._send, kernel.session.send = kernel.session.send, self._ask
        kernel.control_handlers["gpuckpt_request"] = self._handle

    @property
    def silent(self) -> bool:
        """Whether output is kept just now; never in a forked child."""
        if self._silent and time.monotonic() - self._since > _LONGEST_SILENCE:
            self._thaw()
        return self._silent and os.getpid() == self._pid

    # In the IOPub thread.
    def _output(self, message: Any, *arguments: Any, **options: Any) -> None:
        # A child that was forked while somebody held the lock would wait for it for ever.
        if os.getpid() == self._pid:
            with self._lock:
                if self._silent:
                    self._kept_output.append((message, arguments, options))
                    return
        self._say(message, *arguments, **options)

    # In the thread of the shell's stream.
    def _reply(self, message: Any, *arguments: Any, **options: Any) -> None:
        with self._lock:
            if self._silent or self._kept_replies:
                self._kept_replies.append([bytes(getattr(part, "bytes", part)) for part in message])
                return
        self._answer(message, *arguments, **options)

    # In the thread that runs the cell: the only one that is sent to directly is stdin's socket.
    def _ask(self, stream: Any, *arguments: Any, **options: Any) -> Any:
        stdin = self._kernel.stdin_socket
        if stream is stdin and os.getpid() == self._pid:
            deadline = time.monotonic() + _PATIENCE
            while self.silent:
                time.sleep(_PAUSE)
            sent: list[Any] = []
            while not _offered(
                stdin, lambda: sent.append(self._send(stdin, *arguments, **options))
            ):
                if time.monotonic() > deadline:
                    break
                time.sleep(_PAUSE)
            if sent:
                return sent[0]
        return self._send(stream, *arguments, **options)

    # In the control thread.
    async def _handle(self, stream: Any, identity: Any, parent: Any) -> None:
        op = parent["content"].get("op")
        if op == "prepare":
            self._prepare()
        elif op == "probe":
            message = self._kernel.session.msg("gpuckpt_probe", {}, parent=parent)
            parts = [b"gpuckpt_probe", *self._kernel.session.serialize(message)]
            self._iopub.schedule(lambda: self._say(parts))
        elif op == "thaw":
            self._thaw()
        content = {"status": "ok", "kept": len(self._kept_output)}
        self._kernel.session.send(stream, "gpuckpt_reply", content, parent, ident=identity)

    def _prepare(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with self._lock:
            self._silent, self._since = True, time.monotonic()
        # Looking at it ends a silence that has lasted too long.
        self._kernel.control_stream.io_loop.call_later(_LONGEST_SILENCE + 1, lambda: self.silent)

    def _thaw(self) -> None:
        def say_all() -> None:
            # Until nothing is left: what is said meanwhile comes behind it.
            while True:
                with self._lock:
                    if not self._kept_output:
                        self._silent = False
                        break
                    message, arguments, options = self._kept_output.popleft()
                self._say(message, *arguments, **options)
            self._shell.io_loop.add_callback(self._answer_all, time.monotonic() + _PATIENCE)

        self._iopub.schedule(say_all)

    def _answer_all(self, deadline: float) -> None:
        """Send the replies that were kept; a peer that has not connected again is waited for."""
        while self._kept_replies:
            socket, reply = self._shell.socket, self._kept_replies[0]
            sent = _offered(socket, lambda: socket.send_multipart(reply, zmq.NOBLOCK))  # noqa: B023
            if not sent and time.monotonic() < deadline:
                self._shell.io_loop.call_later(_PAUSE, self._answer_all, deadline)
                return
            with self._lock:
                self._kept_replies.popleft()
        # Sending past the stream may have taken an edge that it waits for (zmq_getsockopt, ZMQ_FD).
        self._shell._update_handler(self._shell._state)


def _offered(socket: Any, send: Callable[[], Any]) -> bool:
    """Send by a ROUTER; False if the peer is not connected: it would be dropped without a word."""
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    try:
        send()
    except zmq.ZMQError as error:
        if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
            return False
        raise
    finally:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 0)
    return True


def begin() -> None:
    """Start the agent of this process's kernel, once."""
    kernel = IPKernelApp.instance().kernel
    if "gpuckpt_request" not in kernel.control_handlers:
        Agent(kernel)


begin()
