"""Calls to the agent in a kernel (`kernel_agent/`), and its installation.

Any call may stay unanswered (another kind of kernel, one whose control thread is blocked). The server then goes on without the
agent, which costs at most the output that a busy kernel publishes at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ...client.agent_code import AGENT_REQUEST, IMPLEMENTATION, installation_request, take_over
from ...wire.manifest_records import Variables
from ..messages.comms import SavedComms
from ..messages.probe import ask, kernel_info

if TYPE_CHECKING:
    from jupyter_server.services.kernels.kernelmanager import ServerKernelManager

_ANSWER_SECONDS = 4.0
_SECOND_TRY_SECONDS = 0.3
#: The time in which a request is certainly sent, if its reply is not waited for.
_TELL_SECONDS = 0.1
#: The timeout for the first reply of a new kernel, which imports for a while.
_START_SECONDS = 30.0
#: The timeout of user functions: a little more than the agent's own limit.
_CALLS_SECONDS = 12.0
#: The timeout if the agent waits for the work of the GPUs, when no cell runs.
_GPU_SECONDS = 42.0
_TRIM_SECONDS = 6.0
#: The time after which the agent publishes its output by itself (`kernel_agent/agent.py`).
_SILENCE_SECONDS = 30.0


class PeerAccess(NamedTuple):
    """The peer access between a kernel's GPUs: whether none is on now, and whether some must be switched on again."""

    is_off: bool
    was_switched: bool


class AgentState(NamedTuple):
    """An agent's report: the number of user functions registered for each event, and whether the kernel may use a GPU.

    `cell`: the execution count of the last cell that has begun; 0 if none is known.
    """

    on_save: int
    on_resume: int
    uses_gpu: bool
    cell: int = 0


async def install(manager: ServerKernelManager) -> bool:
    """Wait until a new kernel answers and run the agent in it before any cell; return whether the agent runs."""
    # The request goes to the shell because not every kernel answers it on its control channel.
    info = await kernel_info(manager, "shell", _START_SECONDS)
    if info.get("implementation") != IMPLEMENTATION:
        return False
    reply = await ask(manager, "control", "execute_request", installation_request(), _START_SECONDS)
    if not _is_ok(reply):
        found = reply["content"] if reply else {}
        manager.log.warning(
            "Kernel %s may lose output when it is saved in the middle of a cell, because our agent does not run in it (%s)."
            " The agent needs Python 3.8 and ipykernel 6.29, or newer ones.",
            manager.kernel_id,
            f"{found['ename']}: {found.get('evalue')}" if "ename" in found else "no answer",
        )
    return _is_ok(reply)


async def prepare(manager: ServerKernelManager, *, answers: bool = True) -> SavedComms | None:
    """Make the kernel buffer its output from now on; return its comms at that moment, None if it does not answer.

    `answers`: whether it answered just before. If not, the reply is not awaited: it buffers once it has read the request.
    """
    seconds = _ANSWER_SECONDS if answers else _TELL_SECONDS
    reply = await _request(manager, "prepare", seconds)
    if not reply:
        return None
    return await asyncio.to_thread(
        SavedComms.from_agent, reply["content"]["comms"], reply["buffers"]
    )


async def state(manager: ServerKernelManager, *, answers: bool = True) -> AgentState | None:
    """Return the agent's report; None if it does not answer, for example while a cell holds Python's interpreter lock.

    `answers`: whether it answered the last time. If not, the reply is awaited only briefly.
    """
    seconds = _ANSWER_SECONDS if answers else _SECOND_TRY_SECONDS
    counted = await _request(manager, "count", seconds)
    if not counted:
        return None
    content = counted["content"]
    return AgentState(
        content["on_save"], content["on_resume"], content["uses_gpu"], _cell(content["cell"])
    )


def _cell(found: object) -> int:
    """Return an execution count from a kernel, which may claim anything; 0 if it cannot be one."""
    return found if isinstance(found, int) and 0 <= found < 1 << 31 else 0


async def call_on_save(manager: ServerKernelManager, found: AgentState) -> bool:
    """Call the functions that users have registered for `on_save`; return whether any was called."""
    return bool(found.on_save) and await _call(manager, "on_save")


async def call_on_resume(manager: ServerKernelManager) -> None:
    """Call the functions that users have registered for `on_resume`."""
    found = await state(manager)
    if found is not None and found.on_resume:
        await _call(manager, "on_resume")


async def _call(manager: ServerKernelManager, event: str) -> bool:
    reply = await _request(manager, event, _CALLS_SECONDS)
    return bool(reply and reply["content"]["called"])


