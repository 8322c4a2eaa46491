"""The agent in an ipykernel (6 or 7): it holds back the kernel's messages while no peer can receive them.

Covers: output and replies between a freeze and the moment when every peer is connected again; comms and widgets for pages that
ask meanwhile; functions that users registered for our events `on_save` and `on_resume` of IPython; history and environment
after a resume. Does not cover: when that happens (the server's `agent.py` asks), how pages are answered (its `comms.py`), the list
of variables (`variables/` beside this file). The agent is sent as text, with the modules beside it, and run once, before the first
cell. It uses nothing but the kernel's own packages, leaves no name in the user's namespace, and has a control message of its own,
so that no IPython event is triggered.

    gpuckpt_request {"op": "prepare"}   from now on keep output and replies; earlier output has left. The reply names the
                                        open comms; its buffers are the states of all widgets, if these can be had
    gpuckpt_request {"op": "probe"}     send a message on iopub, past the kept ones
    gpuckpt_request {"op": "thaw"}      send the kept messages, in order
    gpuckpt_request {"op": "count"}     count the functions for on_save and for on_resume, and say whether a GPU may be in use
    gpuckpt_request {"op": "on_save"}, {"op": "on_resume"}
                                        call them, between cells; the reply says whether that was possible
    gpuckpt_request {"op": "resumed", "environment": {...}, "renewed": [...], "visible_gpus": "...", "moved_ports": {...},
                     "connection_file": "...", "branched": ..., "gpu_is_back": ...}
                                        take the new server's variables, and new ports of the kernel's own;
                                        continue the history where it cannot collide
    gpuckpt_request {"op": "peers_off"} switch off peer access between GPUs, or say whether a cell that runs may use it
    gpuckpt_request {"op": "peers_on"}  switch it on again where it was; `resumed` does so, too
    gpuckpt_request {"op": "trim", "seconds": 1.0}
                                        free unused memory, between cells; the reply says how many bytes
    gpuckpt_request {"op": "again", "after": "...", "requests": [...]}
                                        return the messages after this one; answer these requests again
    gpuckpt_request {"op": "variables", "fingerprint_seconds": 1.0}
                                        list the user's variables, with fingerprints of their values; also while a cell runs
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq
from ipykernel.kernelapp import IPKernelApp
from jupyter_client.jsonutil import json_clean, json_default

from .calls import beside, between_cells, result_of
from .environment import take_ports, take_variables
from .history import History
from .peer_access import PeerAccess, driver_is_loaded
from .sent_messages import SentMessages, copied
from .trim import trim
from .variables.listing import variables_of

#: Without a request from a server the kernel sends again after so long: it must not fall silent because a server died.
_LONGEST_SILENCE = 30.0
#: How long a reply is kept for a peer that has not connected again.
_PATIENCE = 10.0
_PAUSE = 0.01
#: How long to wait for functions of the user's.
_CALLS_SECONDS = 10.0
#: How long to wait until unused memory is freed.
_TRIM_SECONDS = 5.0
#: How long to wait for the GPUs' work.
_GPU_SECONDS = 30.0
_EVENTS = ("on_save", "on_resume")
#: Limits of the widgets' states: the kernel is about to be frozen.
_MOST_STATE_BYTES = 16 << 20
_MOST_STATE_SECONDS = 0.5


class Agent:
    """The agent of `kernel`."""

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._pid = kernel, os.getpid()
        self._iopub, self._shell = kernel.iopub_thread, kernel.shell_stream
        self._lock = threading.Lock()
        self._silent, self._since = False, 0.0
        self._kept_output: deque[Any] = deque()
        #: When each reply was made, and its parts.
        self._kept_replies: deque[tuple[float, list[bytes]]] = deque()
        self._answering = False
        #: When output was flushed last; peers connect again some time after that.
        self._flushed = -_PATIENCE
        self._sent = SentMessages()
        self._say, self._iopub._really_send = self._iopub._really_send, self._output
        self._answer, self._shell.send_multipart = self._shell.send_multipart, self._reply
        self._send, kernel.session.send = kernel.session.send, self._ask
        kernel.control_handlers["gpuckpt_request"] = self._handle
        for event in _EVENTS:
            kernel.shell.events.callbacks.setdefault(event, [])
        self._history = History(kernel.shell)
        self._peers = PeerAccess()

    @property
    def silent(self) -> bool:
        """Whether output is kept at present; never in a forked child."""
        if self._silent and time.monotonic() - self._since > _LONGEST_SILENCE:
            self._flush_output()
            if self._peers.was_switched:
                threading.Thread(target=self._peers.on, daemon=True).start()
        return self._silent and os.getpid() == self._pid

    # Called in the IOPub thread.
    def _output(self, message: Any, *arguments: Any, **options: Any) -> None:
        # A child that was forked while another thread held the lock would wait for it for ever.
        if os.getpid() == self._pid:
            with self._lock:
                if self._silent:
                    self._kept_output.append((message, arguments, options))
                    return
            self._sent.note(message)
        self._say(message, *arguments, **options)

    # Called in the thread of the shell's stream.
    def _reply(self, message: Any, *arguments: Any, **options: Any) -> None:
        with self._lock:
            now = time.monotonic()
            careful = self._silent or self._kept_replies or now < self._flushed + _PATIENCE
            self._sent.note_reply(message)
            if careful:
                self._kept_replies.append((now, copied(message)))
        if careful:
            self._answer_soon()
        else:
            self._answer(message, *arguments, **options)

    # Called in the thread that runs the cell: only stdin's socket is used directly.
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

    # Called in the control thread.
    async def _handle(self, stream: Any, identity: Any, parent: Any) -> None:
        op = parent["content"].get("op")
        content: dict[str, Any] = {"status": "ok"}
        states: list[bytes] = []
        if op == "prepare":
            self._prepare()
            # Only now: messages of a running cell about later changes are kept, and sent after the resume.
            content["comms"] = _open_comms(self._kernel)
            states = _widget_states()
        elif op == "probe":
            message = self._kernel.session.msg("gpuckpt_probe", {}, parent=parent)
            parts = [b"gpuckpt_probe", *self._kernel.session.serialize(message)]
            self._iopub.schedule(lambda: self._say(parts))
        elif op == "thaw":
            self._flush_output()
        elif op == "count":
            callbacks = self._kernel.shell.events.callbacks
            content |= {event: len(callbacks.get(event, ())) for event in _EVENTS}
            content["uses_gpu"] = driver_is_loaded()
        elif op in _EVENTS:
            content["called"] = await self._call(op)
        elif op == "resumed":
            told = parent["content"]
            take_variables(
                told["environment"], told.get("renewed", ()), told.get("visible_gpus", "")
            )
            take_ports(told["moved_ports"], told["connection_file"], self._iopub)
            self._history.go_on(branched=told["branched"])
            if told.get("gpu_is_back"):
                await self._peers_on()
        elif op == "peers_off":
            content["peer_access"] = await self._peers_off()
            content["switched"] = self._peers.was_switched
        elif op == "peers_on":
            content["peer_access"] = await self._peers_on()
        elif op == "trim":
            content["trimmed_bytes"] = await self._trim(float(parent["content"]["seconds"]))
        elif op == "again":
            states = self._again(parent["content"], content)
        elif op == "variables":
            with suppress(Exception):
                seconds = float(parent["content"].get("fingerprint_seconds", 0))
                content["variables"] = variables_of(self._kernel.shell, seconds)
        content["kept"] = len(self._kept_output)
        session = self._kernel.session
        session.send(stream, "gpuckpt_reply", content, parent, ident=identity, buffers=states)

    def _again(self, asked: dict[str, Any], content: dict[str, Any]) -> list[bytes]:
        """Return the parts of all messages after the one that is named, and send the replies to some requests again."""
        said, content["complete"] = self._sent.after(asked["after"])
        content["counts"] = [len(parts) for parts in said]
        with self._lock:
            now = self._flushed = time.monotonic()
            self._kept_replies.extend((now, r) for r in self._sent.replies_to(asked["requests"]))
        self._answer_soon()
        return [part for parts in said for part in parts]

    async def _call(self, event: str) -> bool:
        """Trigger an event of IPython's in the main thread; return False if a running cell prevented it."""
        trigger = self._kernel.shell.events.trigger
        # Functions for on_resume are called later, when the cell has ended.
        call = await between_cells(
            self._kernel.io_loop,
            lambda: trigger(event),
            _CALLS_SECONDS,
            may_come_later=event != "on_save",
        )
        return call is not None

    async def _trim(self, seconds: float) -> int | None:
        """Free unused memory; return by how many bytes the process became smaller, or None if a cell runs or it takes too long."""
        trimmed = await between_cells(self._kernel.io_loop, lambda: trim(seconds), _TRIM_SECONDS)
        return result_of(trimmed) if trimmed else None

    async def _peers_off(self) -> str:
        """Switch peer access off; return `off` if none is left on, `on` if a running cell uses it, or `unknown`."""
        if not self._peers.is_possible:
            return "off"
        switched = await between_cells(self._kernel.io_loop, self._peers.off, _GPU_SECONDS)
        if switched is not None:
            return "off" if result_of(switched) else "unknown"
        is_on = result_of(await beside(self._peers.is_on, _CALLS_SECONDS))
        return {True: "on", False: "off", None: "unknown"}[is_on]

    async def _peers_on(self) -> str:
        return "on" if result_of(await beside(self._peers.on, _CALLS_SECONDS)) else "unknown"

    def _prepare(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with self._lock:
            self._silent, self._since = True, time.monotonic()
        # Reading `silent` ends a silence that has lasted too long.
        self._kernel.control_stream.io_loop.call_later(_LONGEST_SILENCE + 1, lambda: self.silent)

    def _flush_output(self) -> None:
        def say_all() -> None:
            # Until nothing is left: messages that come meanwhile are appended.
            while True:
                with self._lock:
                    if not self._kept_output:
                        self._silent, self._flushed = False, time.monotonic()
                        break
                    message, arguments, options = self._kept_output.popleft()
                self._sent.note(message)
                self._say(message, *arguments, **options)
            self._answer_soon()

        self._iopub.schedule(say_all)

    def _answer_soon(self) -> None:
        with self._lock:
            if self._answering or self._silent:
                return
            self._answering = True
        self._shell.io_loop.add_callback(self._answer_all)

    def _answer_all(self) -> None:
        """Send the kept replies; keep those for peers that have not connected again, without delaying others."""
        away: set[bytes] = set()
        for kept in list(self._kept_replies):
            given, reply = kept
            if self._silent or reply[0] in away:
                continue
            socket = self._shell.socket
            sent = _offered(socket, lambda: socket.send_multipart(reply, zmq.NOBLOCK))  # noqa: B023
            if not sent and time.monotonic() < max(given, self._flushed) + _PATIENCE:
                away.add(reply[0])
                continue
            with self._lock:
                self._kept_replies.remove(kept)
        # Sending past the stream may have consumed an event that the stream waits for (zmq_getsockopt, ZMQ_FD).
        self._shell._update_handler(self._shell._state)
        with self._lock:
            self._answering = bool(self._kept_replies) and not self._silent
            again = self._answering
        if again:
            self._shell.io_loop.call_later(_PAUSE, self._answer_all)


def _offered(socket: Any, send: Callable[[], Any]) -> bool:
    """Send by a ROUTER socket; return False if the peer is not connected: the message would be dropped silently."""
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


def _open_comms(kernel: Any) -> dict[str, str]:
    """Return the target names of all open comms, by comm id."""
    # Copied in one atomic step: a cell may be opening comms in the main thread.
    comms = dict(getattr(getattr(kernel, "comm_manager", None), "comms", {}))
    return {comm_id: comm.target_name for comm_id, comm in comms.items()}


def _widget_states() -> list[bytes]:
    """Return ipywidgets' answer to `request_states` on its comm `jupyter.widget.control`: the data as JSON, then the buffers.

    The list is empty if there are no widgets, or too many, or if a cell that changes them interferes. See
    ipywidgets/widgets/widget.py, `_handle_control_comm_msg`.
    """
    try:
        return _told_states(time.monotonic() + _MOST_STATE_SECONDS)
    except Exception:
        return []


def _told_states(deadline: float) -> list[bytes]:
    module: Any = sys.modules.get("ipywidgets.widgets.widget")
    if module is None:
        return []
    # The second form is ipywidgets 7's.
    widgets = dict(module._instances if hasattr(module, "_instances") else module.Widget.widgets)
    texts: list[str] = []
    paths: list[Any] = []
    buffers: list[bytes] = []
    left = _MOST_STATE_BYTES
    for model_id, widget in widgets.items():
        if widget.comm is None:
            continue
        state, below, views = module._remove_buffers(widget.get_state())
        # The size is checked before they are copied and encoded.
        found = [memoryview(view) for view in views]
        left -= sum(view.nbytes for view in found)
        if left < sum(len(value) for value in state.values() if isinstance(value, str)):
            return []
        entry = {
            "model_name": widget._model_name,
            "model_module": widget._model_module,
            "model_module_version": widget._model_module_version,
            "state": state,
        }
        texts.append(f"{json.dumps(model_id)}: {_as_json(entry)}")
        left -= len(texts[-1].encode())
        if left < 0 or time.monotonic() > deadline:
            return []
        paths += [[model_id, "state", *path] for path in below]
        buffers += [view.tobytes() for view in found]
    if not texts:
        return []
    states, buffer_paths = ", ".join(texts), json.dumps(paths)
    data = f'{{"method": "update_states", "states": {{{states}}}, "buffer_paths": {buffer_paths}}}'
    return [data.encode(), *buffers]


def _as_json(value: Any) -> str:
    """Encode as jupyter_client does (`session.json_packer`), without its warning about values that are no JSON."""
    try:
        return json.dumps(value, default=json_default, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(json_clean(value), default=json_default, allow_nan=False)


def begin() -> None:
    """Start the agent of this process's kernel, once."""
    kernel = IPKernelApp.instance().kernel
    if "gpuckpt_request" not in kernel.control_handlers:
        Agent(kernel)


begin()
