"""Answers in a kernel's name to requests that the kernel itself cannot answer now: what pages and clients of this server get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..jupyter_internals import known_info

if TYPE_CHECKING:
    from .served_kernel import ServedKernel

#: Requests caused by a user's action, not sent by a program on its own: they resume a suspended kernel.
WAKING = frozenset({"execute_request", "input_reply"})
#: Replies to requests that pages send while a user types or inspects, if there is no kernel.
_EMPTY_REPLIES: dict[str, tuple[str, dict[str, Any]]] = {
    "complete_request": (
        "complete_reply",
        {"status": "ok", "matches": [], "cursor_start": 0, "cursor_end": 0, "metadata": {}},
    ),
    "inspect_request": (
        "inspect_reply",
        {"status": "ok", "found": False, "data": {}, "metadata": {}},
    ),
    "is_complete_request": ("is_complete_reply", {"status": "unknown"}),
}
#: The answer to other requests that pages and extensions send by themselves.
_SUSPENDED = "The kernel is suspended. Resume it, or run a cell, then try again."


class Request(NamedTuple):
    """A message of a page or client. `content` is empty where nothing uses it; `raw` is the message as it came."""

    channel: str
    header: dict[str, Any]
    content: dict[str, Any]
    raw: Any
    metadata: dict[str, Any] = {}  # noqa: RUF012 - never changed

    @property
    def kind(self) -> str:
        """Return the message's type; "None" if it has none."""
        return str(self.header.get("msg_type"))


def answer(
    served: ServedKernel, manager: Any, kind: str, content: dict[str, Any]
) -> tuple[str, dict[str, Any]] | None:
    """Return the reply, as kind and content, to a request in the kernel's name; None if the request must wait for the kernel."""
    if kind == "kernel_info_request" and (info := known_info(manager)):
        return "kernel_info_reply", info
    if kind == "comm_info_request" and served.absent:
        return "comm_info_reply", served.comms.listed(content.get("target_name"))
    if kind in _EMPTY_REPLIES and served.absent:
        return _EMPTY_REPLIES[kind]
    if served.is_left_alone and kind.endswith("_request") and kind not in WAKING:
        # Nothing would answer for as long as nobody resumes it.
        return refusal(kind, "KernelSuspended", _SUSPENDED)
    return None


def failure(name: str, text: str) -> dict[str, Any]:
    """Return the content of an error."""
    return {"ename": name, "evalue": text, "traceback": [text]}


def refusal(kind: str, name: str, text: str) -> tuple[str, dict[str, Any]]:
    """Return the reply to a request that fails."""
    # As of a `debug_request` and, because jupyter-resource-usage shows it, of a `usage_request`.
    more = {"type": "response", "success": False, "message": text, "reason": text.removesuffix(".")}
    reply = {"status": "error", "execution_count": 0, **failure(name, text), **more}
    return kind.replace("_request", "_reply"), reply
