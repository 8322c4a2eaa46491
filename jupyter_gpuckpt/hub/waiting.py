"""The suspended kernels that wait for a user's next server, as the hub stores and shows them."""

from __future__ import annotations

from html import escape

import msgspec

from ..plurals import age, size

#: The most kernels that are named in the hub's pages and its database.
NAMED = 20
#: The most notebooks that are named in a message.
_IN_MESSAGE = 5
#: The field of the form, and its value for a start without the suspended sessions.
FIELD, CLEAN = "gpuckpt_start", "clean"


class WaitingKernel(msgspec.Struct, frozen=True):
    """A suspended kernel. `name`: its notebook; `size_bytes`: RAM and GPU memory; `since`: seconds since the epoch."""

    name: str
    size_bytes: int = 0
    gpu_bytes: int = 0
    since: float = 0.0


class Waiting(msgspec.Struct, frozen=True):
    """The number of suspended kernels, and the first of them."""

    count: int = 0
    kernels: list[WaitingKernel] = []

    def and_then(self, more: list[WaitingKernel]) -> Waiting:
        """Return these kernels and more."""
        return Waiting(self.count + len(more), [*self.kernels, *more][:NAMED])

    def message(self) -> str:
        """Return a text like `3 suspended sessions are waiting: a.ipynb, b.ipynb, c.ipynb`."""
        names = [kernel.name for kernel in self.kernels[:_IN_MESSAGE]]
        shown = ", ".join(names) + ", ..." * (self.count > len(names))
        sessions = "session is" if self.count == 1 else "sessions are"
        return f"{self.count} suspended {sessions} waiting: {shown}"

    def form(self, now: float) -> str:
        """Return the part of a form that lists the sessions and asks how to start, as HTML for JupyterHub's page."""
        rows = "".join(map(_row, self.kernels, [now] * len(self.kernels)))
        more = self.count - len(self.kernels)
        rest = f"<p>And {more} more.</p>" if more else ""
        return (
            '<fieldset><legend>Suspended sessions</legend><table class="table"><thead><tr><th>Notebook</th><th>Memory</th>'
            f"<th>GPU memory</th><th>Suspended</th></tr></thead><tbody>{rows}</tbody></table>{rest}"
            + _choice(
                "resume",
                "Resume",
                "The sessions are listed again. A cell resumes its kernel.",
                checked=True,
            )
            + _choice(
                CLEAN, "Clean start", "The sessions stay suspended until a start that resumes them."
            )
            + "</fieldset>"
        )


def _row(kernel: WaitingKernel, now: float) -> str:
    cells = [
        escape(kernel.name),
        size(kernel.size_bytes) if kernel.size_bytes else "",
        size(kernel.gpu_bytes) if kernel.gpu_bytes else "",
        age(now - kernel.since) if kernel.since else "",
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _choice(value: str, label: str, explanation: str, *, checked: bool = False) -> str:
    """Return a radio button with its label."""
    mark = " checked" * checked
    return (
        f'<div class="form-check"><input class="form-check-input" type="radio" name="{FIELD}" id="{FIELD}-{value}"'
        f' value="{value}"{mark}><label class="form-check-label" for="{FIELD}-{value}"><b>{label}.</b> {explanation}</label></div>'
    )
