"""The agent in an ipykernel (6 or 7): it buffers the kernel's messages while no peer can receive them.

Covers: output and replies between a freeze and the moment when every peer is connected again; the states of comms and widgets, for
pages that request them meanwhile; functions that users registered for the events `on_save` and `on_resume` of IPython; history and
environment after a resume. Does not cover: the requests (the server's `agent.py`), the answers to pages (its `comms.py`), the list
of variables (`variables/` beside this file). The agent is sent as text, with the modules beside it, and run once, before the first
cell. It uses nothing but the kernel's own packages, leaves no name in the user's namespace, and has a control message of its own,
so that no IPython event is triggered.

    gpuckpt_request {"op": "prepare"}   buffer output and replies from now on; earlier output is sent. The reply names the
                                        open comms; its buffers are the states of all widgets, if they can be read
    gpuckpt_request {"op": "probe"}     send a message on iopub, ahead of the kept ones
    gpuckpt_request {"op": "thaw"}      send the kept messages, in order
    gpuckpt_request {"op": "count"}     count the functions for on_save and on_resume; report whether a GPU may be in use, and the
                                        execution count of the last cell that has begun
    gpuckpt_request {"op": "on_save"}, {"op": "on_resume"}
                                        call them, between cells; the reply says whether that was possible
    gpuckpt_request {"op": "resumed", "environment": {...}, "renewed": [...], "visible_gpus": "...", "moved_ports": {...},
                     "connection_file": "...", "branched": ..., "gpu_is_back": ..., "seed_anew": [...]}
                                        take the new server's variables, and new ports of the kernel's own;
                                        continue the history where it cannot collide; seed these modules' global
                                        generators anew. The reply names what could not be renewed or seeded
    gpuckpt_request {"op": "recipe_ended", "folder": "...", "log": "..."}
                                        leave the history; name what a recipe has left that copies of the kernel could not
                                        share, and the files that they need; go to this folder
    gpuckpt_request {"op": "become_new", "key": "...", ...}
                                        in a copy of such a kernel: make it a new kernel; the reply is signed with the new key
    gpuckpt_request {"op": "peers_off"} switch off peer access between GPUs, or report whether a running cell may use it
    gpuckpt_request {"op": "peers_on"}  switch it on again where it was; `resumed` does so, too
    gpuckpt_request {"op": "trim", "seconds": 1.0}
                                        free unused memory, between cells; the reply says how many bytes
    gpuckpt_request {"op": "again", "after": "...", "requests": [...]}
                                        return the messages after this one; answer these requests again
    gpuckpt_request {"op": "answer", "id": "...", "text": "..."}
                                        answer a request of the user's code
    gpuckpt_request {"op": "journal", "path": "..."}
                                        write all messages to this file from now on, or repair the file after a resume; a cell
                                        whose request comes a second time is not executed again
    gpuckpt_request {"op": "variables", "fingerprint_seconds": 1.0}
                                        list the user's variables, with fingerprints of their values; also while a cell runs
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections import deque
from contextlib import suppress
from typing import Any

from ipykernel.kernelapp import IPKernelApp
from jupyter_client.jsonutil import json_clean, json_default

from .addresses import deliver, may_be_lost, offered, other_address
from .control_calls import beside, between_cells, result_of
from .cuda_peer_access import PeerAccess, driver_is_loaded
from .environment import take_ports, take_variables
from .fresh_secrets import FreshSecrets
from .global_generators import seed_anew
from .history import History, last_cell
from .message_journal import Journal
from .new_kernels import become_new
from .processor_clocks import ProcessorClocks
from .recipe_ends import left_in, sources
from .resumes import Resumes
from .sent_messages import SentMessages, copied
from .subscribers import Subscribers
from .trim import trim
from .variables.variable_list import variables_of

#: The longest time to buffer without a request from a server: a server's death must not silence the kernel.
_LONGEST_SILENCE = 30.0
#: How long a reply is kept for a peer that has not connected again.
_PATIENCE = 10.0
_PAUSE = 0.01
#: How long to wait for the user's functions.
_CALLS_SECONDS = 10.0
#: How long to wait until unused memory is freed.
_TRIM_SECONDS = 5.0
#: How long to wait until the GPUs have done their work.
_GPU_SECONDS = 30.0
#: Limits of reading widget states, in bytes and CPU seconds: the kernel is about to be frozen.
_MAX_STATE_BYTES = 16 << 20
_MAX_STATE_SECONDS = 0.5
_EVENTS = ("on_save", "on_resume")
#: The type of the message, which is its topic as well: a server recognizes it by that.
_USER_REQUEST = "gpuckpt_user_request"
#: How long to wait until a server has received a request, and then until the request is done.
_TAKEN_SECONDS, _DONE_SECONDS = 5.0, 3600.0
_RESUMED = "The kernel was resumed from a snapshot."


class Agent:
    """The agent of `kernel`."""

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._pid = kernel, os.getpid()
        self._iopub, self._shell = kernel.iopub_thread, kernel.shell_stream
        self._lock = threading.Lock()
        self._silent, self._since = False, 0.0
        self._kept_output: deque[Any] = deque()
        #: Buffered replies: (time, message parts).
        self._kept_replies: deque[tuple[float, list[bytes]]] = deque()
        self._answering = False
        #: The time of the last flush of output; peers connect again some time after it, as after a resume.
        self._flushed = -_PATIENCE
        self._sent = SentMessages()
        self._journal = Journal()
        self._subscribers = Subscribers(kernel.parent)
        self._secrets = FreshSecrets()
        self._resumes = Resumes(
            self._secrets.renew, self._subscribers.expect_again, self._forget_processor_times
        )
        #: Whether `_release` is scheduled.
        self._releasing = False
        self._say, self._iopub._really_send = self._iopub._really_send, self._output
        self._answer, self._shell.send_multipart = self._shell.send_multipart, self._reply
        self._send, kernel.session.send = kernel.session.send, self._ask
        kernel.control_handlers["gpuckpt_request"] = self._handle
        self._tell_usage = kernel.control_handlers.get("usage_request")
        if self._tell_usage is not None:
            kernel.control_handlers["usage_request"] = self._usage
        self._should_handle, kernel.should_handle = kernel.should_handle, self._is_to_be_handled
        for event in _EVENTS:
            kernel.shell.events.callbacks.setdefault(event, [])
        self._history = History(kernel.shell)
        self._peers, self._clocks = PeerAccess(), ProcessorClocks()
        self.user_requests = _UserRequests(kernel)

    @property
    def silent(self) -> bool:
        """Return whether output is being buffered; always False in a forked child."""
        if self._silent and time.monotonic() - self._since > _LONGEST_SILENCE:
            self._flush_output()
            if self._peers.was_switched:
                threading.Thread(target=self._peers.on, daemon=True).start()
        return self._silent and os.getpid() == self._pid

    # Called in the IOPub thread.
    def _output(self, message: Any, *arguments: Any, **options: Any) -> None:
        # A child that was forked while another thread held the lock would deadlock on it.
        if os.getpid() == self._pid:
            self._journal.add(b"iopub", message)
            self._resumes.last()
            with self._lock:
                missing = not self._silent and self._subscribers.are_missing(message)
                if self._silent or self._kept_output or missing:
                    self._kept_output.append((message, arguments, options))
                    self._release_soon()
                    return
            self._sent.note(message)
        self._say(message, *arguments, **options)

    # Called in the thread of the shell's stream.
    def _reply(self, message: Any, *arguments: Any, **options: Any) -> None:
        self._journal.add(b"shell", message)
        with self._lock:
            now = time.monotonic()
            cut = max(self._flushed, self._resumes.last())
            careful = self._silent or self._kept_replies or now < cut + _PATIENCE
            careful = careful or may_be_lost(message[0])
            self._sent.note_reply(message)
            if careful:
                self._kept_replies.append((now, copied(message)))
        if careful:
            # Replies are sent now, because ipykernel 6 runs all waiting cells before a scheduled callback.
            self._deliver_kept()
            self._answer_soon()
        else:
            self._answer(message, *arguments, **options)

    # Called before a cell is executed.
    def _is_to_be_handled(self, stream: Any, message: Any, identity: Any) -> Any:
        header = message["header"]
        if header["msg_type"] == "execute_request" and not self._journal.is_new(header["msg_id"]):
            return False
        self._resumes.last()
        self._subscribers.note_request(str(header.get("session")))
        return self._should_handle(stream, message, identity)

    # Called in the thread of the control channel.
    def _usage(self, *arguments: Any) -> Any:
        self._resumes.last()
        return self._tell_usage(*arguments)

    def _forget_processor_times(self) -> None:
        """Let ipykernel's view of resource usage count anew: Linux counts CPU time from zero after a resume."""
        self._kernel.processes = {}

    # Called in the thread that runs the cell: only stdin's socket is used directly.
    def _ask(self, stream: Any, *arguments: Any, **options: Any) -> Any:
        stdin = self._kernel.stdin_socket
        if stream is stdin and os.getpid() == self._pid:
            deadline = time.monotonic() + _PATIENCE
            while self.silent:
                time.sleep(_PAUSE)
            sent: list[Any] = []

            def offer(**other: Any) -> bool:
                return offered(
                    stdin,
                    lambda: sent.append(self._send(stdin, *arguments, **{**options, **other})),
                )

            parent = arguments[2] if len(arguments) > 2 else options.get("parent")
            other = other_address(options.get("ident"), parent)
            while not offer() and not (other and offer(ident=other)):
                if time.monotonic() > deadline:
                    break
                time.sleep(_PAUSE)
            if sent:
                return sent[0]
        return self._send(stream, *arguments, **options)

    # Called in the control thread.
    async def _handle(self, stream: Any, identity: Any, parent: Any) -> None:  # noqa: PLR0912, PLR0915 - a table
        self._resumes.last()
        op = parent["content"].get("op")
        content: dict[str, Any] = {"status": "ok"}
        content.update(self._journal.opened(parent["content"]) if op == "journal" else {})
        states: list[bytes] = []
        if op == "prepare":
            self._prepare()
            # This comes after `_prepare`: messages about later changes by a running cell are then buffered and sent after the resume.
            content["comms"] = _open_comms(self._kernel)
            states = _widget_states()
        elif op == "probe":
            message = self._kernel.session.msg("gpuckpt_probe", {}, parent=parent)
            parts = [b"gpuckpt_probe", *self._kernel.session.serialize(message)]
            self._iopub.schedule(lambda: self._say(parts))
        elif op == "thaw":
            self._clocks.note()
            self._flush_output()
        elif op == "count":
            callbacks = self._kernel.shell.events.callbacks
            content.update({event: len(callbacks.get(event, ())) for event in _EVENTS})
            content["uses_gpu"] = driver_is_loaded()
            content["cell"] = last_cell(self._kernel.shell)
        elif op == "answer":
            self.user_requests.answer(parent["content"])
        elif op in _EVENTS:
            content["called"] = await self._call(op)
        elif op == "resumed":
            request = parent["content"]
            take_variables(
                request["environment"], request.get("renewed", ()), request.get("visible_gpus", "")
            )
            take_ports(request["moved_ports"], request["connection_file"], self._iopub)
            self._history.continue_after_resume(branched=request["branched"])
            self.user_requests.resumed()
            content["not_renewed"] = self._secrets.not_renewed + seed_anew(
                request.get("seed_anew", ())
            )
            if request.get("gpu_is_back"):
                await self._peers_on()
        elif op == "recipe_ended":
            self._history.leave_file()
            content.update(left=left_in(self._kernel, parent["content"]["log"]), sources=sources())
            os.chdir(parent["content"]["folder"])
        elif op == "become_new":
            try:
                await self._become_new(parent["content"])
            except Exception as error:
                content.update(status="error", ename=type(error).__name__, evalue=str(error))
        elif op == "peers_off":
            content["peer_access"] = await self._peers_off()
            content["switched"] = self._peers.was_switched
        elif op == "peers_on":
            content["peer_access"] = await self._peers_on()
        elif op == "trim":
            content["trimmed_bytes"] = await self._trim(float(parent["content"]["seconds"]))
        elif op == "again":
            states = self._messages_after(parent["content"], content)
        elif op == "variables":
            with suppress(Exception):
                seconds = float(parent["content"].get("fingerprint_seconds", 0))
                content["variables"] = variables_of(self._kernel.shell, seconds)
        content["kept"] = len(self._kept_output)
        session = self._kernel.session
        session.send(stream, "gpuckpt_reply", content, parent, ident=identity, buffers=states)

    def _messages_after(self, request: dict[str, Any], content: dict[str, Any]) -> list[bytes]:
        """Return the parts of all messages after the requested one, and resend the replies to some requests."""
        sent, content["complete"] = self._sent.after(request["after"])
        content["counts"] = [len(parts) for parts in sent]
        with self._lock:
            now = self._flushed = time.monotonic()
            self._kept_replies.extend((now, r) for r in self._sent.replies_to(request["requests"]))
        self._answer_soon()
        return [part for parts in sent for part in parts]

    async def _become_new(self, request: dict[str, Any]) -> None:
        """Make a new kernel of this copy: one that has sent nothing and has no clients."""
        become_new(self._kernel, request)
        self._history.take_file()
        take_ports(request["moved_ports"], request["connection_file"], self._iopub)
        self._sent.forget()
        self._subscribers.forget()
        self._history.continue_after_resume(branched=True)
        await self._peers_on()
        await self._call("on_resume")

    async def _call(self, event: str) -> bool:
        """Trigger an event of IPython's in the main thread; return False if a running cell prevented it."""
        trigger = self._kernel.shell.events.trigger
        # Functions for on_resume may be called later, when the cell has ended.
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
        self._clocks.note()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with self._lock:
            self._silent, self._since = True, time.monotonic()
        # Reading `silent` ends buffering that has lasted too long.
        self._kernel.control_stream.io_loop.call_later(_LONGEST_SILENCE + 1, lambda: self.silent)

    def _flush_output(self) -> None:
        def send_all() -> None:
            # Other threads append messages meanwhile.
            while True:
                with self._lock:
                    if not self._kept_output:
                        self._silent, self._flushed = False, time.monotonic()
                        break
                    message, arguments, options = self._kept_output.popleft()
                self._sent.note(message)
                self._say(message, *arguments, **options)
            self._answer_soon()

        self._iopub.schedule(send_all)

    # Called in the IOPub thread.
    def _release_soon(self) -> None:
        if not self._releasing and not self._silent:
            self._releasing = True
            self._iopub.io_loop.call_later(_PAUSE, self._release)

    def _release(self) -> None:
        """Send the output that was kept for subscribers, once they are back or have had their time."""
        with self._lock:
            self._releasing = False
            if self._silent or not self._kept_output:
                return
            if self._subscribers.are_missing(self._kept_output[0][0]):
                self._release_soon()
                return
        self._flush_output()

    def _answer_soon(self) -> None:
        with self._lock:
            if self._answering or self._silent or not self._kept_replies:
                return
            self._answering = True
        self._shell.io_loop.add_callback(self._answer_all)

    def _answer_all(self) -> None:
        """Send the kept replies, repeatedly until none is left."""
        self._deliver_kept()
        with self._lock:
            self._answering = bool(self._kept_replies) and not self._silent
            again = self._answering
        if again:
            self._shell.io_loop.call_later(_PAUSE, self._answer_all)

    def _deliver_kept(self) -> None:
        """Send the kept replies once; keep those for peers that have not connected again, without delaying others."""
        away: set[bytes] = set()
        for kept in list(self._kept_replies):
            given, reply = kept
            if self._silent or reply[0] in away:
                continue
            sent = deliver(self._shell.socket, reply)
            if not sent and time.monotonic() < max(given, self._flushed) + _PATIENCE:
                away.add(reply[0])
                continue
            with self._lock:
                self._kept_replies.remove(kept)
        # Sending past the stream may have consumed an event that the stream waits for (zmq_getsockopt, ZMQ_FD).
        self._shell._update_handler(self._shell._state)


