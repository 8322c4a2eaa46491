"""A page, the gate and a scripted kernel. Gate, served kernel, kept output and kernel manager are the real ones.

The kernel answers as ipykernel with the agent does, and its sockets only record what they are sent.
"""

import asyncio
import json
from types import SimpleNamespace

from jupyter_client.session import Session
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from jupyter_server.services.kernels.websocket import KernelWebsocketHandler
from traitlets.config import LoggingConfigurable

from jupyter_gpuckpt.server import jupyter_internals
from jupyter_gpuckpt.server.kernels.kernel_listener import KernelListeners
from jupyter_gpuckpt.server.kernels.kernel_manager import install_kernel_manager
from jupyter_gpuckpt.server.messages.gate import GatedConnection
from jupyter_gpuckpt.server.messages.output import KernelOutput
from jupyter_gpuckpt.server.messages.served_kernel import ServedKernel
from jupyter_gpuckpt.wire.protocol import Kernel
from jupyter_gpuckpt.wire.states import KernelState

KERNEL = "kernel"
SESSION = Session(key=b"key")
#: Requests whose status messages JupyterLab ignores (its `untracked_message_types`); before 4.2 it did not.
UNTRACKED = {"kernel_info_request", "comm_info_request", "history_request"}


class Connection(GatedConnection, ZMQChannelsWebsocketConnection):
    """A websocket as `service.py` composes it."""


class Handler(KernelWebsocketHandler):
    """The page's end of a websocket."""

    def __init__(self, page):
        self.page = page

    def write_message(self, message, binary=False):
        self.page.receive(json.loads(message))


class Stream:
    """A socket to the kernel."""

    def __init__(self, kernel, channel, identity):
        self.kernel, self.channel, self.identity = kernel, channel, identity
        self.socket, self._closed, self._receive = self, False, None

    def on_recv(self, callback):
        self._receive = callback

    stop_on_recv = lambda self: None  # noqa: E731

    def on_recv_stream(self, callback):
        self._receive = lambda parts: callback(self, parts)

    def send_multipart(self, parts, **_):
        message = SESSION.deserialize(SESSION.feed_identities(parts)[1])
        self.kernel.asked(self, message)

    def deliver(self, parts):
        if self._receive is not None and not self._closed:
            self._receive(parts)

    def closed(self):
        return self._closed

    def close(self):
        self._closed = True


class ScriptedKernel(LoggingConfigurable):
    """The process of the kernel, its manager and its provisioner."""

    kernel_name, ports = "python3", [1, 2, 3, 4, 5]

    def __init__(self, kernels, output):
        super().__init__(parent=kernels)
        self.kernel_id, self.session, self.kernel = KERNEL, SESSION, None
        self.execution_state, self.reason = "idle", ""
        self.output, self.streams = output, []
        #: Whether the agent buffers what is published, and what it has buffered.
        self.silent, self.buffered = False, []
        self.cell = None
        self.printed = 0
        jupyter_internals.set_known_info(self, {"status": "ok", "protocol_version": "5.3"})
        for channel in ("shell", "iopub", "stdin", "control"):
            setattr(self, f"connect_{channel}", self._connector(channel))

    def _connector(self, channel):
        def connect(identity=None):
            self.streams.append(Stream(self, channel, identity))
            return self.streams[-1]

        return connect

    def add_restart_callback(self, *_):
        pass

    remove_restart_callback = add_restart_callback

    # The provisioner's part.

    def note(self, kernel):
        self.kernel = kernel

    # The process's part.

    def asked(self, stream, message):
        assert not self.silent or message["msg_type"] != "execute_request"
        if message["msg_type"] == "execute_request":
            self.cell = (stream, message)
            self.publish("status", execution_state="busy")
        elif self.cell is None or stream.channel == "control":
            kind = message["msg_type"].replace("_request", "_reply")
            self._say("status", message, execution_state="busy")
            stream.deliver(SESSION.serialize(SESSION.msg(kind, {"status": "ok"}, message)))
            self._say("status", message, execution_state="idle")

    def publish(self, kind, **content):
        self._say(kind, self.cell[1], **content)

    def _say(self, kind, parent, **content):
        parts = SESSION.serialize(SESSION.msg(kind, content, parent))
        self._do(lambda: self.output.feed(parts))

    def _do(self, send):
        self.buffered.append(send)
        if not self.silent:
            self.speak()

    def speak(self):
        self.silent = False
        while self.buffered:
            self.buffered.pop(0)()

    def prints(self):
        if self.cell is not None:
            self.publish("stream", name="stdout", text=f"{self.printed}\n")
            self.printed += 1

    def reply(self):
        stream, request = self.cell
        reply = SESSION.msg("execute_reply", {"status": "ok"}, request)
        parts = SESSION.serialize(reply)
        self._do(lambda: self._to_socket(stream, parts))
        self.publish("status", execution_state="idle")
        self.cell = None

    def _to_socket(self, stream, parts):
        """Send a reply to the newest open socket of the same identity, as a ROUTER does."""
        same = [s for s in self.streams if s.identity == stream.identity]
        [one] = [s for s in same if s.channel == stream.channel and not s.closed()]
        one.deliver(parts)


