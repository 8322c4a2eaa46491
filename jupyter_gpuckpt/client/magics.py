"""Magics for front ends without this package's extension: `%load_ext jupyter_gpuckpt`. The kernel's agent passes them to its server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

MISSING = (
    "No Jupyter server with jupyter-gpuckpt has this kernel: install jupyter-gpuckpt where the server runs, and start the kernel"
    " there again."
)


def load(shell: InteractiveShell) -> None:
    """Define the magics in a shell."""
    for name, (verb, text) in _MAGICS.items():
        shell.register_magic_function(_magic(shell, verb, text), "line", name)


def _magic(shell: InteractiveShell, verb: str, text: str) -> Any:  # noqa: ANN401 - IPython calls it
    def magic(line: str) -> None:
        argument = line.strip()
        # An option, such as --help, is no title: it must not suspend the kernel.
        said = text if argument.startswith("-") else _asked(shell, verb, argument)
        print(said)  # noqa: T201 - the answer is the cell's output

    magic.__doc__ = text
    return magic


def _asked(shell: InteractiveShell, verb: str, argument: str) -> str:
    handlers = getattr(getattr(shell, "kernel", None), "control_handlers", {})
    agent = getattr(handlers.get("gpuckpt_request"), "__self__", None)
    requests = getattr(agent, "user_requests", None)
    answer = requests.ask(verb, argument) if requests is not None else None
    return answer or MISSING


#: The request that each magic sends, and its help text, which `%name?` shows; by the name of the magic.
_MAGICS = {
    "save_session": ("save", "Save this kernel, which runs on: `%save_session [TITLE]`."),
    "sessions": ("list", "List the kernels of this server, and the snapshots of this one."),
    "suspend": ("suspend", "Suspend this kernel when its cell has ended: `%suspend [TITLE]`."),
    "branch": (
        "branch",
        "Start a second kernel beside this one, from its state now or from a snapshot: `%branch [SNAPSHOT]`.",
    ),
}
