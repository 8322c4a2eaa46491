"""One kernel: what its journal says is passed on to its editor, and requests to it wait on disk until it has answered them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import zmq

from ..client.agent_code import PROBE_SESSION
from ..kernel_agent.message_journal import Journal
from .editors import Editor
from .journal_tail import JournalTail, messages_between
from .kept_records import KeptFolder, KeptRecord, Position
from .kernel_sockets import IDENTITY, KernelSockets
from .signed_messages import Message, unlike_before
from .waiting_requests import WaitingRequests

if TYPE_CHECKING:
    from .engine_kernels import Reached

#: Output that a notebook shows.
OUTPUT = frozenset(
    {"stream", "display_data", "execute_result", "error", "update_display_data", "clear_output"}
)
#: Messages that an editor gets although their request was not its own: those of widgets.
_FOR_ALL = frozenset({"comm_open", "comm_msg", "comm_close"})
#: How many messages are passed on before other kernels have their turn.
_AT_ONCE = 200
#: A cell that prints much: so many messages with so short gaps; then those of a moment are passed on together.
_STREAK, _GAP_SECONDS, _TOGETHER_SECONDS = 20, 0.005, 0.004
#: How long a reply is kept for a client that is not connected, and how often it is tried.
_PATIENCE_SECONDS, _PAUSE = 5.0, 0.01
#: Cells that were answered so shortly before the editor went count as missed: it may not have received, or saved, their output.
_DOUBTFUL_SECONDS = 1.0
#: The size at which the journal is cut, and how many messages are cut off at least.
_CUT_BYTES, _CUT_MESSAGES = 8 << 20, 500


class RelayedKernel:
    """A kernel, with or without an editor. All methods are called in the event loop's thread.

    `wake` is called when a request comes for a kernel that cannot receive it, `later` calls a function after some seconds.
    """

    def __init__(
        self,
        record: KeptRecord,
        folder: KeptFolder,
        *,
        wake: Callable[[RelayedKernel], None],
        later: Callable[[float, Callable[[], None]], None],
        cut: Callable[[RelayedKernel, int], None],
    ) -> None:
        self.record, self.folder = record, folder
        self._wake, self._later, self._cut = wake, later, cut
        folder.make()
        self._position = Position(folder.folder / "position")
        self._tail = JournalTail(folder.journal, self._position.number)
        self.requests = WaitingRequests(folder.requests)
        self.editor: Editor | None = None
        #: The last editor: a second start by the same process may be a restart.
        self.last_editor: Editor | None = None
        self.sockets: KernelSockets | None = None
        self.connection: dict[str, Any] = {}
        #: Whether it can receive requests; whether it is being started, resumed or suspended; and whether it has ended.
        self.is_reached = self.is_changing = self.has_ended = False
        self.poll: Callable[[], int | None] | None = None
        self.exit_path = ""
        #: The number by which the changes of the journal's folder are watched.
        self.watch = 0
        #: The journal of a kernel that cannot write one.
        self._own_journal: Journal | None = None
        #: Of each request without a reply, and of those answered lately, the number of its first message.
        self._first: dict[str, int] = {}
        self._answered: deque[tuple[float, int]] = deque(maxlen=1000)
        self._question: Message | None = None
        self._refused_at, self._cut_at = 0.0, 0
        self._is_retrying = False
        self._changed_at, self._streak = 0.0, 0
        self.idle_since = time.monotonic()
        #: Whether the editor that it had when the last relay was killed may come back; until then its messages are for that editor.
        self.is_awaited = not record.left_at and bool(self._tail.last)
        if self.is_awaited and self.requests:
            self._find_beginnings()

    @property
    def is_idle(self) -> bool:
        """Return whether it has answered all requests."""
        return not self.requests

    def write(self) -> None:
        """Write the record."""
        self.folder.write(self.record)

    def note_identity(self, identity: list[int]) -> None:
        """Note which file its notebook is: some editors replace the file when they save."""
        if identity and identity != self.record.identity:
            self.record.identity = identity
            self.write()

    # ---- the kernel's side -------------------------------------------------------------------------------------------

    def reached(self, context: zmq.Context[Any], reached: Reached) -> None:
        """Connect to the kernel, which runs and answers; send again what it has not answered."""
        self.unreachable()
        self.connection, self.poll = reached.connection, reached.poll or self.poll
        self.exit_path = reached.exit_path
        self.record.has_agent = reached.has_agent
        self.record.plain_reason = reached.plain_reason
        self.write()
        if reached.has_agent:
            if self._tail.last > reached.resumed_at > 0:
                # It is that of an older snapshot; what it has sent since the resume is new.
                self._go_to(reached.resumed_at)
        elif self._own_journal is None:
            self._own_journal = Journal(self._tail.last)
            self._own_journal.opened({"path": str(self.folder.journal), "received": 0})
        self.sockets = KernelSockets(context, reached.connection, writes_journal=reached.has_agent)
        self.is_reached = True
        for message in self.requests:
            # A kernel without an agent would run a request twice.
            if reached.has_agent or message.header.msg_id not in self._first:
                self.sockets.send("shell", message)

    def unreachable(self) -> None:
        """Disconnect from the kernel."""
        self.is_reached = False
        if self.sockets is not None:
            self.sockets.close()
            self.sockets = None

    def close(self) -> None:
        """Close everything."""
        self.unreachable()
        self._tail.close()
        self._position.close()
        self.requests.close()

    def _go_to(self, number: int) -> None:
        self._tail.go_to(number)
        self._position.set(number)
        self._first.clear()

    def received(self, channel: str, message: Message) -> None:
        """Handle a message that came by a socket."""
        if channel == "control":
            if self.editor is not None:
                self.editor.sockets.send("control", message.idents, message.parts)
        elif self._own_journal is not None:
            frames = [*message.idents, b"<IDS|MSG>", b"", *message.parts]
            self._own_journal.add(channel.encode(), frames)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def forward(self, channel: str, message: Message) -> None:
        """Pass a request of the editor on."""
        if channel == "shell":
            self.requests.add(message.header.msg_id, message)
            if self.editor is not None and self._question is not None:
                self._ask_again(self.editor, message)
        if channel == "stdin":
            self._question = None
        if self.is_reached and self.sockets is not None:
            self.sockets.send(channel, message)
        elif channel == "shell":
            self._wake(self)

    def _ask_again(self, editor: Editor, message: Message) -> None:
        """Ask the next person what a cell has asked the one before."""
        if self._question is not None and message.content.get("allow_stdin"):
            parts = self._question.parts
            editor.sockets.send("stdin", message.idents, [parts[0], message.parts[0], *parts[2:]])

    def fail_requests(self, text: str) -> None:
        """Answer all requests with an error: the kernel cannot be reached."""
        for message in self.requests:
            self.requests.remove(message.header.msg_id)
            if self.editor is None:
                continue
            error = {"ename": "KernelUnreachable", "evalue": text, "traceback": [text]}
            if message.header.msg_type == "execute_request":
                self.editor.publish("error", error, message.parts[0])
            content = {"status": "error", "execution_count": 0, **error}
            self.editor.answer("shell", message, content)

    # ---- the editor --------------------------------------------------------------------------------------------------

    def attach(self, editor: Editor) -> None:
        """Give the kernel to an editor."""
        if self.is_awaited:
            self.give_up_waiting()
        self.editor = self.last_editor = editor
        editor.kernel = self
        self.record.left_at = 0.0
        self.write()
        editor.tell(session=self.record.session_id)
        self.deliver()

    def attach_again(self, editor: Editor) -> None:
        """Give the kernel to an editor that had it when the last relay was killed; its requests are those without a reply."""
        for message in self.requests:
            editor.note_request(message, by_person=_is_by_person(message))
        editor.has_run_cell, self.is_awaited = True, False
        self.record.missed_first = 0 if not self.record.missed_last else self.record.missed_first
        self.attach(editor)
        self._repeat_answers(editor)

    def _repeat_answers(self, editor: Editor) -> None:
        """Send the last replies and states again: the killed relay may have had them in memory only. Clients ignore a second one."""
        last = self._tail.last
        for _, channel, message in messages_between(self.folder.journal, last - 20, last):
            if channel not in {"shell", "iopub"} or message.parent.session == PROBE_SESSION:
                continue
            header, parent, metadata, *rest = message.parts
            again = [header, parent, unlike_before(metadata), *rest]
            if channel == "shell":
                editor.sockets.send("shell", _without_identity(message.idents), again)
            elif message.header.msg_type == "status":
                editor.sockets.send("iopub", message.idents, again)

    def give_up_waiting(self) -> None:
        """Keep the kernel for another editor, because the one that it had is not coming back."""
        self.is_awaited = False
        self._note_missed(time.monotonic())
        self.record.left_at = time.time()
        self.write()
        self.deliver()

    def _find_beginnings(self) -> None:
        """Find the first message of each request without a reply."""
        for number, _, message in messages_between(self.folder.journal, 1, self._tail.last):
            if message.parent.msg_id in self.requests:
                self._first.setdefault(message.parent.msg_id, number)

    def detach(self) -> None:
        """Keep the kernel without an editor. What its cells send from now on, and what may not have arrived, is missed."""
        if self.editor is None:
            return
        # What was sent to an editor that was killed is lost, also if its program ends later.
        gone_at = self.editor.sockets.left_at or time.monotonic()
        self.editor.kernel = None
        self.editor = None
        self._note_missed(gone_at)
        self.record.left_at = time.time()
        self.write()
        self.deliver()

    def _note_missed(self, gone_at: float) -> None:
        record = self.record
        doubtful = [first for at, first in self._answered if at > gone_at - _DOUBTFUL_SECONDS]
        first = min([self._tail.last + 1, *self._first.values(), *doubtful])
        if record.missed_last or not record.missed_first:
            record.missed_first, record.missed_last = first, 0

    # ---- messages ----------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Pass new messages on: at once, or those of a few milliseconds together while many come."""
        now = time.monotonic()
        self._streak = self._streak + 1 if now - self._changed_at < _GAP_SECONDS else 0
        self._changed_at = now
        if self._streak < _STREAK:
            self.deliver()
        else:
            self._retry(_TOGETHER_SECONDS)

    def deliver(self) -> None:
        """Pass the new messages of the journal on."""
        for _ in range(0 if self.is_awaited else _AT_ONCE):
            waiting = self._tail.peek()
            if waiting is None:
                self._cut_journal()
                return
            number, channel, message = waiting
            if not self._pass_on(number, channel, message):
                self._retry(_PAUSE)
                return
            self._tail.take()
            self._position.set(number)
        if not self.is_awaited:
            self._retry(0.0)

    def _retry(self, seconds: float) -> None:
        if not self._is_retrying:
            self._is_retrying = True
            self._later(seconds, self._deliver_again)

    def _deliver_again(self) -> None:
        self._is_retrying = False
        if not self.has_ended:
            self.deliver()

    def _pass_on(self, number: int, channel: str, message: Message) -> bool:
        """Handle one message; return False if it has to wait for a client."""
        parent = message.parent
        if parent.session == PROBE_SESSION:
            return True
        request_id, editor = parent.msg_id, self.editor
        if editor is not None and not editor.has_sent(request_id):
            editor = None
        if channel != "iopub":
            return self._answer(editor, channel, message)
        if request_id in self.requests:
            self._first.setdefault(request_id, number)
        kind = message.header.msg_type
        if editor is None:
            if kind in _FOR_ALL and self.editor is not None:
                return self._sent(self.editor, "iopub", message.idents, message)
            return True
        if not self._sent(editor, "iopub", message.idents, message):
            return False
        if kind == "execute_input" and editor.was_by_person(request_id):
            self._tell(editor, number, message.parts[1])
        return True

    def _answer(self, editor: Editor | None, channel: str, message: Message) -> bool:
        """Pass a reply or a question of a cell on; return False if it has to wait for the client."""
        idents = _without_identity(message.idents)
        if channel == "stdin":
            self._question = message
            return editor is None or self._sent(editor, channel, idents, message)
        if editor is not None and not self._sent(editor, channel, idents, message):
            return False
        self._note_reply(message.parent.msg_id)
        return True

    def _sent(
        self, editor: Editor, channel: str, idents: Sequence[bytes], message: Message
    ) -> bool:
        """Send a message; return False if it has to wait. A client that is away for long gets it no more."""
        is_sent = editor.sockets.send(channel, idents, message.parts)
        if is_sent:
            self._refused_at = 0.0
            return True
        now = time.monotonic()
        self._refused_at = self._refused_at or now
        # Output waits for as long as a client reads: the journal has room.
        return channel != "iopub" and now - self._refused_at > _PATIENCE_SECONDS

    def _note_reply(self, request_id: str) -> None:
        if self.requests.remove(request_id) is not None:
            self.idle_since = time.monotonic()
        if (first := self._first.pop(request_id, None)) is not None:
            self._answered.append((time.monotonic(), first))

    def _tell(self, editor: Editor, number: int, parent: bytes) -> None:
        """Show what the person should know, as output of the cell that just begins."""
        lines, editor.notices = editor.notices, []
        record = self.record
        if record.missed_first and not record.missed_last:
            record.missed_last = number - 1
            self.write()
            if missed := self.missed(editor):
                lines.append(_summary(missed))
        if lines:
            editor.print("".join(f"[gpuckpt] {line}\n" for line in lines), parent, "stderr")

    def missed(self, editor: Editor) -> list[Message]:
        """Return the output that no editor has shown, with the cells that it belongs to."""
        record = self.record
        if not record.missed_first:
            return []
        last = record.missed_last or self._tail.last
        found = [
            message
            for _, channel, message in messages_between(
                self.folder.journal, record.missed_first, last
            )
            if channel == "iopub"
            and message.header.msg_type in OUTPUT | {"execute_input"}
            and not editor.has_sent(message.parent.msg_id)
            and message.parent.session != PROBE_SESSION
        ]
        shown = {one.parent.msg_id for one in found if one.header.msg_type in OUTPUT}
        return [one for one in found if one.parent.msg_id in shown]

    def _cut_journal(self) -> None:
        """Let the kernel remove what every client has, once the journal is large."""
        if not self.record.has_agent or not self.is_reached or self.is_changing:
            return
        try:
            if self.folder.journal.stat().st_size < _CUT_BYTES:
                return
        except OSError:
            return
        needed = [self._tail.last + 1, *self._first.values()]
        if self.record.missed_first:
            needed.append(self.record.missed_first)
        received = min(needed) - 1
        if received >= self._cut_at + _CUT_MESSAGES:
            self._cut_at = received
            self._cut(self, received)


