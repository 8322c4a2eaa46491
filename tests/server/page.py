"""A page's side of a server: the websockets of a kernel and of the server's events."""

import json
import threading
import time
import uuid
from datetime import UTC, datetime

import websocket
from jupyter_server.services.kernels.connection.base import (
    deserialize_binary_message,
    deserialize_msg_from_ws_v1,
    serialize_msg_to_ws_v1,
)

TIMEOUT = 120
#: Longer than a test.
NEVER = 3600
PROTOCOL = "v1.kernel.websocket.jupyter.org"


class Page:
    """A websocket of a kernel. `binary`: in the protocol that JupyterLab speaks, else in the older one.

    `client_id`: that of a page which connects again. `program`, `username`: what it says of itself.
    """

    def __init__(
        self, server, kernel_id, session_id, *, binary=False, client_id="", program="", username=""
    ):
        self._username = username
        self.kernel_id, self.session_id = kernel_id, session_id
        self.client_id = client_id or uuid.uuid4().hex
        self.received = []
        #: What is no message.
        self.unread = []
        self._new = threading.Condition()
        path = f"{server.base}api/kernels/{kernel_id}/channels?session_id={self.client_id}"
        url = f"ws://127.0.0.1:{server.port}/{path}"
        self._socket = websocket.create_connection(
            url,
            header=[f"Authorization: token {server.token}", f"User-Agent: {program}"],
            timeout=TIMEOUT,
            subprotocols=[PROTOCOL] if binary else [],
        )
        assert self._socket.subprotocol == (PROTOCOL if binary else None)
        # Else the thread would end where nothing is said for so long.
        self._socket.settimeout(NEVER)
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self):
        while True:
            try:
                text = self._socket.recv()
            except (OSError, websocket.WebSocketException):
                return
            if not text:
                return
            try:
                message = self._read(text)
            except (AttributeError, KeyError, TypeError, ValueError):
                self.unread.append(text)
                continue
            with self._new:
                self.received.append(message)
                self._new.notify_all()

    def _read(self, text):
        if self._socket.subprotocol:
            channel, parts = deserialize_msg_from_ws_v1(text)
            names = ("header", "parent_header", "metadata", "content")
            message = dict(zip(names, map(json.loads, parts[:4]), strict=True))
            message |= {"channel": channel, "msg_type": message["header"]["msg_type"]}
            message["buffers"] = parts[4:]
        elif isinstance(text, bytes):
            message = deserialize_binary_message(text)
        else:
            message = json.loads(text)
        for part in ("parent_header", "metadata", "content"):
            message[part] = dict(message[part] or {})  # null is as good
        message["msg_type"].encode()
        return message

    def send(self, kind, content, channel="shell", metadata=None):
        """Send a request and return its id."""
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": kind,
            "session": self.client_id,
            "username": self._username,
            "version": "5.3",
            "date": datetime.now(UTC).isoformat(),
        }
        parts = {"parent_header": {}, "metadata": metadata or {}, "content": content}
        message = {"header": header, **parts}
        if self._socket.subprotocol:
            packed = serialize_msg_to_ws_v1(
                message, channel, lambda part: json.dumps(part).encode()
            )
            self._socket.send_binary(packed)
        else:
            self._socket.send(json.dumps({**message, "channel": channel, "buffers": []}))
        return header["msg_id"]

    def send_parts(self, parts, channel="shell"):
        """Send parts as they are, also if they make no valid message; for pages that are `binary`."""
        self._socket.send_binary(serialize_msg_to_ws_v1(parts, channel))

    def execute(self, code):
        """Send a cell and return the request's id."""
        return self.send("execute_request", {"code": code, "silent": False, "store_history": True})

    def wait_for(self, condition, seconds=TIMEOUT):
        """Wait for a message that `condition` is true of, and return it."""
        deadline = time.monotonic() + seconds
        looked_at = 0
        with self._new:
            while True:
                for message in self.received[looked_at:]:
                    if condition(message):
                        return message
                looked_at = len(self.received)
                left = deadline - time.monotonic()
                assert left > 0, f"no such message among {self.kinds()}"
                self._new.wait(left)

    def kinds(self):
        return [(m["msg_type"], m["parent_header"].get("msg_type")) for m in self.received]

    def reply(self, request_id):
        """Wait for the reply to a request and for the kernel to be idle again; return the reply."""

        def is_reply(message):
            same = message["parent_header"].get("msg_id") == request_id
            return same and message["msg_type"].endswith("_reply")

        def is_idle(message):
            same = message["parent_header"].get("msg_id") == request_id
            return same and message["content"].get("execution_state") == "idle"

        self.wait_for(is_idle)
        return self.wait_for(is_reply)

    def output(self, request_id):
        """Wait for the end of a cell and return what it printed."""
        self.reply(request_id)
        return self.printed(request_id)

    def printed(self, request_id):
        """Return what a cell has printed so far."""
        return "".join(
            m["content"]["text"]
            for m in list(self.received)
            if m["msg_type"] == "stream" and m["parent_header"].get("msg_id") == request_id
        )

    def run(self, code):
        """Run `code` and return what it prints."""
        return self.output(self.execute(code))

    def close(self):
        self._socket.close()
        self._socket.shutdown()  # which `close` leaves out where the server has closed it
        self._thread.join(10)


class Listener:
    """A page that listens to the server's events of one kind."""

    def __init__(self, server, schema_id):
        self.heard, self._schema_id = [], schema_id
        self._socket = websocket.create_connection(
            f"ws://127.0.0.1:{server.port}/api/events/subscribe",
            header=[f"Authorization: token {server.token}"],
            timeout=TIMEOUT,
        )
        self._socket.settimeout(NEVER)
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self):
        while True:
            try:
                text = self._socket.recv()
            except (OSError, websocket.WebSocketException):
                return
            event = json.loads(text) if text else {}
            if event.get("schema_id") == self._schema_id:
                self.heard.append(event)

    def close(self):
        self._socket.close()
        self._thread.join(10)
