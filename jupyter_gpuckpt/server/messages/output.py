"""A kernel's iopub messages: sent to every page, and kept on disk until a page has received them.

There is one subscription for each kernel, however many pages it has. A page that connects again gets the messages that it has
missed; a new page gets the running cell's output from its beginning, except for comms, which it asks for itself. What is kept
survives the server (`description`, `load`). Not covered: replies, which the kernel sends to the one page that asked.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ...client.agent_code import PROBE_SESSION
from ...linux.disk_reserve import with_room
from ...wire.message_log import content_of, frame_of, frames, replace
from .begun_cells import begun_cells, messages_of
from .kept_messages import KeptMessages
from .kernel_messages import Header, fields, is_about_comms, read, with_cell

#: The seconds after which a page counts as having received what it was sent. JupyterLab 4.2 opens a connection to the kernel before
#: the notebook's own, and closes it again. Messages that were sent only to that connection would be lost.
SETTLED_SECONDS = 10.0


_log = logging.getLogger(__name__)

#: The bytes that are sent to a page that catches up before the event loop runs other tasks.
_BATCH_BYTES = 1_000_000
_EXECUTE = "execute_request"
#: Messages that are kept even if the file is full: without them a page would wait forever for the end of the cell.
_ALWAYS_KEPT = frozenset({"status", "execute_input", "clear_output"})
#: Requests that change nothing in a kernel, and the one that ends it.
_READ_ONLY = frozenset(
    {
        "comm_info_request",
        "complete_request",
        "debug_request",
        "history_request",
        "inspect_request",
        "is_complete_request",
        "kernel_info_request",
        "shutdown_request",
    }
)
#: A message that libzmq sends to each new subscriber: it is for this server's own socket, not for pages.
_WELCOME = "iopub_welcome"
#: Messages that a kernel publishes without a request when it starts, warnings included.
_UNASKED = frozenset({"status", "stream"})


class Client(Protocol):
    """A receiver of the kernel's messages that shows no user anything (`client_relay.ClientRelay`)."""

    def show(self, parts: list[bytes]) -> None:
        """Send a message that the kernel has just published."""


class Page(Client, Protocol):
    """A page that receives the kernel's messages (`gate.GatedConnection`)."""

    @property
    def client_session(self) -> str:
        """Return the page's own session id, the same when it connects again."""

    def show_again(self, parts: list[bytes]) -> None:
        """Send a message that was published while this page was not connected."""

    def show_text(self, text: str) -> None:
        """Send a note of this server in the middle of the kernel's output."""


