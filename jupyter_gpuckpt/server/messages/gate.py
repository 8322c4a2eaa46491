"""The gate: a mixin of the websockets of kernels under the engine.

While the kernel cannot answer, requests are held in order and sent when it can. Requests that pages send by themselves when they
are opened are answered from recorded state, so that viewing a notebook needs no kernel. A cell resumes the kernel. The state of
comms and widgets is in `comms.py`.
"""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from jupyter_client.jsonutil import json_default
from jupyter_server.services.kernels.connection.base import (
    deserialize_binary_message,
    deserialize_msg_from_ws_v1,
    serialize_binary_message,
    serialize_msg_to_ws_v1,
)
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from tornado.websocket import WebSocketClosedError

from ...wire.plurals import counted
from ..jupyter_internals import send_to_page
from . import routing_ids
from .answers import WAKING, Request, answer, failure, refusal
from .comms import IopubMessage, PageComms

if TYPE_CHECKING:
    from jupyter_client.session import Session

    from ...errors import ErrorRecord
    from .served_kernel import ServedKernel

    _Base = ZMQChannelsWebsocketConnection
else:
    _Base = object

_log = logging.getLogger(__name__)
#: The name of the newer websocket subprotocol; the older one has none.
V1 = "v1.kernel.websocket.jupyter.org"


