"""The server's side of the agent in a kernel (`kernel_agent/`): bringing it in, and what it is asked.

Every question may stay unanswered (another kind of kernel, one whose control thread is held up): then it goes on without the
agent, which costs at most what a busy kernel was just saying.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ...model import Variables
from ..messages.comms import SavedComms
from ..messages.probe import AGENT_REQUEST, ask, kernel_info

if TYPE_CHECKING:
    from jupyter_server.services.kernels.kernelmanager import ServerKernelManager

_ANSWER_SECONDS = 2.0
_SECOND_TRY_SECONDS = 0.3
#: A request is on its way after this.
_TELL_SECONDS = 0.1
#: A kernel that has just been started imports for a while.
_START_SECONDS = 30.0
#: A little more than the agent takes at most.
_CALLS_SECONDS = 12.0
#: For the work of its GPUs, where no cell runs.
_GPU_SECONDS = 42.0
_TRIM_SECONDS = 6.0
#: After that it speaks again by itself (`kernel_agent/agent.py`).
_SILENCE_SECONDS = 30.0
#: What runs in the kernel (`kernel_agent/`), in the order in which one needs the other.
_MODULES = (
    "calls",
    "environment",
    "history",
    "peer_access",
    "said",
    "trim",
    "variables.values",
    "variables.fingerprints",
    "variables.listing",
    "agent",
)
#: Makes modules of them that can import each other as they do here, and that nobody finds afterwards.
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
#: IPython kernels say this of themselves.
_IMPLEMENTATION = "ipython"


class PeerAccess(NamedTuple):
    """Of a kernel's GPUs: whether none is on now, and whether some has to be switched on again."""

    is_off: bool
    was_switched: bool


class Found(NamedTuple):
    """What there is to do in a kernel: how many functions users registered, and whether it may use a GPU."""

    on_save: int
    on_resume: int
    uses_gpu: bool


async def bring_in(manager: ServerKernelManager) -> bool:
    """Wait until a new kernel answers and run the agent in it, before anything else; whether it is there then."""
    # On the shell: not every kernel answers this on its control channel.
    info = await kernel_info(manager, "shell", _START_SECONDS)
    if info.get("implementation") != _IMPLEMENTATION:
        return False
    folder = resources.files("jupyter_gpuckpt.kernel_agent")
    sources = {
        name: folder.joinpath(f"{name.replace('.', '/')}.py").read_text() for name in _MODULES
    }
    # In a namespace of its own, so that the user's has no name more.
    content = {
        "code": f"__import__('builtins').exec({_LOADER!r}, {{'sources': {sources!r}}})",
        "silent": True,
        "store_history": False,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": False,
    }
    reply = await ask(manager, "control", "execute_request", content, _ANSWER_SECONDS)
    return _is_ok(reply)


async def prepare(manager: ServerKernelManager, *, answers: bool = True) -> SavedComms | None:
    """Make the kernel keep what it says from now on; its comms as they are then, or None if it does not answer.

    `answers`: whether it has answered just now. Else it is told and not waited for: it keeps what it says when it has heard.
    """
    seconds = _ANSWER_SECONDS if answers else _TELL_SECONDS
    reply = await ask(manager, "control", AGENT_REQUEST, {"op": "prepare"}, seconds)
    if not _is_ok(reply):
        return None
    return await asyncio.to_thread(SavedComms.told, reply["content"]["comms"], reply["buffers"])


async def look(manager: ServerKernelManager, *, answers: bool = True) -> Found | None:
    """Return what the agent has to do; None if the kernel does not answer, as long as a cell holds Python's lock for instance.

    `answers`: whether it has answered the last time. Else it is not waited for as long again.
    """
    seconds = _ANSWER_SECONDS if answers else _SECOND_TRY_SECONDS
    counted = await ask(manager, "control", AGENT_REQUEST, {"op": "count"}, seconds)
    if not _is_ok(counted):
        return None
    content = counted["content"]
    # An agent that an older version has brought in knows nothing of GPUs here.
    return Found(content["on_save"], content["on_resume"], content.get("uses_gpu", True))


async def call_on_save(manager: ServerKernelManager, found: Found) -> bool:
    """Call what users registered for `on_save`; whether anything was called."""
    return bool(found.on_save) and await _call(manager, "on_save")


async def call_on_resume(manager: ServerKernelManager) -> None:
    """Call what users registered for `on_resume`."""
    found = await look(manager)
    if found is not None and found.on_resume:
        await _call(manager, "on_resume")


async def _call(manager: ServerKernelManager, event: str) -> bool:
    reply = await ask(manager, "control", AGENT_REQUEST, {"op": event}, _CALLS_SECONDS)
    return _is_ok(reply) and bool(reply["content"]["called"])