class SettlingPages:
    """A set of pages. Each is removed `SETTLED_SECONDS` after it was added; then `done` is called."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._timers: dict[Page, asyncio.TimerHandle] = {}

    def __contains__(self, page: Page) -> bool:
        return page in self._timers

    def add(self, page: Page) -> None:
        """Add a page that has received all earlier output."""
        loop = asyncio.get_running_loop()
        self._timers[page] = loop.call_later(SETTLED_SECONDS, self._end, page)

    def remove(self, page: Page) -> None:
        """Remove a page that disconnects, if it is there."""
        if timer := self._timers.pop(page, None):
            timer.cancel()

    def clear(self) -> None:
        """Remove all pages."""
        for page in list(self._timers):
            self.remove(page)

    def _end(self, page: Page) -> None:
        del self._timers[page]
        self._done()


class KernelOutput:
    """The output of one kernel: sent to its pages, and kept for disconnected ones. Used on the event loop, except `discard`.

    `path`: the file that keeps it, which is created when there is something to keep. `limit_bytes`: the most that the file
    may hold; messages beyond that are counted, and pages are shown how many.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path, self._limit_bytes = path, limit_bytes
        self._kept = KeptMessages(path)
        #: The file for the next server if this one is killed: `description`, and the pages that were connected.
        self._journal = path.with_name(path.name + ".json")
        #: New messages that wait for `add_missed`; None if it is not expected.
        self._waiting: list[list[bytes]] | None = None
        self._closed = False
        #: Whether output of cells is kept.
        self._keeps_cells = False
        #: The number of messages that were kept, or would have been, since the file was empty.
        self._count = 0
        self._left_out = 0
        #: The number of the last message that each disconnected page has received.
        self._seen: dict[str, int] = {}
        #: Cells that were sent to the kernel and have not ended, and those of them that have begun.
        self._asked: set[str] = set()
        self._running: set[str] = set()
        self._pages: dict[Page, None] = {}
        #: Clients that get every message as it comes; what they receive is kept for pages all the same.
        self.clients: list[Client] = []
        self._joining: dict[Page, asyncio.Task[None]] = {}
        self._settling = SettlingPages(self._clear_if_seen)
        #: Cell ids by request, so that a page that did not send a request can place its output.
        self._cells: dict[str, str] = {}
        #: Whether messages wait for `add_beginning`: cells run, and only the kernel has their earlier messages.
        self.lacks_beginning = False
        #: The `input_request`s of the kernel that no page has answered yet, by page.
        self._questions: dict[str, list[bytes]] = {}
        #: The session id of the page that sent the last cell.
        self.asked_by = ""
        #: How often the routing ids of the pages' sockets were renewed (`routing_ids.py`).
        self.renewals = 0
        #: `header.session` of the kernel's own messages.
        self.kernel_session = ""
        #: The number of messages that may be due to a change, since the kernel was started.
        self.changes = 0
        #: Set when a message has come that answers a probe of this server.
        self.probe_seen = asyncio.Event()

    def asked(self, client_session: str, request_id: str, cell_id: str) -> None:
        """Record that a page's cell is sent to the kernel."""
        self.asked_by = client_session
        self._asked.add(request_id)
        if cell_id:
            self._cells[request_id] = cell_id
        self._note()

    def asks(self, client_session: str, parts: list[bytes]) -> None:
        """Record that the kernel requests input from a page and its cell waits for it."""
        self._questions[client_session] = parts

    def answered(self, client_session: str) -> None:
        """Record that the page's input is sent to the kernel."""
        self._questions.pop(client_session, None)

    def question(self, client_session: str) -> list[bytes] | None:
        """Return the kernel's pending `input_request` to the page, while the cell that sent it runs."""
        question = self._questions.get(client_session)
        if question is None:
            return None
        return question if read(question)[1].msg_id in self._running else None

    @property
    def runs_cell(self) -> bool:
        """Return whether a cell that was sent to the kernel has not ended."""
        return bool(self._asked or self._running)

    @property
    def is_in_cell(self) -> bool:
        """Return whether a cell has begun and not ended."""
        return bool(self._running)

    def feed(self, parts: list[bytes]) -> None:
        """Send a message of the kernel to the pages, and keep it if one of them may have missed it.

        A message that cannot be read is sent as it came.
        """
        header, parent, content = read(parts)
        if parent.session == PROBE_SESSION:
            self.probe_seen.set()
            return
        if header.msg_type == _WELCOME:
            return
        if self._waiting is not None:
            self._waiting.append(parts)
            return
        self.kernel_session = header.session or self.kernel_session
        unasked = not parent.msg_type and header.msg_type in _UNASKED
        self.changes += not unasked and parent.msg_type not in _READ_ONLY
        ended = self._follow(header, parent, content)
        if self._running or ended or not self._is_received or self._joining:
            self._keep(header, parent, parts)
        cell = "" if self._is_asked_here(parent) else self._cells.get(parent.msg_id, "")
        for page in list(self._pages):
            if cell:
                _send(page.show_again, with_cell(parts, cell))
            else:
                _send(page.show, parts)
        for client in list(self.clients):
            _send(client.show, parts)
        if ended:
            self._clear_if_seen()

    def join(self, page: Page) -> None:
        """Send a page the messages that it missed, then every message as it comes."""
        self._joining[page] = asyncio.ensure_future(self._catch_up(page))

    def leave(self, page: Page) -> None:
        """Stop sending to a page, which may connect again."""
        joining = self._joining.pop(page, None)
        if joining is not None:
            joining.cancel()
        elif page in self._pages:
            self._settling.remove(page)
            del self._pages[page]
            self._seen[page.client_session] = self._count
            self._note()

    def forget(self) -> None:
        """Reset everything, because a fresh kernel is being started."""
        self.changes = 0
        self._running.clear()
        self._asked.clear()
        self._clear()

    def description(self) -> dict[str, Any]:
        """Return the record from which the next server continues (`load`); it is complete while the kernel publishes nothing."""
        seen = {**self._seen, **{page.client_session: self._count for page in self._pages}}
        return {
            "count": self._count,
            "left_out": self._left_out + self._kept.unwritten,
            "seen": seen,
            "asked": sorted(self._asked),
            "running": sorted(self._running),
            "cells": {key: self._cells[key] for key in self._cells.keys() & self._asked},
            "asked_by": self.asked_by,
            "renewals": self.renewals,
            "questions": {
                client: [b64encode(part).decode() for part in parts]
                for client, parts in self._questions.items()
            },
        }

    def load(self, described: dict[str, Any]) -> None:
        """Continue after the server that suspended the kernel; without its description the file is deleted."""
        self.asked_by = described.get("asked_by", "")
        self.renewals = described.get("renewals", 0)
        self._asked = set(described.get("asked", ()))
        _remove(self._journal)
        for client, parts in described.get("questions", {}).items():
            self._questions[client] = [b64decode(part) for part in parts]
        if not described.get("count") or not self._kept.load():
            self._kept.clear()
            begun = begun_cells(described)
            self._running, self._cells = set(begun.running), dict(begun.cells)
            self.lacks_beginning = bool(begun.running)
            self._waiting = [] if begun.running else None
            return
        self._count, self._left_out = described["count"], described["left_out"]
        self._seen = dict(described["seen"])
        self._running, self._cells = set(described["running"]), dict(described["cells"])
        self._keeps_cells = True

    def follow(self, described: dict[str, Any], *, lacks_beginning: bool = False) -> None:
        """Follow the cells that had not ended when the kernel was described: its process was away and is back.

        `lacks_beginning`: they ran under another server, so their first messages are not here.
        """
        begun = begun_cells(described)
        self._asked, self._running = set(begun.asked), set(begun.running)
        self._cells = dict(begun.cells)
        self.lacks_beginning = lacks_beginning and bool(begun.running)
        self._waiting = [] if self.lacks_beginning else None

    def add_beginning(self, messages: list[list[bytes]]) -> None:
        """Feed the messages of cells that began under another server, out of all that the kernel has, then those received since."""
        missed, begun = messages_of(self._running | self._cells.keys(), messages)
        self.lacks_beginning = False
        self.add_missed(missed, complete=self._running <= begun)

    def recover(self) -> tuple[str, list[str]] | None:
        """Continue after a killed server; return the last message that it kept and the requests that had not ended, or None.

        Messages then wait for `add_missed`. Which of the last messages a page has received is unknown: all count as received.
        """
        described = fields(content_of(self._journal))
        if "seen" not in described:
            self.load({})
            return None
        count, end, last = 0, 0, ""
        with suppress(OSError, ValueError, msgspec.DecodeError):
            for frame, parts in frames(self._path):
                count, last = frame, read(parts)[0].msg_id
                end += len(frame_of(frame, parts))
            os.truncate(self._path, end)  # the server may have been killed in the middle of a frame
        described["count"] = count
        for client in described.pop("joined", ()):
            described["seen"][client] = count
        self.load(described)
        if not (self.runs_cell or self._count):
            return None
        self._waiting, self.lacks_beginning = [], False
        return last, sorted(self._asked | self._running)

    def add_missed(self, missed: list[list[bytes]], *, complete: bool) -> None:
        """Feed the messages that were published while no server ran, then those received since."""
        waiting, self._waiting = self._waiting or [], None
        self._left_out += not complete
        known = {read(parts)[0].msg_id for parts in missed}
        for parts in [*missed, *(new for new in waiting if read(new)[0].msg_id not in known)]:
            self.feed(parts)

    def close(self) -> None:
        """Close the file and drop the pages; kept messages stay for the next server."""
        self._closed = True
        for joining in self._joining.values():
            joining.cancel()
        self._settling.clear()
        self._kept.close()
        self._pages, self._joining = {}, {}

    def discard(self) -> None:
        """Close and delete the file, unless `close` has left it to the next server."""
        if not self._closed:
            self.close()
            self._kept.clear()
            _remove(self._journal)

    def _is_asked_here(self, request: Header) -> bool:
        """Return whether the page that sent a request is connected. It knows the request's cell; other pages need the cell's id."""
        return any(page.client_session == request.session for page in self._pages)

    def _follow(self, header: Header, parent: Header, content: bytes) -> bool:
        """Update the set of running cells; return whether this message ends one."""
        if header.msg_type != "status" or parent.msg_type != _EXECUTE:
            return False
        state = fields(content).get("execution_state")
        if state == "busy":
            self._running.add(parent.msg_id)
            self._note()
        if state != "idle":
            return False
        self._asked.discard(parent.msg_id)
        ended = parent.msg_id in self._running
        self._running.discard(parent.msg_id)
        self._note()
        return ended

    def _note(self) -> None:
        """Write the record for the next server, in case this one is killed while a cell runs."""
        if not (self.runs_cell or self._kept.size):
            return
        joined = [page.client_session for page in self._pages]
        # What is only in memory can be asked from the kernel's agent after a kill.
        described = {**self.description(), "left_out": self._left_out, "joined": joined}
        text = json.dumps(described).encode()
        try:
            with_room(self._journal, lambda: replace(self._journal, text))
        except OSError as error:
            _log.warning(
                "the record of a kernel's output for the next server cannot be written: %s", error
            )

    def _keep(self, header: Header, parent: Header, parts: list[bytes]) -> None:
        self._count += 1
        if cell := self._cells.get(parent.msg_id):
            parts = with_cell(parts, cell)
        size = self._kept.size + sum(map(len, parts))
        if size > self._limit_bytes and header.msg_type not in _ALWAYS_KEPT:
            self._left_out += 1
            return
        self._kept.add(self._count, parts)
        self._keeps_cells |= parent.msg_type == _EXECUTE

    async def _catch_up(self, page: Page) -> None:
        is_new = page.client_session not in self._seen
        seen, sent = self._seen.get(page.client_session, 0), 0
        try:
            for number, parts in self._kept:
                if number > seen and not (is_new and is_about_comms(parts)):
                    _send(page.show_again, parts)
                    sent += sum(map(len, parts))
                # The page may disconnect in the middle of this.
                self._seen[page.client_session] = max(seen, number)
                if sent > _BATCH_BYTES:
                    sent = 0
                    await asyncio.sleep(0)
        except (OSError, ValueError, LookupError) as error:
            _log.warning("kept output of a kernel cannot be read: %s", error)
        finally:
            self._joining.pop(page, None)
        if self._left_out:
            page.show_text(f"[{self._left_out} messages of this kernel's output were not kept]\n")
        # No message can have come since the last frame was read: there was no await.
        self._seen.pop(page.client_session, None)
        self._pages[page] = None
        if is_new and self._keeps_cells:
            self._settling.add(page)
        self._note()
        self._clear_if_seen()

    def _clear_if_seen(self) -> None:
        if self._is_received and not self._running and not self._joining:
            self._clear()

    @property
    def _is_received(self) -> bool:
        """Whether a page is connected that certainly shows what it is sent."""
        return any(page not in self._settling for page in self._pages)

    def _clear(self) -> None:
        self._count = self._left_out = 0
        self._keeps_cells = False
        self._seen.clear()
        self._cells = {key: cell for key, cell in self._cells.items() if key in self._asked}
        self._questions.clear()
        self._kept.clear()
        _remove(self._journal)
        self._note()


def _remove(path: Path) -> None:
    """Remove a file, which may be missing. A file that cannot be removed stays: a message must not be lost for that."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _send(show: Callable[[list[bytes]], None], parts: list[bytes]) -> None:
    """Send a message to a page; log an error, so that other pages still receive it."""
    try:
        show(parts)
    except Exception as error:
        _log.warning("a page was not sent a message of its kernel: %s", error)