def read_request(message: Any, protocol: str | None, session: Session) -> Request:
    """Return a page's message as a request; an unreadable one has no kind and is sent to the kernel unchanged."""
    try:
        if protocol == V1:
            channel, parts = deserialize_msg_from_ws_v1(message)
            header, metadata = _fields(session.unpack(parts[0])), _fields(session.unpack(parts[2]))
            about_comms = str(header.get("msg_type")).startswith("comm_")
            content = _fields(session.unpack(parts[3])) if about_comms else {}
            return Request(str(channel), header, content, message, metadata)
        binary = isinstance(message, bytes)
        unpacked = deserialize_binary_message(message) if binary else json.loads(message)
        header, metadata, content = (
            _fields(unpacked.get(name)) for name in ("header", "metadata", "content")
        )
        return Request(str(unpacked.get("channel") or "shell"), header, content, message, metadata)
    except Exception as error:
        _log.debug("a request cannot be read: %s", error)
        return Request("shell", {}, {}, message)


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class GatedConnection(_Base):
    """A mixin of the configured connection class, which must be a `ZMQChannelsWebsocketConnection`."""

    _held: list[Request]
    #: The page's comms; assigned when it connects.
    _comms: PageComms
    _protocol: str | None = None
    #: Whether the page was told, in the kernel's name, that the kernel is idle.
    _told_idle = False
    #: Messages for a page that disconnected while its requests were held: this server's own, and the kernel's replies.
    _unsent: list[tuple[Any, ...]] | None = None
    unreceived: list[tuple[str, list[bytes]]]

    @property
    def _served(self) -> ServedKernel | None:
        owner = getattr(self.multi_kernel_manager, "gpuckpt_owner", None)
        return owner.served.get(self.kernel_id) if owner is not None else None

    # ---- connecting --------------------------------------------------------------------------------------------------

    @property
    def client_session(self) -> str:
        """Return the page's own session id (`output.Page`)."""
        return str(self.session.session)

    def connect(self) -> asyncio.Future[None] | None:  # type: ignore[override] # as the base's base
        """Connect as the base does; a page gets the kernel's status if the kernel itself cannot say it.

        A page that connects again takes over its held requests, and gets the messages it missed and the kernel's `input_request`
        that it has not answered.
        """
        self._held, self._comms, self._protocol = [], PageComms(), super().subprotocol
        served = self._served
        left = served.left_pages.get(self.session_key) if served is not None else None
        question = served.output.question(self.client_session) if served is not None else None
        connected = super().connect()  # it takes over the channels of `left`, if there are any
        if connected is not None and served is not None:
            served.connections.add(self)
            unsent = self.take_over(cast("GatedConnection", left)) if left is not None else []
            connected.add_done_callback(lambda _: self._join(served, unsent, question))
        return connected

    def create_stream(self) -> None:
        """Connect to the kernel as the base does, under the page's present routing id."""
        super().create_stream()
        served = self._served
        if served is not None and served.output.renewals:
            routing_ids.renew(self.channels, served.routing_id(self.client_session))

    def take_over(self, previous: GatedConnection) -> list[tuple[Any, ...]]:
        """Take over the requests that the page's last connection held, before all others; return its unsent messages."""
        self._held[:0], previous._held = previous._held, []
        self._comms = previous._comms
        unsent, previous._unsent = previous._unsent or [], []
        return unsent

    def _join(
        self, served: ServedKernel, unsent: list[tuple[Any, ...]], question: list[bytes] | None
    ) -> None:
        if self not in served.connections:
            return  # the page has disconnected
        served.output.join(self)
        for message in unsent:
            self._send(*message)
        self.show_status()
        answers = any(request.kind == "input_reply" for request in self._held)
        # The page may have lost the question, or its answer may be lost.
        if question and not answers and served.output.question(self.client_session) is question:
            super().handle_outgoing_message(self.channels["stdin"], question)
        self.on_gate()

    @property
    def subprotocol(self) -> Any:
        """Return the subprotocol of the websocket, even after the page has disconnected."""
        return self._protocol

    def nudge(self) -> asyncio.Future[None]:
        """Wait until the kernel answers, as the base does; return at once if the gate is shut, because the gate waits itself."""
        served = self._served
        if served is None or served.gate_is_open:
            return super().nudge()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def disconnect(self) -> None:  # type: ignore[override] # as the base's base
        """Disconnect as the base does. Held requests are still delivered; the channels stay open for the replies (`get_buffer`)."""
        if self._unsent is not None:
            return  # it has disconnected before
        served, kept = self._served, {}
        if served is not None:
            served.connections.discard(self)
            served.output.leave(self)
            if getattr(self, "_held", None) and self.kernel_id in self.multi_kernel_manager:
                kept = self._keep_channels(served)
        super().disconnect()
        if kept:
            self.channels = kept

    def _keep_channels(self, served: ServedKernel) -> dict[str, Any]:
        """Pass held requests to the page's next connection; return the channels that stay open until it comes."""
        for other in served.connections:
            if (
                other.session_key == self.session_key
            ):  # the page reconnected before this connection was found broken
                other.take_over(self)
                other.on_gate()
                return {}
        self._unsent, self.unreceived = [], []
        served.left_pages[self.session_key] = self
        kept, self.channels = self.channels, {}
        for stream in kept.values():
            stream.on_recv_stream(self.handle_outgoing_message)
        return kept

    def close_channels(self) -> None:
        """Drop held requests and close the channels to a kernel that is gone (`served_kernel.LeftPage`)."""
        self.drop_held()
        channels, self.channels = self.channels, {}
        for stream in channels.values():
            if not stream.closed():
                stream.close()

    # ---- from the page -----------------------------------------------------------------------------------------------

    def handle_incoming_message(self, incoming_msg: Any) -> None:
        """Send a page's request to the kernel, answer it, or hold it."""
        served = self._served
        if served is None or not self.channels:
            super().handle_incoming_message(incoming_msg)
            return
        if self.kernel_id not in self.multi_kernel_manager:
            return  # the kernel was just shut down
        request = read_request(incoming_msg, self.subprotocol, self.session)
        if self._answer_comm(served, request):
            return
        if request.kind == "execute_request":
            served.note_cell(self._client(request))
        open_for_this = served.gate_is_open or (
            served.is_parked and not self._is_waking(served, request)
        )
        if open_for_this and not self._held:
            self._send_on(served, request)
        elif not self._answer(served, request):
            self._held.append(request)
            if self._is_waking(served, request):
                served.wake()

    def _client(self, request: Request) -> tuple[str, str]:
        """Return the user name and the program that a client states."""
        asked = getattr(self.websocket_handler, "request", None)
        program = asked.headers.get("User-Agent", "") if asked is not None else ""
        return str(request.header.get("username") or ""), program

    def on_gate(self) -> None:
        """Send held requests as far as the gate is open, and answer those that can be answered (`served_kernel.Connection`)."""
        served = self._served
        if served is None:
            return
        if self._told_idle and served.output.runs_cell:
            self.show_status()
        if not self._held:
            return
        waiting, self._held = self._held, []
        for request in waiting:
            if served.gate_is_open:
                try:
                    self._send_on(served, request)
                except Exception:  # a failed request must not prevent later ones
                    self.log.exception("kernel %s: a request was not sent", self.kernel_id)
            elif not (self._answer_comm(served, request) or self._answer(served, request)):
                self._held.append(request)
        # A request that came after the gate was shut and before the kernel was suspended could not wake it.
        if served.absent and any(self._is_waking(served, request) for request in self._held):
            served.wake()

    def refuse_held(self, error: ErrorRecord) -> None:
        """Answer each held request with an error (`served_kernel.Connection`); drop messages that have no reply."""
        waiting, self._held = self._held, []
        for request in waiting:
            if request.kind.endswith("_request"):
                self._refuse(request, "KernelNotResumed", f"{error.message} {error.hint}".strip())
            else:
                # A widget sends its next value only when the last one was handled.
                self._send_done(request)
        if waiting:
            self.show_status()

    def drop_held(self) -> None:
        """Drop the requests held for a kernel that is gone (`served_kernel.Connection`)."""
        if getattr(self, "_held", None):
            self.log.info(
                "dropping %s for kernel %s", counted(len(self._held), "request"), self.kernel_id
            )
            self._held = []

    def _send_on(self, served: ServedKernel, request: Request) -> None:
        if request.kind == "execute_request":
            cell = str(request.metadata.get("cellId") or "")  # set by JupyterLab
            msg_id = str(request.header.get("msg_id"))
            served.output.asked(self.client_session, msg_id, cell)
        elif request.kind == "input_reply":
            served.output.answered(self.client_session)
        super().handle_incoming_message(request.raw)

    def _is_waking(self, served: ServedKernel, request: Request) -> bool:
        if request.kind == "comm_msg":
            return served.comms.wants_kernel(request.content)
        return request.kind in WAKING

    def _answer_comm(self, served: ServedKernel, request: Request) -> bool:
        """Answer a comm message in the kernel's name; return whether that was possible."""
        if not request.kind.startswith("comm_"):
            return False
        kind, content = request.kind, request.content
        messages = self._comms.answer(served.comms, kind, content, absent=served.absent)
        if messages is None:
            return False
        self._send_done(request, messages)
        self.show_status()
        return True

    def _answer(self, served: ServedKernel, request: Request) -> bool:
        """Answer a request in the kernel's name; return whether that was possible."""
        found = answer(served, self.kernel_manager, request.kind, request.content)
        if found is None:
            return False
        self._reply(request, *found)
        # JupyterLab takes no status from a reply to these requests and would show "Unknown"; older versions show the reply's "idle".
        self.show_status()
        return True

    def _reply(self, request: Request, kind: str, content: dict[str, Any]) -> None:
        parent = {"header": request.header}
        self._send("iopub", "status", {"execution_state": "busy"}, parent)
        self._send(request.channel, kind, content, parent)
        self._send("iopub", "status", {"execution_state": "idle"}, parent)

    def _refuse(self, request: Request, name: str, text: str) -> None:
        if request.kind == "execute_request":
            self._send("iopub", "error", failure(name, text), {"header": request.header})
        self._reply(request, *refusal(request.kind, name, text))

    def _send_done(self, request: Request, messages: Sequence[IopubMessage] = ()) -> None:
        """Publish the messages by which a kernel ends the handling of a message without a reply."""
        parent = {"header": request.header}
        self._send("iopub", "status", {"execution_state": "busy"}, parent)
        for kind, content, buffers in messages:
            self._send("iopub", kind, content, parent, buffers)
        self._send("iopub", "status", {"execution_state": "idle"}, parent)

    def show_status(self) -> None:
        """Tell the page that a cell runs, or that none does if the kernel cannot say that itself."""
        served = self._served
        if served is None:
            return
        is_busy = served.output.runs_cell
        starts = getattr(self.kernel_manager, "execution_state", "") == "starting"
        if is_busy or served.absent or not (served.gate_is_open or starts):
            self._told_idle = not is_busy
            state = "busy" if is_busy else "idle"
            self._send("iopub", "status", {"execution_state": state}, None)

    def _send(
        self,
        channel: str,
        kind: str,
        content: dict[str, Any],
        parent: Any,
        buffers: Sequence[bytes] = (),
    ) -> None:
        """Send the page a message in the kernel's name, now or when it connects again."""
        if self._unsent is not None:
            self._unsent.append((channel, kind, content, parent, buffers))
            return
        message = self.session.msg(kind, content, parent=parent)
        served = self._served
        if served is not None and served.output.kernel_session:
            # JupyterLab interprets another session id as another kernel and drops its queue for this one.
            message["header"]["session"] = served.output.kernel_session
        with suppress(WebSocketClosedError):
            if self.subprotocol == V1:
                names = ("header", "parent_header", "metadata", "content")
                parts = [*(self.session.pack(message[name]) for name in names), *buffers]
                self.write_message(serialize_msg_to_ws_v1(parts, channel), binary=True)
                return
            message |= {"channel": channel, "buffers": list(buffers)}
            if buffers:
                self.write_message(serialize_binary_message(message), binary=True)
            else:
                self.write_message(json.dumps(message, default=json_default))

    # ---- from the kernel ---------------------------------------------------------------------------------------------

    def handle_outgoing_message(self, stream: Any, outgoing_msg: list[Any]) -> None:
        """Send replies and input requests to the page. Iopub messages come by `show`."""
        served, channel = self._served, getattr(stream, "channel", stream)
        if served is not None and channel == "iopub":
            return
        if self._unsent is not None:
            self.unreceived.append((channel, outgoing_msg))
            return
        if served is not None and channel == "stdin":
            served.output.asks(self.client_session, outgoing_msg)
        super().handle_outgoing_message(stream, outgoing_msg)

    def show(self, parts: list[bytes]) -> None:
        """Send the page a message that the kernel has just published (`output.Page`)."""
        if self.channels:
            super().handle_outgoing_message(self.channels["iopub"], parts)

    def show_again(self, parts: list[bytes]) -> None:
        """Send the page a message that it missed (`output.Page`), outside Jupyter's rate limit, which would drop some."""
        if not self.channels:
            return
        _, fed = self.session.feed_identities(parts)
        message: Any = fed[1:]
        if self.subprotocol != V1:
            signature = self.session.sign(fed[1:5])  # the content may have been changed
            message = self.session.deserialize([signature, *fed[1:]])
        send_to_page(self, self.channels["iopub"], message)

    def show_text(self, text: str) -> None:
        """Show the page a text as standard error in the middle of the kernel's output (`output.Page`)."""
        self._send("iopub", "stream", {"name": "stderr", "text": text}, None)