async def resumed(
    manager: ServerKernelManager,
    environment: dict[str, str],
    moved_ports: dict[int, int],
    *,
    renewed: Sequence[str],
    branched: bool,
    gpu_is_back: bool,
) -> None:
    """Tell a kernel that it has come back under a server with this environment.

    `renewed`: patterns of the names of the variables that it takes from there; those of the former server go.
    `moved_ports`: where it listens now instead of on its former ports. `branched`: the kernel that it was made from may go on.
    `gpu_is_back`: it is not parked.
    """
    variables = {
        name: value
        for name, value in environment.items()
        if any(fnmatchcase(name, pattern) for pattern in renewed) and name != "JPY_PARENT_PID"
    }
    content = {
        "op": "resumed",
        "environment": variables,
        "renewed": list(renewed),
        "visible_gpus": environment.get("CUDA_VISIBLE_DEVICES", ""),
        "moved_ports": {str(before): after for before, after in moved_ports.items()},
        "connection_file": str(manager.connection_file),
        "branched": branched,
        "gpu_is_back": gpu_is_back,
    }
    await ask(manager, "control", AGENT_REQUEST, content, _ANSWER_SECONDS)


async def variables(manager: ServerKernelManager, fingerprint_seconds: float) -> Variables | None:
    """What the user's variables are, with fingerprints as far as these can be made in that time; None if it does not tell."""
    content = {"op": "variables", "fingerprint_seconds": fingerprint_seconds}
    seconds = _ANSWER_SECONDS + fingerprint_seconds
    reply = await ask(manager, "control", AGENT_REQUEST, content, seconds)
    told = reply["content"].get("variables") if _is_ok(reply) else None
    try:
        # Those of an agent that an older version has brought in: it knows nothing of this.
        return None if told is None else msgspec.convert(told, Variables)
    except msgspec.ValidationError:
        return None


async def trim(manager: ServerKernelManager, seconds: float) -> int:
    """Have the kernel give back memory that it does not use, if no cell runs; by how many bytes it became smaller, as far as known.

    `seconds`: what may be spent on garbage. See `kernel_agent/trim.py`.
    """
    content = {"op": "trim", "seconds": seconds}
    reply = await ask(manager, "control", AGENT_REQUEST, content, _TRIM_SECONDS)
    return int(reply["content"].get("trimmed_bytes") or 0) if _is_ok(reply) else 0


async def switch_peer_access_off(manager: ServerKernelManager, *, busy: bool) -> PeerAccess:
    """Make the kernel's GPUs keep to themselves; its GPU memory must not be away. See `kernel_agent/peer_access.py`.

    `busy`: a cell runs, and what its GPUs do is not waited for.
    """
    seconds = _CALLS_SECONDS if busy else _GPU_SECONDS
    reply = await ask(manager, "control", AGENT_REQUEST, {"op": "peers_off"}, seconds)
    if not _is_ok(reply):
        return PeerAccess(is_off=False, was_switched=True)
    # An agent that an older version has brought in knows nothing of this.
    content = reply["content"]
    return PeerAccess(content.get("peer_access") == "off", bool(content.get("switched")))


async def switch_peer_access_on(manager: ServerKernelManager) -> bool:
    """Undo that; whether it was possible."""
    reply = await ask(manager, "control", AGENT_REQUEST, {"op": "peers_on"}, _CALLS_SECONDS)
    return _is_ok(reply) and reply["content"].get("peer_access") == "on"


async def said_after(
    manager: ServerKernelManager, message_id: str, requests: list[str]
) -> tuple[list[list[bytes]], bool]:
    """What it said after this message on iopub, and whether that is all; it answers these requests again."""
    content = {"op": "again", "after": message_id, "requests": requests}
    reply = await ask(manager, "control", AGENT_REQUEST, content, _ANSWER_SECONDS)
    # An agent that an older version has brought in knows nothing of this.
    counts = reply["content"].get("counts") if _is_ok(reply) else None
    if counts is None:
        return [], False
    parts = iter([bytes(buffer) for buffer in reply["buffers"]])
    said = [[next(parts) for _ in range(count)] for count in counts]
    return said, bool(reply["content"]["complete"])


async def thaw(manager: ServerKernelManager, wanted: Callable[[], bool] = lambda: False) -> bool:
    """Let it say what it has kept; whether it heard.

    It is told again as long as that is `wanted`: what is sent to a kernel that stands still, because its daemon was killed, is
    lost with the socket that sent it.
    """
    deadline = asyncio.get_running_loop().time() + _SILENCE_SECONDS
    while not _is_ok(await _op(manager, "thaw")):
        if not wanted() or asyncio.get_running_loop().time() > deadline:
            return False
    return True


async def _op(manager: ServerKernelManager, op: str) -> dict[str, Any]:
    return await ask(manager, "control", AGENT_REQUEST, {"op": op}, _ANSWER_SECONDS)


def _is_ok(reply: dict[str, Any]) -> bool:
    return bool(reply) and reply["content"].get("status") == "ok"