class Page:
    """A page, on one connection after another; it asks what JupyterLab asks when it connects."""

    def __init__(self, kernels, client_id):
        self.kernels, self.client_id, self.received, self.connection = kernels, client_id, [], None

    def receive(self, message):
        self.received.append(message)

    async def connect(self):
        self.connection = Connection(
            parent=self.kernels.get_kernel(KERNEL),
            websocket_handler=Handler(self),
            session=Session(key=b"key", session=self.client_id),
        )
        self.connection.session_key = f"{KERNEL}:{self.client_id}"
        self.shown_since = len(self.received)
        await self.connection.connect()
        #: Whether the kernel itself answers: JupyterLab, which ignores the status of these answers, then leaves it open.
        self.asked_open_gate = self.kernels.gpuckpt_owner.served[KERNEL].gate_is_open
        self.ask("kernel_info_request")
        self.ask("comm_info_request")

    def ask(self, kind, channel="shell", **content):
        message = SESSION.msg(kind, content)
        message["header"]["session"] = self.client_id
        self.connection.handle_incoming_message(
            json.dumps({**message, "channel": channel, "buffers": []}, default=str)
        )
        return message["header"]["msg_id"]

    def cut(self):
        self.connection.disconnect()
        self.connection = None

    def statuses(self, ignored=()):
        """Return the statuses since it has connected, without those that belong to `ignored` requests."""
        return [
            m["content"]["execution_state"]
            for m in self.received[self.shown_since :]
            if m["msg_type"] == "status" and m["parent_header"].get("msg_type") not in ignored
        ]

    def replies(self, request):
        return [
            m
            for m in self.received
            if m["msg_type"] == "execute_reply" and m["parent_header"]["msg_id"] == request
        ]

    def printed(self):
        return [m["content"]["text"].strip() for m in self.received if m["msg_type"] == "stream"]


class Scene:
    """One kernel with a page whose cell prints a line at each step."""

    def __init__(self, tmp_path, *, is_new):
        self.is_new = is_new
        self.output = KernelOutput(tmp_path / "kept", 1_000_000)
        stock = AsyncMappingKernelManager(connection_dir=str(tmp_path))
        owner = SimpleNamespace(served={})
        self.kernels = install_kernel_manager(stock, owner, KernelListeners(), suspends_idle=True)
        self.kernel = ScriptedKernel(self.kernels, self.output)
        self.woken: list[int] = []
        self.listener = SimpleNamespace(
            kernel_changed=lambda _: None,
            kernel_wanted=lambda _: self.woken.append(1),
            cell_sent=lambda *_: None,
        )
        self.served = ServedKernel(KERNEL, self.kernel, self.output, self._reconnect, self.listener)
        self.served.has_agent = True
        owner.served[KERNEL] = self.served
        jupyter_internals.list_kernel(self.kernels, KERNEL, self.kernel, 0)
        self.page, self.release, self.is_running = Page(self.kernels, "page"), None, True
        self.kernel.execution_state = "busy"  # no nudges

    async def begin(self):
        self._apply(KernelState.RUNNING)
        await self.page.connect()
        self.request = self.page.ask("execute_request", code="")
        await self.settle()

    async def settle(self):
        for _ in range(10):
            await asyncio.sleep(0)

    def _apply(self, state):
        self.served.apply(Kernel(KERNEL, state, "owner"))

    async def _reconnect(self, served):
        """Connect to the resumed kernel, during which it is looked at, too, and make it publish what it has buffered."""
        await asyncio.sleep(0)
        self.kernel.speak()

    # The events.

    async def cut(self):
        self.page.cut()

    async def reconnect(self):
        if self.is_new:
            self.page = Page(self.kernels, "another")
        await self.page.connect()

    async def suspend_begins(self):
        self.release = self.served.hold()
        await self.settle()
        self.check()
        self.kernel.silent = True
        self._apply(KernelState.SUSPENDING)

    async def suspend_ends(self):
        self.is_running = False
        self._apply(KernelState.SUSPENDED)
        self.release()

    async def suspend_fails(self):
        self._apply(KernelState.RUNNING)
        self.release()
        await self.settle()
        self.check()
        self.kernel.speak()

    async def resume(self):
        self._apply(KernelState.RESUMING)
        await self.settle()
        self.check()
        self.is_running = True
        self._apply(KernelState.RUNNING)
        self.check()

    async def reply(self):
        self.kernel.reply()

    def check(self):
        """Check the status that a connected page shows."""
        if self.page.connection is None:
            return
        for ignored in ((), UNTRACKED):
            statuses = self.page.statuses(ignored)
            if self.output.runs_cell:
                assert statuses[-1:] == ["busy"], (ignored, statuses)
            elif statuses or not self.page.asked_open_gate:
                assert statuses[-1:] == ["idle"], (ignored, statuses)

    async def end(self):
        """Check what the page has got in the end, and that it can go on working."""
        assert [int(line) for line in self.page.printed()] == list(range(self.kernel.printed))
        assert len(self.page.replies(self.request)) == (not self.is_new)
        again = self.page.ask("execute_request", code="")
        await self.settle()
        self.check()
        self.kernel.reply()
        await self.settle()
        self.check()
        assert len(self.page.replies(again)) == 1
        self.page.cut()
        self.output.discard()