def _without_identity(idents: list[bytes]) -> list[bytes]:
    return idents[1:] if idents and idents[0] == IDENTITY else idents


def _is_by_person(message: Message) -> bool:
    return is_by_person(message.header.msg_type, message.content)


def is_by_person(kind: str, content: dict[str, Any]) -> bool:
    """Return whether a request is a cell that a person runs, as opposed to an editor's own code."""
    return (
        kind == "execute_request"
        and bool(content.get("store_history", True))
        and not content.get("silent")
        and bool(str(content.get("code", "")).strip())
    )


def _summary(missed: list[Message]) -> str:
    cells = len({message.parent.msg_id for message in missed})
    lines = sum(
        str(message.content.get("text", "")).count("\n")
        for message in missed
        if message.header.msg_type == "stream"
    )
    outputs = sum(
        message.header.msg_type in OUTPUT and message.header.msg_type != "stream"
        for message in missed
    )
    parts = [f"{lines} line{'s' * (lines != 1)}"] if lines else []
    parts += [f"{outputs} other output{'s' * (outputs != 1)}"] if outputs else []
    of = "A cell" if cells == 1 else f"{cells} cells"
    of += " gave output that this editor may not have"
    return f"{of} ({', '.join(parts) or 'a part of a line'}). `%gpuckpt output` shows it."
