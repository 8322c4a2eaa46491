"""The commands of a cell that the relay answers itself: `%gpuckpt output` and `%gpuckpt resume`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ..wire import decoding
from .editors import Editor
from .signed_messages import Message

if TYPE_CHECKING:
    from .relayed_kernels import RelayedKernel


class Keeper(Protocol):
    """The relay, as the commands use it."""

    def kept(self) -> list[RelayedKernel]:
        """Return the kernels that no editor has."""

    def give(self, editor: Editor, kernel: RelayedKernel) -> None:
        """Give an editor a kernel that was kept, in place of the one that it has."""


#: The reply to a cell that was executed.
DONE = {"status": "ok", "execution_count": 0, "user_expressions": {}, "payload": []}
_VERBS = ("output", "resume")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def is_command(code: str) -> bool:
    """Return whether a cell is nothing but a command that the relay answers."""
    words = code.split()
    return (
        len(words) >= 2
        and words[0] == "%gpuckpt"
        and words[1] in _VERBS
        and "\n" not in code.strip()
    )


def run(relay: Keeper, editor: Editor, request: Message, code: str) -> None:
    """Answer a cell that is a command."""
    _, verb, *words = code.split()
    parent = request.parts[0]
    editor.has_run_cell = editor.has_run_cell or verb == "output"
    editor.publish("status", {"execution_state": "busy"}, parent)
    editor.publish("execute_input", {"code": code, "execution_count": 0}, parent)
    if verb == "output":
        _show_output(editor, parent)
    else:
        editor.print(_resumed(relay, editor, " ".join(words)) + "\n", parent)
    editor.reply("shell", request, DONE)
    editor.publish("status", {"execution_state": "idle"}, parent)


def _show_output(editor: Editor, parent: bytes) -> None:
    kernel = editor.kernel
    missed = kernel.missed(editor) if kernel is not None else []
    if not missed:
        editor.print("No output was missed.\n", parent)
    for message in missed:
        kind, content = message.header.msg_type, message.content
        if kind == "execute_input":
            first = (str(content.get("code", "")).strip().splitlines() or [""])[0]
            editor.print(f"[{content.get('execution_count', ' ')}] {first}\n", parent, "stderr")
            continue
        if kind == "execute_result":
            kind = "display_data"
            content = {name: content.get(name, {}) for name in ("data", "metadata")}
        if kind in {"stream", "display_data", "error"}:
            header = decoding.from_json(message.parts[0], dict[str, Any])
            header["msg_type"] = kind
            parts = [
                msgspec.json.encode(header),
                parent,
                message.parts[2],
                msgspec.json.encode(content),
                *message.parts[4:],
            ]
            editor.sockets.send("iopub", [kind.encode()], parts)


def _resumed(relay: Keeper, editor: Editor, wanted: str) -> str:
    """Give the editor a kernel that is kept; return what happened, or which there are."""
    kept = [one for one in relay.kept() if one is not editor.kernel]
    kept.sort(key=lambda one: one.record.left_at, reverse=True)
    if not kept:
        return "No kernel is kept."
    found = [one for one in kept if _is_named(one, wanted)]
    if len(found) != 1:
        lines = [f"  {one.record.session_id[:6]}  {_described(one)}" for one in found or kept]
        head = "Several kernels are kept" if found else f"No kernel that is kept is named {wanted}"
        return f"{head}. `%gpuckpt resume ID` brings one back:\n" + "\n".join(lines)
    described = _described(found[0])
    relay.give(editor, found[0])
    editor.has_run_cell = True
    return f"This is now the kernel {described}."


def _is_named(kernel: RelayedKernel, wanted: str) -> bool:
    record = kernel.record
    return (
        not wanted or record.session_id.startswith(wanted) or wanted in (record.path, record.name)
    )


def _described(kernel: RelayedKernel) -> str:
    record = kernel.record
    seconds = max(0.0, time.time() - record.left_at)
    for unit, name in ((_DAY, "days"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit:
            age = f"{int(seconds // unit)} {name}"
            break
    else:
        age = f"{int(seconds)} s"
    why = (
        "before the restart"
        if record.is_before_restart
        else "that was shut down"
        if record.ends_at
        else ""
    )
    where: Any = record.path or f"{record.kernel_name} in {record.folder}"
    return " ".join(part for part in ("of", where, why, f"(left {age} ago)") if part)
