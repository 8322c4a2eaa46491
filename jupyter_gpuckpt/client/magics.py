"""The magic `%gpuckpt` for front ends without this package's extension: `%load_ext jupyter_gpuckpt`.

The kernel's agent passes its requests to the kernel's server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

MISSING = (
    "No Jupyter server with jupyter-gpuckpt has this kernel: install jupyter-gpuckpt where the server runs, and start the kernel"
    " there again."
)
#: What each verb takes and does.
_VERBS = {
    "save": (" [TITLE]", "save this kernel, which runs on"),
    "suspend": (
        " [TITLE]",
        "suspend this kernel when its cell has ended; the next cell of its page resumes it",
    ),
    "branch": (
        " [SNAPSHOT]",
        "start a second kernel beside this one, from its state now or from a snapshot",
    ),
    "sessions": ("", "list the kernels of this server, and the snapshots of this one"),
}
HELP = "\n".join(
    [
        "%gpuckpt VERB",
        *(f"  {verb + takes:<20} {does}" for verb, (takes, does) in _VERBS.items()),
        "`%gpuckpt VERB --help` shows one of them.",
    ]
)


def load(shell: InteractiveShell) -> None:
    """Define the magic in a shell."""
    shell.register_magic_function(_magic(shell), "line", "gpuckpt")


def _magic(shell: InteractiveShell) -> Any:  # noqa: ANN401 - IPython calls it
    def magic(line: str) -> None:
        print(_said(shell, line))  # noqa: T201 - the answer is the cell's output

    magic.__doc__ = HELP
    return magic


def _said(shell: InteractiveShell, line: str) -> str:
    """Do what a line asks for and return the answer. A line with an option, such as --help, does nothing but show help."""
    verb, *words = line.split() or [""]
    if not verb or verb.startswith("-"):
        return HELP
    if verb not in _VERBS:
        return f"There is no `%gpuckpt {verb}`.\n{HELP}"
    takes, does = _VERBS[verb]
    # An option is no title; a dash within one is.
    asks_for_help = {"-h", "--help"} & {*words} or (words and words[0].startswith("-"))
    if asks_for_help or (words and not takes):
        return f"%gpuckpt {verb}{takes}: {does}"
    handlers = getattr(getattr(shell, "kernel", None), "control_handlers", {})
    agent = getattr(handlers.get("gpuckpt_request"), "__self__", None)
    requests = getattr(agent, "user_requests", None)
    answer = requests.ask(verb, " ".join(words)) if requests is not None else None
    return answer or MISSING
