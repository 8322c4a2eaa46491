"""The change of a copy of a template's kernel to a kernel of its own: it gets the values that a start of a kernel would have set."""

from __future__ import annotations

import os
import sys
import uuid
from contextlib import suppress
from typing import Any

from .global_generators import seed_anew

#: The names by which IPython keeps the last inputs and results.
_RESULTS, _INPUTS = ("_", "__", "___"), ("_i", "_ii", "_iii")
_NEVER = "JPY_PARENT_PID"


def become_new(kernel: Any, request: dict[str, Any]) -> None:
    """Take the environment, folder, umask, identity and key of the new kernel; begin with empty inputs and results."""
    _take_environment(request["environment"])
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    _take_arguments(kernel.parent.connection_file, request["connection_file"])
    _take_identity(kernel)
    _empty(kernel.shell)
    seed_anew(request["seed_anew"])
    # Last: what the client receives is signed with the new key, so it sees by that whether all was done.
    kernel.session.key = request["key"].encode()


def _take_environment(environment: dict[str, str]) -> None:
    """Replace the environment, but for what the process has changed itself since its start: ipykernel and libraries do that."""
    launched = _launched()
    own = {name: text for name, text in os.environ.items() if launched.get(name) != text}
    os.environ.clear()
    os.environ.update({**environment, **(own if launched else {}), _NEVER: "1"})


def _launched() -> dict[str, str]:
    """Return the environment with which the process was started."""
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - Python 3.8
            entries = os.fsdecode(file.read()).split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _take_arguments(former: str, new: str) -> None:
    for arguments in (sys.argv, getattr(sys, "orig_argv", [])):
        arguments[:] = [new if one == former else one for one in arguments]


def _take_identity(kernel: Any) -> None:
    """Take ids that no other copy has: messages of two kernels must not be the same for a client."""
    session = kernel.session
    session.session, session.message_count = uuid.uuid4().hex, 0
    session.digest_history = set()
    kernel.ident = str(uuid.uuid4())
    display = kernel.shell.displayhook
    if hasattr(display, "topic"):
        display.topic = kernel._topic("execute_result")


def _empty(shell: Any) -> None:
    """Empty the inputs and results, and begin to count again. The names that the recipe has defined stay."""
    names, history = shell.user_ns, shell.history_manager
    for name in list(names):
        number = name[2:] if name.startswith("_i") else name[1:]
        if name.startswith("_") and number.isdigit():
            del names[name]
    for name in (*_RESULTS, *_INPUTS):
        if name in names:
            names[name] = ""
    for name in _RESULTS:
        setattr(shell.displayhook, name, "")
    shell.execution_count = 1
    history.input_hist_parsed[:] = [""]
    history.input_hist_raw[:] = [""]
    history.output_hist.clear()
    history.dir_hist[:] = [type(one)(os.getcwd()) for one in history.dir_hist[:1]]  # noqa: PTH109 - either type
    for name in ("outputs", "exceptions", "output_hist_reprs"):
        with suppress(AttributeError):
            getattr(history, name).clear()
    notebook = os.environ.get("JPY_SESSION_NAME")
    if notebook:
        names["__session__"] = notebook
    else:
        names.pop("__session__", None)
