"""The clients that are subscribed to the kernel's output, and whether all of them are back after a resume.

A resume cuts all connections. libzmq connects a client again by itself, but it sends the client's subscription only when the client uses
its socket. A client that does nothing between its requests (jupyter_client's blocking client) does that after it has sent the next
request, so what the kernel publishes in the meantime would reach nobody.

Over TCP subscribers are counted. Over unix sockets (Jupyter's transport `ipc`) Linux does not show what a peer has sent, so the first
output for each client that was there before the resume is kept for a moment in any case.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import time
from typing import Any

from .addresses import DELIMITER, PARENT

#: How long the output of a client's first request after a resume is kept while subscribers are missing: a client may be gone for good.
_PATIENCE = 1.0
#: The bytes that libzmq receives from a subscriber before its subscription: the greeting, and READY with the type of the socket.
_HANDSHAKE_BYTES = 91
#: The place of `tcpi_bytes_received` in Linux's struct tcp_info, and the size of what is read of it.
_RECEIVED, _INFO_BYTES = 128, 136
#: The largest part of the time that counting takes while requests come, and the most descriptors that are looked at.
_COUNTING_PART, _MAX_DESCRIPTORS = 0.05, 4096
#: How long after a resume clients that are still missing count no longer, and how many clients are known.
_SETTLED_SECONDS, _MAX_CLIENTS = 10.0, 1000


class Subscribers:
    """The subscribers of the output socket of `app`, ipykernel's application, whose ports may change in a resume."""

    def __init__(self, app: Any) -> None:
        self._app, self._are_counted = app, app.transport == "tcp"
        #: The time of the last resume.
        self._resumed = -float("inf")
        #: The last count, and when it is made again at the earliest.
        self._count, self._next_count = 0, 0.0
        #: How many subscribers are waited for, and whether they are there.
        self._expected, self._complete = 0, True
        #: The sessions of the clients that have sent requests; of those, since the last resume, until when their output is kept.
        self._clients: set[str] = set()
        self._deadlines: dict[str, float] = {}

    def note_request(self, client: str) -> None:
        """Note that the kernel handles a request of a client."""
        now = time.monotonic()
        settled = self._resumed + _SETTLED_SECONDS < now or self._complete
        if self._are_counted and settled and now > self._next_count:
            self._count, after = self._counted_now(), time.monotonic()
            self._next_count = after + (after - now) / _COUNTING_PART
        if client not in self._clients and len(self._clients) < _MAX_CLIENTS:
            if not self._are_counted:
                self._deadlines[client] = now  # it has connected after the resume
            self._clients.add(client)

    def expect_again(self) -> None:
        """Expect as many subscribers as before: the kernel was resumed, which has cut all connections."""
        self._expected, self._complete, self._deadlines = self._count, False, {}
        self._resumed = time.monotonic()

    def forget(self) -> None:
        """Forget all clients: this is a new kernel, to which none has connected yet."""
        self._count, self._next_count, self._complete = 0, 0.0, True
        self._clients, self._deadlines = set(), {}

    def are_missing(self, message: Any) -> bool:
        """Return whether to keep this output because its client may have no subscription after a resume."""
        if self._complete:
            return False
        client, now = _client_of(message), time.monotonic()
        if client not in self._clients or now > self._deadlines.setdefault(client, now + _PATIENCE):
            return False
        self._complete = self._are_counted and self._counted_now() >= self._expected
        return not self._complete

    def _counted_now(self) -> int:
        """Return the number of clients that are subscribed, by the bytes that each has sent."""
        try:
            names = os.listdir("/proc/self/fd")[:_MAX_DESCRIPTORS]  # noqa: PTH208 - objects for paths take ten times as long
        except OSError:
            return 0
        return sum(self._is_subscriber(int(name)) for name in names)

    def _is_subscriber(self, descriptor: int) -> bool:
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                return False
            with socket.socket(fileno=os.dup(descriptor)) as one:
                if (
                    one.family not in (socket.AF_INET, socket.AF_INET6)
                    or one.getsockname()[1] != self._app.iopub_port
                ):
                    return False
                one.getpeername()
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
                return bool(struct.unpack_from("Q", info, _RECEIVED)[0] > _HANDSHAKE_BYTES)
        except (OSError, struct.error):
            return False


def _client_of(message: Any) -> str:
    """Return the session of the client whose request caused a message; empty if there is none."""
    parts = [bytes(getattr(part, "bytes", part)) for part in message]
    try:
        return str(json.loads(parts[parts.index(DELIMITER) + PARENT]).get("session", ""))
    except (ValueError, LookupError, AttributeError):
        return ""
