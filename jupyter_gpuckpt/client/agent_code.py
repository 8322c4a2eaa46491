"""The code that installs the agent (`kernel_agent/`) in a kernel, and the type of the agent's messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any

#: The message that a kernel's agent understands (`kernel_agent/agent.py`).
AGENT_REQUEST = "gpuckpt_request"
#: `header.session` of this package's own requests to kernels; it distinguishes their echoes from the messages of clients.
PROBE_SESSION = "gpuckpt-probe"
#: The `implementation` of IPython kernels.
IMPLEMENTATION = "ipython"
#: The modules that run in the kernel (`kernel_agent/`), each after those that it imports.
_MODULES = (
    "addresses",
    "control_calls",
    "environment",
    "fresh_secrets",
    "global_generators",
    "history",
    "cuda_peer_access",
    "new_kernels",
    "processor_clocks",
    "recipe_ends",
    "resumes",
    "sent_messages",
    "subscribers",
    "message_journal",
    "trim",
    "variables.values",
    "variables.fingerprints",
    "variables.variable_list",
    "agent",
)
#: The source of the loader, which makes modules of them that can import each other as here; afterwards user code cannot see them.
_LOADER = """
import sys, types
names = ["gpuckpt_agent", *(f"gpuckpt_agent.{name}" for name in sources)]
try:
    for name, source in zip(names, ["__path__ = []", *sources.values()]):
        module = sys.modules[name] = types.ModuleType(name)
        module.__package__ = name.rpartition(".")[0] or name
        exec(compile(source, f"<{name}>", "exec"), module.__dict__)
finally:
    for name in names:
        sys.modules.pop(name, None)
"""


def installation_request() -> dict[str, Any]:
    """Return the content of the execute request that installs the agent."""
    return {
        "code": installation(),
        "silent": True,
        "store_history": False,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": False,
    }


def installation() -> str:
    """Return the code that runs the agent in a kernel, in a namespace of its own, so that it adds no name to the user's."""
    folder = resources.files("jupyter_gpuckpt.kernel_agent")
    sources = {
        name: folder.joinpath(f"{name.replace('.', '/')}.py").read_text() for name in _MODULES
    }
    return f"__import__('builtins').exec({_LOADER!r}, {{'sources': {sources!r}}})"


def take_over(
    environment: Mapping[str, str], renewed: Iterable[str], moved_ports: Mapping[int, int]
) -> dict[str, Any]:
    """Return the part of the message to a resumed kernel that names what it takes over from its new owner.

    `environment`: the owner's. `renewed`: patterns of the names of the variables that the kernel takes from there; those of the former
    owner are removed. `moved_ports`: the new port for each former one on which the kernel listens.
    """
    patterns = list(renewed)
    variables = {
        name: value
        for name, value in environment.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns) and name != "JPY_PARENT_PID"
    }
    return {
        "environment": variables,
        "renewed": patterns,
        "visible_gpus": environment.get("CUDA_VISIBLE_DEVICES", ""),
        "moved_ports": {str(before): after for before, after in moved_ports.items()},
    }