async def resumed(
    manager: ServerKernelManager,
    environment: dict[str, str],
    moved_ports: dict[int, int],
    *,
    renewed: Sequence[str],
    branched: bool,
    gpu_is_back: bool,
) -> None:
    """Notify a kernel that it was resumed under a server with this environment.

    `renewed`, `moved_ports`: as in `take_over`. `branched`: the kernel of its snapshot may still run. `gpu_is_back`: it is not parked.
    """
    reply = await _request(
        manager,
        "resumed",
        _ANSWER_SECONDS,
        **take_over(environment, renewed, moved_ports),
        connection_file=str(manager.connection_file),
        branched=branched,
        gpu_is_back=gpu_is_back,
    )
    # A kernel may answer anything.
    if reply and (names := reply["content"].get("not_renewed")):
        manager.log.warning(
            "kernel %s: these may be the same in its copies: %s", manager.kernel_id, names
        )


async def variables(manager: ServerKernelManager, fingerprint_seconds: float) -> Variables | None:
    """Return the user's variables, with the fingerprints that can be made in that time; None if the agent does not answer."""
    # The agent counts CPU time, of which a running cell takes a part.
    seconds = _ANSWER_SECONDS + 5 * fingerprint_seconds
    reply = await _request(manager, "variables", seconds, fingerprint_seconds=fingerprint_seconds)
    listed = reply["content"].get("variables") if reply else None
    try:
        # A kernel may answer anything.
        return None if listed is None else msgspec.convert(listed, Variables)
    except msgspec.ValidationError:
        return None


async def trim(manager: ServerKernelManager, seconds: float) -> int:
    """Make the kernel free unused memory if no cell runs; return by how many bytes it became smaller, 0 if unknown.

    `seconds`: the time for collecting garbage. See `kernel_agent/trim.py`.
    """
    reply = await _request(manager, "trim", _TRIM_SECONDS, seconds=seconds)
    return int(reply["content"].get("trimmed_bytes") or 0) if reply else 0


async def switch_peer_access_off(manager: ServerKernelManager, *, busy: bool) -> PeerAccess:
    """Switch off peer access between the kernel's GPUs; it must not be parked. See `kernel_agent/cuda_peer_access.py`.

    `busy`: a cell runs, so the agent does not wait for the work of the GPUs.
    """
    seconds = _CALLS_SECONDS if busy else _GPU_SECONDS
    reply = await _request(manager, "peers_off", seconds)
    if not reply:
        return PeerAccess(is_off=False, was_switched=True)
    content = reply["content"]
    return PeerAccess(content.get("peer_access") == "off", bool(content.get("switched")))


async def switch_peer_access_on(manager: ServerKernelManager) -> bool:
    """Switch peer access on again; return whether that was possible."""
    reply = await _request(manager, "peers_on", _CALLS_SECONDS)
    return bool(reply) and reply["content"].get("peer_access") == "on"


async def answer(manager: ServerKernelManager, request_id: str, text: str) -> None:
    """Answer a request of the user's code; an empty text tells it that the request was received."""
    await _request(manager, "answer", _ANSWER_SECONDS, id=request_id, text=text)


async def messages_after(
    manager: ServerKernelManager, message_id: str, requests: list[str]
) -> tuple[list[list[bytes]], bool]:
    """Return the iopub messages after this one, and whether these are all; the kernel resends its replies to `requests`."""
    reply = await _request(manager, "again", _ANSWER_SECONDS, after=message_id, requests=requests)
    counts = reply["content"].get("counts") if reply else None
    if counts is None:
        return [], False
    parts = iter([bytes(buffer) for buffer in reply["buffers"]])
    messages = [[next(parts) for _ in range(count)] for count in counts]
    return messages, bool(reply["content"]["complete"])


async def flush(manager: ServerKernelManager, wanted: Callable[[], bool] = lambda: False) -> bool:
    """Make the kernel publish its buffered output; return whether it has answered.

    The request is repeated while `wanted` returns True: a request to a kernel whose processes are stopped, because its daemon
    was killed, is lost with the socket that sent it.
    """
    deadline = asyncio.get_running_loop().time() + _SILENCE_SECONDS
    while not await _request(manager, "thaw", _ANSWER_SECONDS):
        if not wanted() or asyncio.get_running_loop().time() > deadline:
            return False
    return True


async def _request(
    manager: ServerKernelManager,
    op: str,
    timeout_seconds: float,
    **arguments: Any,
) -> dict[str, Any]:
    """Send the agent a request and return its reply; empty if it does not answer in time, or with an error."""
    content = {"op": op, **arguments}
    reply = await ask(manager, "control", AGENT_REQUEST, content, timeout_seconds)
    return reply if _is_ok(reply) else {}


def _is_ok(reply: dict[str, Any]) -> bool:
    return bool(reply) and reply["content"].get("status") == "ok"
