"""Requests of the user's code (the magics) to the kernel's server: sent as a message on iopub, answered by the agent's `answer`."""

from __future__ import annotations

import threading
import uuid
from typing import Any

#: The type of the message, which is its topic as well: a server recognizes it by that.
USER_REQUEST = "gpuckpt_user_request"
#: How long to wait until a server has received a request, and then until the request is done.
_TAKEN_SECONDS, _DONE_SECONDS = 5.0, 3600.0
_RESUMED = "The kernel was resumed from a snapshot."


class UserRequests:
    """The requests of a kernel's user code that wait for an answer."""

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
                self._kernel.iopub_socket, USER_REQUEST, content, ident=USER_REQUEST.encode()
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
