"""The output of code that a program runs in a kernel: collected from the kernel's messages within bounds, and shown in parts."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from typing import Any, Literal

#: The most characters of one run's output that are kept, and that one answer shows: the beginning and the end.
_KEPT, _BEGIN, _END = 1_000_000, 1_500, 2_500
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: What a carriage return overwrites in a terminal: progress bars.
_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")

Status = Literal["running", "ok", "error", "timed out", "not ended", "kernel died"]


class CellOutput:
    """The output of one run. `status`: how it ended; `not ended`: the code did not react to the interrupt."""

    def __init__(self) -> None:
        self.output_id = uuid.uuid4().hex[:12]
        self.status: Status = "running"
        self.error = ""
        #: Set when the kernel has told that it is done with the run.
        self.is_idle = False
        self._began, self._seconds = time.monotonic(), 0.0
        self._text, self._left_out = "", 0
        self._timed_out = False

    def feed(self, kind: str, content: Mapping[str, Any]) -> None:
        """Add what one of the kernel's messages about the run tells."""
        if kind == "stream":
            self._add(str(content.get("text", "")))
        elif kind in {"display_data", "execute_result"}:
            self._add_data(content.get("data") or {})
        elif kind == "error":
            self._fail(content)
        elif kind == "status" and content.get("execution_state") == "idle":
            self.is_idle = True
        elif kind == "execute_reply" and self.status == "running":
            if content.get("status") == "error":
                self._fail(content)
            self.end("error" if content.get("status") != "ok" else "ok")

    def time_out(self) -> None:
        """Note that the code is interrupted because its time is over: it has then timed out, however it ends."""
        self._timed_out = True

    def end(self, status: Status) -> None:
        """Set how the run ended, unless that is known."""
        if self.status == "running":
            ended = self._timed_out and status in {"ok", "error"}
            self.status = "timed out" if ended else status
            self._seconds = time.monotonic() - self._began

    def part(self, offset: int, length: int) -> dict[str, Any]:
        """Return a part of the output."""
        text = self._clean
        found = text[offset : offset + length]
        return {
            "output": found,
            "offset": offset,
            "characters": len(text),
            "left": max(0, len(text) - offset - len(found)),
        }

    def shown(self) -> dict[str, Any]:
        """Return the outcome of the run with the beginning and the end of its output."""
        text, found = self._clean, dict[str, Any](status=self.status)
        if self.error:
            found["error"] = self.error
        found["output"] = text
        found["seconds"] = round(self._seconds, 3)
        middle = len(text) - _BEGIN - _END
        if middle > 0:
            told = f"\n[{middle} characters left out: read_output shows them]\n"
            found["output"] = text[:_BEGIN] + told + text[-_END:]
            found |= {"output_id": self.output_id, "characters": len(text)}
        if self._left_out:
            found["lost_characters"] = self._left_out
        return found

    @property
    def _clean(self) -> str:
        return _OVERWRITTEN.sub("", _ESCAPES.sub("", self._text))

    def _add(self, text: str) -> None:
        room = max(0, _KEPT - len(self._text))
        self._text += text[:room]
        self._left_out += max(0, len(text) - room)

    def _add_data(self, data: Mapping[str, Any]) -> None:
        text = data.get("text/plain")
        others = [f"{kind}, {len(str(one))} characters" for kind, one in data.items()]
        self._add(f"{text}\n" if isinstance(text, str) else f"[{'; '.join(others)}]\n")

    def _fail(self, content: Mapping[str, Any]) -> None:
        if self.error:
            return
        self.error = f"{content.get('ename', 'Error')}: {content.get('evalue', '')}"[:_BEGIN]
        lines = content.get("traceback")
        self._add("\n".join(map(str, lines)) + "\n" if isinstance(lines, list) else "")