class _UserRequests:
    """The requests of a kernel's user code (the magic `%gpuckpt`) to its server, sent on iopub, that wait for an answer."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._answered = threading.Condition()
        #: The answers by request id. None: no server has received the request yet; empty: a server has.
        self._answers: dict[str, str | None] = {}

    def ask(self, verb: str, argument: str) -> str | None:
        """Send a request and wait for the answer's text; return None if no server receives it. Called in the thread that runs the cell."""
        request_id = uuid.uuid4().hex
        client = (self._kernel.get_parent("shell") or {}).get("header", {}).get("session", "")
        content = {"id": request_id, "what": verb, "argument": argument, "client": client}
        with self._answered:
            self._answers[request_id] = None
        try:
            self._kernel.session.send(
                self._kernel.iopub_socket, _USER_REQUEST, content, ident=_USER_REQUEST.encode()
            )
            taken = self._wait(request_id, lambda text: text is not None, _TAKEN_SECONDS)
            return self._wait(request_id, bool, _DONE_SECONDS) if taken is not None else None
        finally:
            with self._answered:
                del self._answers[request_id]

    def answer(self, content: dict[str, Any]) -> None:
        """Store an answer of the server; an empty text means that the server has received the request."""
        with self._answered:
            if content["id"] in self._answers:
                self._answers[content["id"]] = content["text"]
                self._answered.notify_all()

    def resumed(self) -> None:
        """Answer all requests after a resume: the server that has them may have ended."""
        with self._answered:
            self._answers = dict.fromkeys(self._answers, _RESUMED)
            self._answered.notify_all()

    def _wait(self, request_id: str, wanted: Any, seconds: float) -> str | None:
        with self._answered:
            self._answered.wait_for(lambda: wanted(self._answers[request_id]), seconds)
            return self._answers[request_id]


