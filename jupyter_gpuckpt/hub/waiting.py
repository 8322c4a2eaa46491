"""The suspended kernels that wait for a user's next server, as the hub's pages show them."""

from __future__ import annotations

from html import escape

from ..wire.hub_records import Waiting, WaitingKernel
from ..wire.plurals import age, size

#: The most notebooks that are named in a message.
_IN_MESSAGE = 5
#: The field of the form, and its value for a start without the suspended sessions.
FIELD, CLEAN = "gpuckpt_start", "clean"


def message(waiting: Waiting) -> str:
    """Return a text like `3 suspended sessions are waiting: a.ipynb, b.ipynb, c.ipynb`."""
    names = [kernel.name for kernel in waiting.kernels[:_IN_MESSAGE]]
    shown = ", ".join(names) + ", ..." * (waiting.count > len(names))
    sessions = "session is" if waiting.count == 1 else "sessions are"
    return f"{waiting.count} suspended {sessions} waiting: {shown}"


def form(waiting: Waiting, now: float) -> str:
    """Return the part of a form that lists the sessions and asks how to start, as HTML for JupyterHub's page."""
    rows = "".join(_row(kernel, now) for kernel in waiting.kernels)
    more = waiting.count - len(waiting.kernels)
    rest = f"<p>And {more} more.</p>" if more else ""
    return (
        '<fieldset><legend>Suspended sessions</legend><table class="table"><thead><tr><th>Notebook</th><th>Memory</th>'
        f"<th>GPU memory</th><th>Suspended</th></tr></thead><tbody>{rows}</tbody></table>{rest}"
        + _choice(
            "list", "List them", "Run a cell in a notebook to resume its kernel.", checked=True
        )
        + _choice(
            CLEAN,
            "Clean start",
            "They stay suspended until you start the server with <b>List them</b>.",
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
