"""The clients that other code in this server makes by `KernelManager.client`.

Such a client has sockets of its own, which the gate does not see: nothing would answer at the ports of a suspended kernel. So it
is connected to a relay in this server, which answers, holds and sends on requests as the gate does for pages (`gate.py`).
Nothing listens on the kernel's own ports in its place: a resume, which any program may request, needs them at once.
"""
# jupyter_server's methods carry no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import zmq
from jupyter_client.session import Session
from zmq.eventloop.zmqstream import ZMQStream

from ..jupyter_internals import RedirectedClient
from .answers import WAKING, Request, answer, failure, refusal

if TYPE_CHECKING:
    from ...errors import ErrorRecord
    from .served_kernel import ServedKernel

#: The channels on which a client sends requests, and in which order its sockets are made.
_REQUESTS = ("shell", "control", "stdin")
#: How long a client's last messages may be on their way when it has closed its sockets: jupyter_client's own linger, doubled.
_LAST_SECONDS = 2.0


class RelayedClient(RedirectedClient):
    """A mixin of a kernel manager's client class: a client of a kernel under the engine is connected to a relay."""

    #: The relay, once the client has made a socket; None: it is connected to the kernel itself.
    _gpuckpt_relay: ClientRelay | None

    def gpuckpt_url(self, channel: str) -> str | None:
        """Return the relay's address for a channel; None: the client is connected to the kernel itself."""
        if not hasattr(self, "_gpuckpt_relay"):
            self._gpuckpt_relay = self._relay()
        return self._gpuckpt_relay.urls.get(channel) if self._gpuckpt_relay else None

    def _relay(self) -> ClientRelay | None:
        manager: Any = self.parent
        owner = getattr(getattr(manager, "parent", None), "gpuckpt_owner", None)
        served = owner.served.get(manager.kernel_id) if owner is not None else None
        if served is None or served.kernel is None:
            return None
        relay = ClientRelay(served, manager)
        weakref.finalize(self, relay.end).atexit = False
        return relay

    def stop_channels(self) -> None:
        """Stop the channels as the base does, then the relay."""
        super().stop_channels()
        relay = getattr(self, "_gpuckpt_relay", None)
        if relay is not None:
            relay.end()


class ClientRelay:
    """The sockets between one client and its kernel. It may be made and ended in any thread; all else is on the event loop."""

    def __init__(self, served: ServedKernel, manager: Any) -> None:
        self._served, self._manager = served, manager
        self._session = Session(config=manager.config, key=manager.session.key)
        self._held: list[Request] = []
        self._ended = False
        #: The sockets to the kernel, and those to the client, by name.
        self.channels: dict[str, Any] = {}
        self._streams: dict[str, ZMQStream] = {}
        self._sockets = {name: self._listening(zmq.DEALER) for name in _REQUESTS}
        self._sockets["iopub"] = self._listening(zmq.PUB)
        self.urls = {
            name: one.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
            for name, one in self._sockets.items()
        }
        manager.loop.add_callback(self._start)

    def end(self) -> None:
        """Close the sockets when the client's last messages have come."""
        loop = self._manager.loop
        loop.add_callback(loop.call_later, _LAST_SECONDS, self._end)

    # ---- the kernel's side (`served_kernel.Client`) ------------------------------------------------------------------

    @property
    def client_session(self) -> str:
        """Return the session id under which the kernel knows the relay's sockets."""
        return str(self._session.session)

    def on_gate(self) -> None:
        """Send held requests on, or answer them, as far as the kernel's state allows."""
        waiting, self._held = self._held, []
        for request in waiting:
            self._handle(request)
        if self._ended and not self._held:
            self._close()

    def refuse_held(self, error: ErrorRecord) -> None:
        """Answer held requests with the reason why the kernel cannot be resumed."""
        waiting, self._held = self._held, []
        text = f"{error.message} {error.hint}".strip()
        for request in waiting:
            if request.kind == "execute_request":
                self._publish(request, "error", failure("KernelNotResumed", text))
            if request.kind.endswith("_request"):
                self._reply(request, *refusal(request.kind, "KernelNotResumed", text))

    def drop_held(self) -> None:
        """Drop the requests held for a kernel that is gone."""
        self._held = []

    def show(self, parts: list[bytes]) -> None:
        """Send the client a message that the kernel has published."""
        self._streams["iopub"].send_multipart(parts)

    # ---- the client's side -------------------------------------------------------------------------------------------

    def _listening(self, kind: int) -> zmq.Socket[bytes]:
        listener: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        listener.linger, listener.sndhwm = 0, 0  # no output is lost, however slow the client is
        if getattr(self._manager, "curve_secretkey", None):
            listener.curve_server = True
            listener.curve_secretkey = self._manager.curve_secretkey
            listener.curve_publickey = self._manager.curve_publickey
        listener.bind("tcp://127.0.0.1:*")
        return listener

    def _start(self) -> None:
        self._streams = {name: ZMQStream(one) for name, one in self._sockets.items()}
        routing_id = self._served.routing_id(self.client_session)
        for name in _REQUESTS:
            self.channels[name] = getattr(self._manager, f"connect_{name}")(identity=routing_id)
            self.channels[name].on_recv(self._streams[name].send_multipart)
            self._streams[name].on_recv(partial(self._received, name))
        self._served.add_client(self)

    def _received(self, channel: str, parts: list[Any]) -> None:
        try:
            _, own = self._session.feed_identities(parts)
            message = self._session.deserialize(own)
        except Exception as error:  # not signed by the kernel's key, or no message at all
            self._manager.log.debug(
                "kernel %s: a request is invalid: %s", self._served.kernel_id, error
            )
            return
        self._handle(
            Request(channel, message["header"], message["content"], parts[-len(own) + 1 :])
        )

    def _handle(self, request: Request) -> None:
        served, kind = self._served, request.kind
        wakes = kind in WAKING
        if served.gate_is_open or (served.is_parked and not wakes and not self._held):
            self._session.send_raw(self.channels[request.channel], request.raw)
        elif found := answer(served, self._manager, kind, request.content):
            self._reply(request, *found)
        else:
            self._held.append(request)
            if wakes:
                served.wake()

    def _reply(self, request: Request, kind: str, content: dict[str, Any]) -> None:
        self._publish(request, "status", {"execution_state": "busy"})
        self._session.send(
            self._streams[request.channel], kind, content, parent={"header": request.header}
        )
        self._publish(request, "status", {"execution_state": "idle"})

    def _publish(self, request: Request, kind: str, content: dict[str, Any]) -> None:
        parent = {"header": request.header}
        self._session.send(
            self._streams["iopub"], kind, content, parent=parent, ident=kind.encode()
        )

    def _end(self) -> None:
        self._ended = True
        self.on_gate()

    def _close(self) -> None:
        self._served.remove_client(self)
        for stream in (*self.channels.values(), *self._streams.values()):
            if not stream.closed():
                stream.close()