def _open_comms(kernel: Any) -> dict[str, str]:
    """Return the target names of all open comms, by comm id."""
    # The copy is atomic: a cell may be opening comms in the main thread.
    comms = dict(getattr(getattr(kernel, "comm_manager", None), "comms", {}))
    return {comm_id: comm.target_name for comm_id, comm in comms.items()}


def _widget_states() -> list[bytes]:
    """Return ipywidgets' reply to `request_states` on its comm `jupyter.widget.control`: the data as JSON, then the buffers.

    The list is empty if there are no widgets, or too many, or if a cell that changes them interferes. See
    ipywidgets/widgets/widget.py, `_handle_control_comm_msg`.
    """
    try:
        return _read_widget_states(time.thread_time() + _MAX_STATE_SECONDS)
    except Exception:
        return []


def _read_widget_states(deadline: float) -> list[bytes]:
    module: Any = sys.modules.get("ipywidgets.widgets.widget")
    if module is None:
        return []
    # ipywidgets 7 has the second attribute.
    widgets = dict(module._instances if hasattr(module, "_instances") else module.Widget.widgets)
    texts: list[str] = []
    paths: list[Any] = []
    buffers: list[bytes] = []
    left = _MAX_STATE_BYTES
    for model_id, widget in widgets.items():
        if widget.comm is None:
            continue
        state, below, views = module._remove_buffers(widget.get_state())
        # The size is checked before the buffers are copied and encoded.
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
        if left < 0 or time.thread_time() > deadline:
            return []
        paths += [[model_id, "state", *path] for path in below]
        buffers += [view.tobytes() for view in found]
    if not texts:
        return []
    states, buffer_paths = ", ".join(texts), json.dumps(paths)
    data = f'{{"method": "update_states", "states": {{{states}}}, "buffer_paths": {buffer_paths}}}'
    return [data.encode(), *buffers]


def _as_json(value: Any) -> str:
    """Encode as jupyter_client does (`session.json_packer`), without its warning about values that are not JSON."""
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
