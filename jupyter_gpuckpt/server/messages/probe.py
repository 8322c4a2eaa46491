"""Requests to a kernel on this server's own sockets: whether it is connected, whether messages are in transit, its kernel info."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from jupyter_client.session import Session

from ...client.agent_code import AGENT_REQUEST, PROBE_SESSION
from ...linux.tcp_sockets import of_this_namespace
from ..jupyter_internals import known_info, set_known_info

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jupyter_server.services.kernels.kernelmanager import ServerKernelManager

    from .served_kernel import ServedKernel

_log = logging.getLogger(__name__)

#: The types of messages between this server and the agent; the second is the agent's answer to a probe.
AGENT_MESSAGES = (AGENT_REQUEST, "gpuckpt_probe")
_INFO_REQUEST = "kernel_info_request"
_REPEAT_SECONDS = _STEP_SECONDS = 0.1
_INFO_SECONDS = {"control": 2.0, "shell": 60.0}
_ESTABLISHED = "01"


@contextmanager
def _questions(
    manager: ServerKernelManager,
    channels: Iterable[str],
    on_reply: Callable[[dict[str, Any]], None],
) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """Open sockets to the kernel and yield a function that sends a request (type and content) once on each of the channels."""
    session = Session(
        config=manager.session.config,
        key=manager.session.key,
        signature_scheme=manager.session.signature_scheme,
        session=PROBE_SESSION,
    )

    def received(parts: list[bytes]) -> None:
        try:
            _, message = session.feed_identities(parts)
            reply = session.deserialize(message)
        except Exception as error:  # an exception would stall the stream
            _log.debug("a kernel's answer cannot be read: %s", error)
            return
        if not isinstance(reply["content"], dict):
            reply["content"] = {}
        on_reply(reply)

    streams = [getattr(manager, f"connect_{channel}")() for channel in channels]
    for stream in streams:
        stream.on_recv(received)

    def send(kind: str, content: dict[str, Any]) -> None:
        for stream in streams:
            session.send(stream, kind, content)

    try:
        yield send
    finally:
        for stream in streams:
            stream.close()


async def wait_until_connected(
    manager: ServerKernelManager, served: ServedKernel, timeout_seconds: float
) -> bool:
    """Wait until the kernel answers and this server receives its iopub messages; return whether it did so in time.

    A resumed kernel's sockets are new to their peers: libzmq connects and subscribes again by itself, but messages that the
    kernel publishes before that are lost. The agent buffers them, and publishes the answer to a probe without buffering. Once
    that answer has arrived, all earlier messages have, too.
    """
    replied, probe_seen = asyncio.Event(), served.output.probe_seen
    probe_seen.clear()
    # The shell of a busy kernel answers only when the cell is done; its control channel answers at once.
    busy = served.has_agent or manager.execution_state == "busy"
    channels = ["control"] if busy else ["control", "shell"]
    request = (AGENT_REQUEST, {"op": "probe"}) if served.has_agent else (_INFO_REQUEST, {})
    with _questions(manager, channels, lambda _: replied.set()) as send:
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    send(*request)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_REPEAT_SECONDS):
                            await replied.wait()
                            await probe_seen.wait()
                            return True
        except TimeoutError:
            return False


async def kernel_info(
    manager: ServerKernelManager, channel: str, timeout_seconds: float
) -> dict[str, Any]:
    """Return the kernel's `kernel_info_reply`; empty if it does not answer in time."""
    reply = await ask(manager, channel, _INFO_REQUEST, {}, timeout_seconds)
    info: dict[str, Any] = reply.get("content", {})
    return info


async def learn_info(manager: ServerKernelManager, expected: Future[dict[str, Any]]) -> None:
    """Request the `kernel_info_reply` of a kernel that may be busy: on control, which answers at once, else on shell."""
    info: dict[str, Any] = {}
    try:
        for channel, seconds in _INFO_SECONDS.items():
            info = info or await kernel_info(manager, channel, seconds)
    finally:
        expected.set_result(info)


async def ensure_known_info(manager: ServerKernelManager) -> None:
    """Request the `kernel_info_reply` if no page has: a page that opens while the kernel is suspended needs it."""
    if not known_info(manager):
        info = await kernel_info(manager, "control", _INFO_SECONDS["control"])
        if info and not known_info(manager):
            set_known_info(manager, info)


async def ask(
    manager: ServerKernelManager,
    channel: str,
    kind: str,
    content: dict[str, Any],
    timeout_seconds: float,
) -> dict[str, Any]:
    """Return the kernel's reply to a request, with its `content` and `buffers`; empty if it does not answer in time.

    On the channel `shell` a reply also means that no cell runs; on `control` it comes at once.
    """
    reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def received(message: dict[str, Any]) -> None:
        if not reply.done():
            reply.set_result(message)

    with _questions(manager, [channel], received) as send:
        send(kind, content)
        # The wait is in steps: if the whole machine was suspended, only one step is lost and the kernel gets the others.
        steps = math.ceil(timeout_seconds / _STEP_SECONDS)
        for _ in range(steps):
            if (await asyncio.wait({reply}, timeout=timeout_seconds / steps))[0]:
                return reply.result()
        return {}


async def drained(ports: list[int], timeout_seconds: float) -> bool:
    """Wait until no message is in transit to or from the kernel; return whether that was so in time.

    Bytes in Linux's socket buffers are lost in a freeze, because the connections are closed; bytes that libzmq has read are part
    of the process.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            # A message sent just now may not have reached the socket yet.
            await asyncio.sleep(0.02)
            while await asyncio.to_thread(_queued_bytes, set(ports)):  # noqa: ASYNC110 - there is no notification
                await asyncio.sleep(0.01)
    except TimeoutError:
        return False
    return True


def _queued_bytes(ports: set[int]) -> int:
    """Return the bytes in the queues of established TCP connections from or to these ports."""
    queued = 0
    for listed in of_this_namespace():
        if listed.state == _ESTABLISHED and {_port(listed.local), _port(listed.remote)} & ports:
            sending, receiving = listed.queues.split(":")
            queued += int(sending, 16) + int(receiving, 16)
    return queued


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
